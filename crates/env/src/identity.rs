//! The user whose rights this process has while it works in a store.
//!
//! A store belongs to the user that owns its root directory. Root that serves, checks or mounts another user's store must
//! not lend that user its rights: a link, device or hard link planted in the store would otherwise be followed with the
//! rights of root. [`Owner::of_store`] finds the owner, and [`take`] gives this process the owner's rights before any thread
//! exists, since Linux keeps identities by thread and new threads inherit them.
//!
//! - [`Keep::Nothing`]: the process becomes the owner for good (real, effective, saved and file system ids, groups, no
//!   capability).
//! - [`Keep::AllButFiles`]: only the file system identity changes, and the capabilities that override file permissions go.
//!   A mount needs this: `mount(2)` and FUSE passthrough want CAP_SYS_ADMIN.
//!
//! The system calls are the raw ones: glibc's wrappers exist for `setresuid` but not for `setfsuid` with its read-back. What
//! the kernel did is read back, and a difference aborts the process.

mod decide;
mod set;

pub use set::{as_process_user, check_held, expect, file_group, file_user, must_take, take};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use std::io;
use std::path::{Path, PathBuf};

/// `nobody` of every Linux: the kernel shows it for users that it cannot name, so it must never count as a user.
pub const NOBODY: u32 = 65534;

/// What a process keeps of root's rights when it works in another user's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// It becomes the owner for good.
    Nothing,
    /// It stays root for everything but files.
    AllButFiles,
}

/// The user and group of a store's root directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    #[error("cannot find the owner of {}: {source}", path.display())]
    Look { path: PathBuf, source: io::Error },
    #[error(
        "{} is a symbolic link of another user, who could lead root elsewhere with it; name the directory it leads to",
        path.display()
    )]
    Link { path: PathBuf },
    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },
    #[error(
        "the store belongs to user {uid}, \"nobody\": the kernel shows that number for users it cannot name here (a user \
         namespace without that user, or an export that maps root to nobody), so whose store it is cannot be known; run \
         this as the user who owns the store"
    )]
    Nobody { uid: u32 },
    #[error("cannot take the rights of user {uid}, who owns the store: {doing}: {source}")]
    Refused { uid: u32, doing: &'static str, source: io::Error },
    #[error(
        "cannot take the rights of user {uid}, who owns the store: this process has {threads} threads, and identities are \
         taken before a second one"
    )]
    Threads { uid: u32, threads: usize },
    #[error(
        "the store belongs to user {owner} now, and this process has taken the rights of user {user}: its directory was \
         replaced meanwhile; see who did that, then run this again"
    )]
    Replaced { owner: u32, user: u32 },
    #[error("cannot read {path}: {source}")]
    Proc { path: &'static str, source: io::Error },
    #[error(
        "no group can be found for user {uid}, who owns the store: group {gid} is not mapped into this user namespace"
    )]
    Group { uid: u32, gid: u32 },
}

impl Owner {
    /// The owner of the store at `root`, which must exist. For root, a link at the end of `root` must be root's: another user
    /// could have it lead to a store of root's.
    ///
    /// # Errors
    /// If `root` is no directory or such a link, or cannot be looked at.
    pub fn of_store(root: &Path) -> Result<Owner, IdentityError> {
        let look = |source: io::Error| IdentityError::Look { path: root.to_owned(), source };
        // A slash or dot at the end would have the kernel follow a link.
        let root = &root.components().collect::<PathBuf>();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat(CWD, root, flags, Mode::empty()).map_err(|errno| look(errno.into()))?;
        let found = fstat(&opened).map_err(|errno| look(errno.into()))?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => Ok(Owner { uid: found.st_uid, gid: found.st_gid }),
            FileType::Symlink if found.st_uid == 0 || !rustix::process::geteuid().is_root() => {
                Owner::of_store(&root.canonicalize().map_err(look)?)
            }
            FileType::Symlink => Err(IdentityError::Link { path: root.to_owned() }),
            _ => Err(IdentityError::NotADirectory { path: root.to_owned() }),
        }
    }

    /// The owner that a store at `root` will have: of that directory if it exists, else of the nearest directory above it
    /// that does. So root makes a store in a user's directory with that user's rights.
    ///
    /// # Errors
    /// As [`Owner::of_store`].
    pub fn of_store_to_be(root: &Path) -> Result<Owner, IdentityError> {
        let mut at =
            std::path::absolute(root).map_err(|source| IdentityError::Look { path: root.to_owned(), source })?;
        loop {
            match Owner::of_store(&at) {
                Err(IdentityError::Look { source, .. })
                    if source.kind() == io::ErrorKind::NotFound && at.symlink_metadata().is_err() && at.pop() => {}
                found => return found,
            }
        }
    }
}

#[cfg(test)]
mod tests;
