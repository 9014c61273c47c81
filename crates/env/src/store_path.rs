//! Paths below a store's directory that cannot lead out of it.
//!
//! A store may belong to another user, who can put a symlink, a FIFO or a device anywhere in it. So no file of a store
//! is ever opened by its full path. A [`StoreRoot`] is a directory, which a descriptor keeps open once the volume is in
//! use; a [`StorePath`] is a name below it. Every lookup is one openat2(2) from that descriptor that stays beneath it
//! and follows no link (`RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS`). Names are changed by calls with one component on the
//! descriptor of their directory. Every file is opened with `O_NONBLOCK | O_NOFOLLOW` and must be regular.
//!
//! [`StoreRoot::part`] is the one exception: `shards` and `data` of a volume may be links to another disk (`part.rs`).

mod list;
mod part;
mod resolve;

pub use list::StoreEntry;

use crate::disk::{Entry, FileOptions, Location};
use crate::identity;
use crate::printable::printable_path;
use crate::trusted_path;
use parking_lot::RwLock;
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, fstat, stat, statat};
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

/// A directory at which store paths begin. Clones are cheap and refer to the same directory.
#[derive(Clone, Debug)]
pub struct StoreRoot(Arc<Root>);

#[derive(Debug)]
struct Root {
    /// The path by which it was found, for messages.
    path: PathBuf,
    /// The root that it is a part of, and its name there.
    within: Option<(StoreRoot, OsString)>,
    /// Whether it may be a link.
    may_be_link: bool,
    /// Whether it is opened once and kept open; otherwise each access opens it again.
    held: bool,
    directory: RwLock<Option<Arc<OwnedFd>>>,
}

impl StoreRoot {
    /// The directory that is at `path` at the time of each use.
    pub fn at(path: impl Into<PathBuf>) -> StoreRoot {
        StoreRoot::new(path.into(), None, false, false)
    }

    /// The directory that is at `path` now, whatever replaces it later.
    pub fn hold(path: impl Into<PathBuf>) -> io::Result<StoreRoot> {
        let root = StoreRoot::new(path.into(), None, false, true);
        root.directory()?;
        Ok(root)
    }

    fn new(path: PathBuf, within: Option<(StoreRoot, OsString)>, may_be_link: bool, held: bool) -> StoreRoot {
        StoreRoot(Arc::new(Root { path, within, may_be_link, held, directory: RwLock::new(None) }))
    }

    /// The directory `name` in this one, as a separate root: it may be a link to another disk.
    pub fn part(&self, name: &str) -> StoreRoot {
        StoreRoot::new(self.0.path.join(name), Some((self.clone(), name.into())), true, self.0.held)
    }

    /// The directory `name` in this one, which must not be a link, as a root that each use opens again.
    pub fn within(&self, name: &str) -> StoreRoot {
        StoreRoot::new(self.0.path.join(name), Some((self.clone(), name.into())), false, false)
    }

    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// The directory as a store path.
    pub fn itself(&self) -> StorePath {
        StorePath { root: self.clone(), path: self.0.path.clone() }
    }

    pub fn join(&self, below: impl AsRef<Path>) -> StorePath {
        StorePath { root: self.clone(), path: self.0.path.join(below) }
    }

    /// Its `O_PATH` descriptor.
    pub(crate) fn directory(&self) -> io::Result<Arc<OwnedFd>> {
        if let Some(known) = &*self.0.directory.read() {
            return Ok(Arc::clone(known));
        }
        let opened = Arc::new(self.open()?);
        if self.0.held {
            return Ok(Arc::clone(self.0.directory.write().get_or_insert(opened)));
        }
        Ok(opened)
    }

