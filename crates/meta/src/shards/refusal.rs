//! Why a shard did not do what a request asked.

use crate::namespace;
use std::fmt;
use std::io;
use varve_types::{Errno, InodeId, PartitionMap};

/// Few kinds: a new one only where the caller would act differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardRefusal {
    /// The rules say no.
    #[error("refused: {0:?}")]
    Rule(namespace::Refusal),
    /// The partition that holds this name is another's; the map is newer than the caller's.
    #[error("partition of directory {directory} is elsewhere")]
    Moved { directory: InodeId, map: PartitionMap },
    /// Another change is under way on the same rows.
    #[error("another change is under way on the same rows; ask again")]
    Busy,
    /// The shard's store failed.
    #[error("{0}")]
    Failed(Cause),
}

/// What made a shard fail: the errno that callers get, and, for the log, what happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub errno: Errno,
    pub reason: String,
}

impl Cause {
    /// The same cause, met while doing something else.
    pub fn met(self, doing: impl fmt::Display) -> Cause {
        Cause { errno: self.errno, reason: format!("{doing}: {}", self.reason) }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

/// What is not the store's refusal is EIO.
impl<T: Into<String>> From<T> for Cause {
    fn from(reason: T) -> Cause {
        Cause { errno: Errno::EIO, reason: reason.into() }
    }
}

/// What callers are told of an error of the store's. Only what is as true of the volume as of the store goes through: a
/// file that is missing in the store, say, is damage and not ENOENT.
pub fn errno_of_store(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::StorageFull => Errno::ENOSPC,
        io::ErrorKind::QuotaExceeded => Errno::EDQUOT,
        io::ErrorKind::ReadOnlyFilesystem => Errno::EROFS,
        io::ErrorKind::TimedOut => Errno::ETIMEDOUT,
        _ => Errno::EIO,
    }
}

impl From<Errno> for ShardRefusal {
    fn from(errno: Errno) -> ShardRefusal {
        ShardRefusal::Rule(namespace::Refusal::Errno(errno))
    }
}

impl From<namespace::Refusal> for ShardRefusal {
    fn from(refusal: namespace::Refusal) -> ShardRefusal {
        ShardRefusal::Rule(refusal)
    }
}
