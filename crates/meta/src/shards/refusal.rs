//! Why a shard refused or failed a request.

use varve_types::{Errno, InodeId, PartitionMap};

pub use varve_types::Cause;

/// Few kinds: a new one is added only if the caller acts differently on it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShardRefusal {
    /// The namespace rules refuse it.
    #[error("refused: {0:?}")]
    Rule(varve_posix::Refusal),
    /// Another shard holds the partition of this name; the map is newer than the caller's.
    #[error("the partition of directory {directory} is at another shard")]
    Moved { directory: InodeId, map: PartitionMap },
    /// Another change is in progress on the same rows.
    #[error("another change to the same rows is in progress; try again")]
    Busy,
    /// The shard's store failed.
    #[error("{0}")]
    Failed(Cause),
}

impl From<Errno> for ShardRefusal {
    fn from(errno: Errno) -> ShardRefusal {
        ShardRefusal::Rule(varve_posix::Refusal::Errno(errno))
    }
}

impl From<varve_posix::Refusal> for ShardRefusal {
    fn from(refusal: varve_posix::Refusal) -> ShardRefusal {
        ShardRefusal::Rule(refusal)
    }
}
