//! The directory that holds the Unix sockets of a user's servers.
//!
//! | Process | Store's owner | Directory |
//! |---|---|---|
//! | user | any | `$XDG_RUNTIME_DIR/varve` if `$XDG_RUNTIME_DIR` is that user's with mode 0700, else `/tmp/varve-UID` |
//! | root | root | `/run/varve`, 0755 |
//! | root | user | `/run/varve/UID`, 0700, owned by that user; root creates it before it takes the user's rights |
//!
//! Clients find the sockets through the server record, and ask the kernel for the uid of the process that listens
//! there. A user with write access to the directory could still replace a socket, so its owner and mode are checked on
//! the open descriptor.

use crate::identity::{Owner, file_user};
use crate::private_file::{make_directories, open_directory};
use rustix::fs::{AtFlags, Gid, Mode, OFlags, Uid, chownat, fchmod, fstat, mkdirat, open, openat};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// Directory for root's servers, and for the directories of users' servers that root started.
const RUN: &str = "/run/varve";
const NAME: &str = "varve";

#[derive(Debug, thiserror::Error)]
pub enum RuntimeDirError {
    #[error("cannot use {} for sockets: {source}; choose another directory with --unix-dir DIR", directory.display())]
    Io { directory: PathBuf, source: io::Error },
    #[error(
        "cannot use {} for sockets: it belongs to user {owner} and not to user {user}; choose a directory of user {user} with \
         --unix-dir DIR, or set XDG_RUNTIME_DIR to one with mode 0700", directory.display()
    )]
    Owner { directory: PathBuf, owner: u32, user: u32 },
    #[error(
        "cannot use {} for sockets: it is a link or file of user {owner} and not a directory; remove it, or choose \
         another directory with --unix-dir DIR", directory.display()
    )]
    Kind { directory: PathBuf, owner: u32 },
    #[error(
        "cannot use {} for sockets: other users can write it (mode {mode:o}) and could replace them; remove that right \
         with `chmod go-w`, or choose another directory with --unix-dir DIR", directory.display()
    )]
    Writable { directory: PathBuf, mode: u32 },
}

/// Default directory for the sockets of servers that this thread's user starts. Creates nothing.
pub fn default_directory() -> PathBuf {
    let (process, files) = (rustix::process::geteuid().as_raw(), file_user());
    let xdg = std::env::var_os("XDG_RUNTIME_DIR").filter(|value| !value.is_empty()).map(PathBuf::from);
    choose(process, files, xdg.filter(|directory| is_private(directory, process)))
}

fn choose(process: u32, files: u32, xdg: Option<PathBuf>) -> PathBuf {
    match (process, files, xdg) {
        (0, 0, _) => PathBuf::from(RUN),
        (0, user, _) => Path::new(RUN).join(user.to_string()),
        (_, _, Some(directory)) => directory.join(NAME),
        (user, _, None) => of_user(user),
    }
}

/// `user`'s directory if the system provides none for that user.
pub fn of_user(user: u32) -> PathBuf {
    PathBuf::from(format!("/tmp/{NAME}-{user}"))
}

/// Whether only `user` has access to `directory`, as the XDG specification requires of `XDG_RUNTIME_DIR`.
fn is_private(directory: &Path, user: u32) -> bool {
    let found = open_directory(directory).and_then(|opened| fstat(&opened));
    let is_private = found.as_ref().is_ok_and(|found| found.st_uid == user && found.st_mode & 0o077 == 0);
    if !is_private || !directory.is_absolute() {
        tracing::debug!("XDG_RUNTIME_DIR={} is not used: it is not user {user}'s alone", directory.display());
        return false;
    }
    true
}

/// Creates the directory for servers of `owner` that root starts. Root calls it before it takes the owner's rights.
///
/// # Errors
/// If the directory cannot be created, or does not belong to the owner.
pub fn make_for(owner: Owner) -> Result<PathBuf, RuntimeDirError> {
    make_below(Path::new(RUN), owner)
}

fn make_below(run: &Path, owner: Owner) -> Result<PathBuf, RuntimeDirError> {
    prepare(run, 0o755)?;
    let name = owner.uid.to_string();
    let directory = run.join(&name);
    let failed = |errno: Errno| RuntimeDirError::Io { directory: directory.clone(), source: errno.into() };
    // O_PATH needs no read permission on the owner's private directory; the process may already have given up the right
    // to read it.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let above = open(run, flags, Mode::empty()).map_err(failed)?;
    let is_new = match mkdirat(&above, &name, Mode::from_raw_mode(0o700)) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(errno) => return Err(failed(errno)),
    };
    let opened = openat(&above, &name, flags, Mode::empty()).map_err(failed)?;
    if is_new {
        let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
        chownat(&opened, "", Some(uid), Some(gid), AtFlags::EMPTY_PATH).map_err(failed)?;
    }
    let found = fstat(&opened).map_err(failed)?;
    let mode = found.st_mode & 0o7777;
    match (found.st_uid == owner.uid, mode & 0o022 == 0) {
        (true, true) => Ok(directory),
        (false, _) => Err(RuntimeDirError::Owner { directory, owner: found.st_uid, user: owner.uid }),
        (_, false) => Err(RuntimeDirError::Writable { directory, mode }),
    }
}

/// Creates `directory` with `mode`, or checks that the existing directory belongs to this thread's user and that no
/// other user can write it.
///
/// # Errors
/// If it cannot be created or fails the check.
pub fn prepare(directory: &Path, mode: u32) -> Result<(), RuntimeDirError> {
    let failed = |source: io::Error| RuntimeDirError::Io { directory: directory.to_owned(), source };
    match make_directories(directory, mode) {
        // A link or a file of that name: reported below.
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    match open_directory(directory) {
        Ok(opened) => check(directory, opened.as_fd(), file_user(), mode),
        Err(Errno::LOOP | Errno::NOTDIR) => {
            Err(RuntimeDirError::Kind { directory: directory.to_owned(), owner: owner_of(directory) })
        }
        // This user has no access, so the directory belongs to another user.
        Err(Errno::ACCESS) => Err(RuntimeDirError::Owner {
            directory: directory.to_owned(),
            owner: owner_of(directory),
            user: file_user(),
        }),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn check(directory: &Path, opened: std::os::fd::BorrowedFd<'_>, user: u32, mode: u32) -> Result<(), RuntimeDirError> {
    let failed = |errno: Errno| RuntimeDirError::Io { directory: directory.to_owned(), source: errno.into() };
    let found = fstat(opened).map_err(failed)?;
    if found.st_uid != user {
        return Err(RuntimeDirError::Owner { directory: directory.to_owned(), owner: found.st_uid, user });
    }
    let found = found.st_mode & 0o7777;
    if found & 0o022 == 0 {
        return Ok(());
    }
    // A directory with our own name got a permissive mode by mistake and is corrected; one that the user chose is not
    // ours to change.
    let is_ours = directory.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(NAME.as_bytes()));
    match is_ours {
        true => fchmod(opened, Mode::from_raw_mode(mode)).map_err(failed),
        false => Err(RuntimeDirError::Writable { directory: directory.to_owned(), mode: found }),
    }
}

/// The owner of `path`, for an error message.
fn owner_of(path: &Path) -> u32 {
    use std::os::unix::fs::MetadataExt;
    path.symlink_metadata().map_or(crate::identity::NOBODY, |found| found.uid())
}

#[cfg(test)]
mod tests;
