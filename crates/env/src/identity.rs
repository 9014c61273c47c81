//! The user identity under which this process accesses a store.
//!
//! A store belongs to the user that owns its root directory. When root serves, checks or mounts another user's store,
//! it must not lend that user its rights: the process would follow a link, device or hard link planted in the store
//! with the rights of root. [`Owner::of_store`] finds the owner. [`take`] gives this process the owner's rights before
//! it starts any thread, because Linux keeps identities per thread and new threads inherit them.
//!
//! - [`Keep::Nothing`]: the process becomes the owner permanently (real, effective, saved and file system ids, groups,
//!   no capability).
//! - [`Keep::AllButFiles`]: only the file system identity changes, and the capabilities that override file permissions
//!   are dropped. A mount needs this, because `mount(2)` and FUSE passthrough require CAP_SYS_ADMIN.
//!
//! This module uses raw system calls: glibc has a wrapper for `setresuid`, but none for `setfsuid` with its read-back.
//! It reads back the identity that the kernel set and aborts the process on a difference.

mod decide;
mod nobody;
mod set;

pub use nobody::{NOBODY, is_nobody};
pub use set::{as_process_user, check_held, expect, file_group, file_user, must_take, take};

use crate::trusted_path::{self, TrustedPathError};
use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags, fstat, openat2};
use std::io;
use std::path::{Path, PathBuf};

/// The rights of root that a process keeps when it works in another user's store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The process becomes the owner permanently.
    Nothing,
    /// The process stays root for everything but files.
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
        "{} is a symbolic link of another user, who could redirect root with it; name the directory it leads to",
        path.display()
    )]
    Link { path: PathBuf },
    #[error("{} is not a directory", path.display())]
    NotADirectory { path: PathBuf },
    #[error(
        "the store belongs to user {uid}, \"nobody\": the kernel shows that number for users that it cannot map here \
         (a user namespace without that user, or an export that maps root to nobody), so the real owner is unknown; \
         run this as the user who owns the store"
    )]
    Nobody { uid: u32 },
    #[error("cannot take the rights of user {uid}, who owns the store: {doing}: {source}")]
    Refused { uid: u32, doing: &'static str, source: io::Error },
    #[error(
        "cannot take the rights of user {uid}, who owns the store: this process has {threads} threads, and must take \
         an identity before it starts a second one"
    )]
    Threads { uid: u32, threads: usize },
    #[error(
        "the store belongs to user {owner} now, and this process has taken the rights of user {user}: its directory \
         was replaced meanwhile; find the cause, then run this again"
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
    /// The owner of the store at `root`, which must exist. If this process is root, every link in `root` must belong to
    /// root: another user's link could lead to a store of root's.
    ///
    /// # Errors
    /// If `root` is not a directory, has such a link, or cannot be examined.
    pub fn of_store(root: &Path) -> Result<Owner, IdentityError> {
        let look = |source: io::Error| IdentityError::Look { path: root.to_owned(), source };
        let resolved = trusted_path::resolve(root).map_err(|error| match error {
            TrustedPathError::Link { link, .. } => IdentityError::Link { path: link },
            TrustedPathError::Io(source) => look(source),
        })?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = openat2(CWD, &resolved, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
        let opened = opened.map_err(|errno| look(errno.into()))?;
        let found = fstat(&opened).map_err(|errno| look(errno.into()))?;
        match FileType::from_raw_mode(found.st_mode) {
            FileType::Directory => Ok(Owner { uid: found.st_uid, gid: found.st_gid }),
            _ => Err(IdentityError::NotADirectory { path: root.to_owned() }),
        }
    }

    /// The owner that a new store at `root` will have: the owner of that directory if it exists, else of the nearest
    /// existing directory above it. So root creates a store in a user's directory with that user's rights.
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
