//! Files of the user who runs this process: configuration, logs, and their directories.
//!
//! Their paths come from the environment (`HOME`, `XDG_*`, `TMPDIR`), which may name a place that another user
//! controls. So every check is made on the open descriptor, the last component is never a link of another user, and
//! modes do not depend on the umask.

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fchmod, fstat, mkdirat, open, openat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A log contains names of files of the volume, so only its owner may read it.
const LOG_MODE: u32 = 0o600;
/// A longer file is not a configuration file.
const TEXT_BYTES_MAX: u64 = 1024 * 1024;
/// Maximum number of symlinks that are followed, as in Linux.
const LINKS_MAX: usize = 40;
/// Bits that let others write.
const WRITABLE: u32 = 0o022;
const STICKY: u32 = 0o1000;

#[derive(Debug, thiserror::Error)]
pub enum PrivateFileError {
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{} belongs to user {owner}, and this is user {user}: only files of that user or of root are used", path.display()
    )]
    Owner { path: PathBuf, owner: u32, user: u32 },
    #[error("{} can be written by other users (mode {mode:o}): remove that right with `chmod go-w`", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("{} is a symbolic link of user {owner}: name the file it leads to", path.display())]
    Link { path: PathBuf, owner: u32 },
    #[error("{} is not a regular file", path.display())]
    Kind { path: PathBuf },
    #[error("{} has more than {TEXT_BYTES_MAX} bytes", path.display())]
    Long { path: PathBuf },
}

impl PrivateFileError {
    /// The kind of the system's error, if this is one.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            PrivateFileError::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }
}

type Result<T> = std::result::Result<T, PrivateFileError>;

/// The effective user id.
fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn is_trusted(owner: u32) -> bool {
    owner == 0 || owner == own()
}

fn failed(path: &Path) -> impl Fn(Errno) -> PrivateFileError {
    let path = path.to_owned();
    move |errno| PrivateFileError::Io { path: path.clone(), source: errno.into() }
}

fn mode_of(found: &Stat) -> u32 {
    found.st_mode & 0o7777
}

fn check_owner(path: &Path, found: &Stat) -> Result<()> {
    match is_trusted(found.st_uid) {
        true => Ok(()),
        false => Err(PrivateFileError::Owner { path: path.to_owned(), owner: found.st_uid, user: own() }),
    }
}

/// Reads a text file that belongs to the effective user or to root, and that no other user can write.
///
/// # Errors
/// If the owner or mode is different, if the file cannot be read or is not a regular file, or if its path leads through
/// another user's link.
pub fn read_text(path: &Path) -> Result<String> {
    let resolved = follow_own_links(path)?;
    // Without NONBLOCK, opening a FIFO would block until it has a writer.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = open(&resolved, flags, Mode::empty()).map_err(failed(path))?;
    let found = fstat(&opened).map_err(failed(path))?;
    if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile {
        return Err(PrivateFileError::Kind { path: path.to_owned() });
    }
    check_owner(path, &found)?;
    if mode_of(&found) & WRITABLE != 0 {
        return Err(PrivateFileError::Writable { path: path.to_owned(), mode: mode_of(&found) });
    }
    let mut text = String::new();
    let read = File::from(opened).take(TEXT_BYTES_MAX + 1).read_to_string(&mut text);
    read.map_err(|source| PrivateFileError::Io { path: path.to_owned(), source })?;
    match text.len() as u64 > TEXT_BYTES_MAX {
        true => Err(PrivateFileError::Long { path: path.to_owned() }),
        false => Ok(text),
    }
}

/// Resolves the links at `path`. Each must belong to the effective user or to root: users link to configuration files
/// in other directories of their own.
fn follow_own_links(path: &Path) -> Result<PathBuf> {
    let mut at = path.to_owned();
    for _ in 0..LINKS_MAX {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = open(&at, flags, Mode::empty()).map_err(failed(path))?;
        let found = fstat(&opened).map_err(failed(path))?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            return Ok(at);
        }
        if !is_trusted(found.st_uid) {
            return Err(PrivateFileError::Link { path: at, owner: found.st_uid });
        }
        let target = rustix::fs::readlinkat(&opened, "", Vec::new()).map_err(failed(path))?;
        let target: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(target.as_bytes());
        at = crate::disk::parent(&at).join(target);
    }
    Err(failed(path)(Errno::LOOP))
}

