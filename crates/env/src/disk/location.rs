//! The location of a file: a plain path, or one below a store's directory ([`crate::store_path`]).

use super::FileOptions;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::CWD;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A location at which this module opens, creates and changes files.
pub trait Location {
    type Owned: Location<Owned = Self::Owned>;

    fn owned(&self) -> Self::Owned;
    /// The full path, for messages and for the journal; never used to open the file.
    fn shown(&self) -> &Path;
    /// The parent directory.
    fn around(&self) -> Self::Owned;
    /// A name in this directory.
    fn child(&self, name: &OsStr) -> Self::Owned;
    /// The name and the open directory, for calls that change names.
    fn entry(&self) -> io::Result<Entry>;
    fn open_file(&self, options: &FileOptions) -> io::Result<File>;
    /// The open directory, for listing and syncing.
    fn open_directory(&self) -> io::Result<File>;
    /// lstat(2).
    fn look(&self) -> io::Result<Metadata>;
    /// Names in this directory, and whether each is a directory.
    fn list(&self) -> io::Result<Vec<(OsString, bool)>>;
    fn is_directory(&self) -> bool;
    /// Mode of a directory that is created here, regardless of the umask; `None`: the umask applies.
    fn directory_mode(&self) -> Option<u32>;
}

/// A name in an open directory.
pub struct Entry {
    /// `None`: `name` is a full path.
    pub(crate) directory: Option<Arc<OwnedFd>>,
    pub(crate) name: PathBuf,
}

impl Entry {
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.directory.as_ref().map_or(CWD, |directory| directory.as_fd())
    }
}

impl Location for Path {
    type Owned = PathBuf;

    fn owned(&self) -> PathBuf {
        self.to_owned()
    }

    fn shown(&self) -> &Path {
        self
    }

    fn around(&self) -> PathBuf {
        super::parent(self).to_owned()
    }

    fn child(&self, name: &OsStr) -> PathBuf {
        self.join(name)
    }

    fn entry(&self) -> io::Result<Entry> {
        Ok(Entry { directory: None, name: self.to_owned() })
    }

    fn open_file(&self, options: &FileOptions) -> io::Result<File> {
        let mut open = File::options();
        open.read(options.read).write(options.write).create(options.create).create_new(options.create_new);
        open.truncate(options.truncate).custom_flags(options.more_flags());
        options.mode.map(|mode| open.mode(mode));
        open.open(self)
    }

    fn open_directory(&self) -> io::Result<File> {
        File::open(self)
    }

    fn look(&self) -> io::Result<Metadata> {
        self.symlink_metadata()
    }

    fn list(&self) -> io::Result<Vec<(OsString, bool)>> {
        std::fs::read_dir(self)?
            .map(|entry| {
                let entry = entry?;
                Ok((entry.file_name(), entry.file_type()?.is_dir()))
            })
            .collect()
    }

    fn is_directory(&self) -> bool {
        self.is_dir()
    }

    fn directory_mode(&self) -> Option<u32> {
        None
    }
}

impl Location for PathBuf {
    type Owned = PathBuf;

    fn owned(&self) -> PathBuf {
        self.clone()
    }

    fn shown(&self) -> &Path {
        self
    }

    fn around(&self) -> PathBuf {
        self.as_path().around()
    }

    fn child(&self, name: &OsStr) -> PathBuf {
        self.join(name)
    }

    fn entry(&self) -> io::Result<Entry> {
        self.as_path().entry()
    }

    fn open_file(&self, options: &FileOptions) -> io::Result<File> {
        self.as_path().open_file(options)
    }

    fn open_directory(&self) -> io::Result<File> {
        self.as_path().open_directory()
    }

    fn look(&self) -> io::Result<Metadata> {
        self.symlink_metadata()
    }

    fn list(&self) -> io::Result<Vec<(OsString, bool)>> {
        self.as_path().list()
    }

    fn is_directory(&self) -> bool {
        self.is_dir()
    }

    fn directory_mode(&self) -> Option<u32> {
        None
    }
}