    /// Opens the directory that is in its place now.
    pub(crate) fn open(&self) -> io::Result<OwnedFd> {
        match &self.0.within {
            Some((around, name)) if self.0.may_be_link => part::open(around, name, &self.0.path),
            Some((around, name)) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                resolve::beneath(&*around.directory()?, Path::new(name), flags, Mode::empty())
            }
            None => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
                let path = trusted_path::resolve(&self.0.path)?;
                let opened = resolve::open(CWD, &path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)?;
                identity::check_held(fstat(&opened)?.st_uid)
                    .map_err(|error| io::Error::new(io::ErrorKind::PermissionDenied, error))?;
                Ok(opened)
            }
        }
    }

    /// The metadata of the directory that is in its place now.
    pub(crate) fn look_anew(&self) -> io::Result<Stat> {
        let found = match self.entry()? {
            Some(entry) => statat(entry.fd(), &entry.name, AtFlags::SYMLINK_NOFOLLOW)?,
            None => stat(&self.0.path)?,
        };
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => Ok(found),
            FileType::Symlink => Ok(fstat(&self.open()?)?),
            _ => Err(rustix::io::Errno::NOTDIR.into()),
        }
    }

    /// The open descriptor, if there is one.
    pub(crate) fn known(&self) -> Option<Arc<OwnedFd>> {
        self.0.directory.read().clone()
    }

    /// Replaces a stale descriptor by `directory`, which is the same directory.
    pub(crate) fn renew(&self, directory: OwnedFd) {
        *self.0.directory.write() = Some(Arc::new(directory));
    }

    fn entry(&self) -> io::Result<Option<Entry>> {
        let Some((around, name)) = &self.0.within else { return Ok(None) };
        Ok(Some(Entry { directory: Some(around.directory()?), name: name.into() }))
    }
}

impl PartialEq for StoreRoot {
    fn eq(&self, other: &StoreRoot) -> bool {
        self.0.path == other.0.path
    }
}

impl Eq for StoreRoot {}

/// A [`StoreRoot`], or a file or directory below one.
///
/// `AsRef<Path>` and [`StorePath::path`] return the full path for messages, and for tests, which examine a store from
/// outside. `cargo xtask tidy` refuses code that opens it.
#[derive(Clone, Debug)]
pub struct StorePath {
    root: StoreRoot,
    path: PathBuf,
}

impl StorePath {
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path for messages, escaped.
    pub fn display(&self) -> &StorePath {
        self
    }

    pub fn join(&self, below: impl AsRef<Path>) -> StorePath {
        StorePath { root: self.root.clone(), path: self.path.join(below) }
    }

    pub fn file_name(&self) -> Option<&OsStr> {
        self.path.file_name()
    }

    pub fn file_stem(&self) -> Option<&OsStr> {
        self.path.file_stem()
    }

    pub fn extension(&self) -> Option<&OsStr> {
        self.path.extension()
    }

    /// The parent directory; for a volume's root, that root itself.
    pub fn parent(&self) -> StorePath {
        match (self.is_root(), &self.root.0.within) {
            (true, None) => self.clone(),
            (true, Some((around, _))) => around.itself(),
            (false, _) => StorePath { root: self.root.clone(), path: crate::disk::parent(&self.path).to_owned() },
        }
    }

    fn is_root(&self) -> bool {
        self.path.as_os_str().len() == self.root.0.path.as_os_str().len()
    }

    /// The path below the root; only plain names are allowed.
    fn below(&self) -> io::Result<&Path> {
        let below = self.path.strip_prefix(&self.root.0.path).ok();
        let plain = below.filter(|below| below.components().all(|part| matches!(part, Component::Normal(_))));
        plain.ok_or_else(|| {
            let what = format!("{self} is not a plain path below {}", printable_path(&self.root.0.path));
            io::Error::new(io::ErrorKind::InvalidInput, what)
        })
    }