/// Opens a log for appending; creates it with mode 0600 if missing. It must belong to the effective user or root, no
/// other user may be able to write it, and its name must not be a link. A character device (`/dev/null`) is allowed.
///
/// # Errors
/// If one of these conditions fails, or if the log cannot be created or written.
pub fn open_log(path: &Path) -> Result<File> {
    let common =
        OFlags::WRONLY | OFlags::APPEND | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let opened = match open(path, common | OFlags::CREATE | OFlags::EXCL, Mode::from_raw_mode(LOG_MODE)) {
        Ok(made) => {
            fchmod(&made, Mode::from_raw_mode(LOG_MODE)).map_err(failed(path))?;
            made
        }
        Err(Errno::EXIST) => open(path, common, Mode::empty()).map_err(|errno| match errno {
            Errno::LOOP => PrivateFileError::Link { path: path.to_owned(), owner: link_owner(path) },
            errno => failed(path)(errno),
        })?,
        Err(errno) => return Err(failed(path)(errno)),
    };
    let found = fstat(&opened).map_err(failed(path))?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => {}
        FileType::CharacterDevice => return Ok(File::from(opened)),
        _ => return Err(PrivateFileError::Kind { path: path.to_owned() }),
    }
    check_owner(path, &found)?;
    if mode_of(&found) & WRITABLE != 0 {
        return Err(PrivateFileError::Writable { path: path.to_owned(), mode: mode_of(&found) });
    }
    Ok(File::from(opened))
}

/// The owner of a link, for an error message.
fn link_owner(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().map_or(crate::identity::NOBODY, |link| link.uid())
}

/// Creates `directory` with `mode`, regardless of the umask, and missing parents with mode 0755. An existing directory
/// stays as it is.
///
/// # Errors
/// If a directory cannot be created.
pub fn make_directories(directory: &Path, mode: u32) -> io::Result<()> {
    match make_directory(directory, mode) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !crate::disk::parent(directory).is_dir() => {
            make_directories(crate::disk::parent(directory), 0o755)?;
            make_directories(directory, mode)
        }
        made => made,
    }
}

/// Creates `directory`, which must not exist, with exactly `mode`.
///
/// # Errors
/// If it cannot be created, or belongs to another user when it is opened.
pub fn make_directory(directory: &Path, mode: u32) -> io::Result<()> {
    // Only the owner has access until the mode is set, so a permissive umask lets no other user in before.
    mkdirat(CWD, directory, Mode::from_raw_mode(mode & 0o700))?;
    let opened = open_directory(directory)?;
    if fstat(&opened)?.st_uid != crate::identity::file_user() {
        return Err(Errno::PERM.into());
    }
    Ok(fchmod(&opened, Mode::from_raw_mode(mode))?)
}

/// Opens `directory` itself and does not follow a link of that name.
pub(crate) fn open_directory(directory: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, directory, flags, Mode::empty())
}

/// Refuses a directory in which another user could replace files of this process: a directory of another user, or one
/// that others can write and that has no sticky bit. A link of another user is not followed.
///
/// # Errors
/// If the directory is refused or cannot be examined.
pub fn check_directory(directory: &Path) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = open(&follow_own_links(directory)?, flags, Mode::empty());
    let found = opened.and_then(|opened| fstat(&opened)).map_err(failed(directory))?;
    check_owner(directory, &found)?;
    let mode = mode_of(&found);
    match mode & WRITABLE != 0 && mode & STICKY == 0 {
        true => Err(PrivateFileError::Writable { path: directory.to_owned(), mode }),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests;
