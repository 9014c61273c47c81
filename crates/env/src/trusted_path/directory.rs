//! A directory that is held by its descriptor: whatever replaces it at its path later, names are made and changed in it.

use super::{TrustedPathError, resolve};
use rustix::fd::OwnedFd;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::path::Path;

/// The directory of a file that is to be written, and the file's name in it. No link is followed at the name.
#[derive(Debug)]
pub struct TrustedPlace {
    directory: OwnedFd,
    name: OsString,
}

impl TrustedPlace {
    /// Finds the directory of `path`; the file need not exist.
    ///
    /// # Errors
    /// As [`resolve`]; `EISDIR` if `path` has no name (`/`, or a `..` at its end).
    pub fn find(path: &Path) -> Result<TrustedPlace, TrustedPathError> {
        let path = resolve(path)?;
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(io::Error::from(Errno::ISDIR).into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::openat2(CWD, parent, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        Ok(TrustedPlace { directory: directory.map_err(io::Error::from)?, name: name.to_owned() })
    }

    /// The type of the file; `None` if there is none.
    pub fn file_type(&self) -> io::Result<Option<FileType>> {
        match rustix::fs::statat(&self.directory, self.name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(FileType::from_raw_mode(found.st_mode))),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens the file for writing, and does not truncate it.
    pub fn open(&self) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.directory, self.name.as_os_str(), flags, Mode::empty())?.into())
    }

    /// Makes the file `name` beside it.
    pub fn create_beside(&self, name: &OsStr, mode: u32) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(rustix::fs::openat(&self.directory, name, flags, Mode::from_raw_mode(mode))?.into())
    }

    /// Gives the file `name` beside it this place's name, durably. A file that has it is replaced.
    pub fn publish(&self, name: &OsStr) -> io::Result<()> {
        rustix::fs::renameat(&self.directory, name, &self.directory, self.name.as_os_str())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::fsync(rustix::fs::openat(&self.directory, ".", flags, Mode::empty())?)?)
    }

    pub fn remove_beside(&self, name: &OsStr) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.directory, name, AtFlags::empty())?)
    }
}