    /// Opens the path with `O_PATH`, without following a link; the caller must check its kind.
    fn open_place(&self) -> io::Result<File> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = match self.root.entry()? {
            _ if !self.is_root() => resolve::beneath(&*self.root.directory()?, self.below()?, flags, Mode::empty())?,
            Some(entry) => resolve::beneath(entry.fd(), &entry.name, flags, Mode::empty())?,
            None => resolve::beneath(&*self.root.directory()?, Path::new("."), flags, Mode::empty())?,
        };
        Ok(opened.into())
    }

    /// The metadata of the path; of a link, its own.
    pub fn symlink_metadata(&self) -> io::Result<Metadata> {
        self.open_place()?.metadata()
    }

    /// As [`StorePath::symlink_metadata`], but refuses links, except at a root that may be one.
    pub fn metadata(&self) -> io::Result<Metadata> {
        if self.is_root() {
            return File::from(self.root.directory()?.try_clone()?).metadata();
        }
        let found = self.symlink_metadata()?;
        if found.is_symlink() { Err(resolve::link_refused(&self.path)) } else { Ok(found) }
    }

    pub fn try_exists(&self) -> io::Result<bool> {
        match self.symlink_metadata() {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub fn exists(&self) -> bool {
        self.symlink_metadata().is_ok()
    }

    pub fn is_dir(&self) -> bool {
        self.metadata().is_ok_and(|found| found.is_dir())
    }

    pub fn is_file(&self) -> bool {
        self.metadata().is_ok_and(|found| found.is_file())
    }

    /// Opens the regular file for reading.
    pub fn open(&self) -> io::Result<File> {
        self.open_file(&crate::disk::File::options().read(true))
    }

    /// Reads a whole file.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut self.open()?, &mut bytes)?;
        Ok(bytes)
    }

    /// The entries of the directory, in no particular order.
    pub fn read_dir(&self) -> io::Result<Vec<StoreEntry>> {
        list::read(self)
    }

    /// Sets the permission bits of a directory.
    pub fn set_directory_mode(&self, mode: u32) -> io::Result<()> {
        Ok(rustix::fs::fchmod(self.open_directory()?, Mode::from_raw_mode(mode))?)
    }

    fn open_as(&self, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let below = if self.is_root() { Path::new(".") } else { self.below()? };
        resolve::beneath(&*self.root.directory()?, below, flags, Mode::from_raw_mode(mode))
    }
}

impl PartialEq for StorePath {
    fn eq(&self, other: &StorePath) -> bool {
        self.path == other.path
    }
}

impl Eq for StorePath {}

impl PartialOrd for StorePath {
    fn partial_cmp(&self, other: &StorePath) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for StorePath {
    fn cmp(&self, other: &StorePath) -> std::cmp::Ordering {
        self.path.cmp(&other.path)
    }
}

impl std::fmt::Display for StorePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&printable_path(&self.path))
    }
}

impl AsRef<Path> for StorePath {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<OsStr> for StorePath {
    fn as_ref(&self) -> &OsStr {
        self.path.as_os_str()
    }
}

impl PartialEq<StorePath> for PathBuf {
    fn eq(&self, other: &StorePath) -> bool {
        *self == other.path
    }
}

/// A separate directory, such as a test's, outside of any store.
impl From<PathBuf> for StorePath {
    fn from(path: PathBuf) -> StorePath {
        StoreRoot::at(path).itself()
    }
}

impl From<&Path> for StorePath {
    fn from(path: &Path) -> StorePath {
        StoreRoot::at(path).itself()
    }
}

impl From<StorePath> for PathBuf {
    fn from(path: StorePath) -> PathBuf {
        path.path
    }
}

impl Location for StorePath {
    type Owned = StorePath;

    fn owned(&self) -> StorePath {
        self.clone()
    }

    fn shown(&self) -> &Path {
        &self.path
    }

    fn around(&self) -> StorePath {
        self.parent()
    }

    fn child(&self, name: &OsStr) -> StorePath {
        self.join(name)
    }

    fn entry(&self) -> io::Result<Entry> {
        if self.is_root() {
            if let Some(entry) = self.root.entry()? {
                return Ok(entry);
            }
            // The root's own name lies outside of every store directory and must not be changed.
            self.root.directory()?;
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, "it is the store's own directory"));
        }
        let below = self.below()?;
        let name = below.file_name().unwrap_or_default().into();
        let directory = self.root.directory()?;
        let directory = match below.parent().filter(|around| !around.as_os_str().is_empty()) {
            Some(around) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                Arc::new(resolve::beneath(&*directory, around, flags, Mode::empty())?)
            }
            None => directory,
        };
        Ok(Entry { directory: Some(directory), name })
    }

    fn open_file(&self, options: &FileOptions) -> io::Result<File> {
        resolve::open_regular(self, options)
    }

    fn open_directory(&self) -> io::Result<File> {
        let opened = self.open_as(OFlags::RDONLY | OFlags::DIRECTORY, 0);
        opened.map(File::from).map_err(|error| self.explained(error))
    }

    fn look(&self) -> io::Result<Metadata> {
        self.symlink_metadata()
    }

    fn list(&self) -> io::Result<Vec<(OsString, bool)>> {
        Ok(self.read_dir()?.into_iter().map(|entry| (entry.file_name().to_owned(), entry.is_dir())).collect())
    }

    fn is_directory(&self) -> bool {
        self.is_dir()
    }

    fn directory_mode(&self) -> Option<u32> {
        Some(0o700)
    }
}

#[cfg(test)]
mod tests;
