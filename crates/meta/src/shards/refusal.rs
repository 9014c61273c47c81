//! Why a shard did not do what a request asked.

use crate::namespace;
use varve_types::{Errno, InodeId, PartitionMap};

/// Few kinds: a new one only where the caller would act differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The rules say no.
    #[error("refused: {0:?}")]
    Rule(namespace::Refusal),
    /// The partition that holds this name is another's; the map is newer than the caller's.
    #[error("partition of directory {directory} is elsewhere")]
    Moved { directory: InodeId, map: PartitionMap },
    /// Another change is under way on the same rows.
    #[error("another change is under way on the same rows; ask again")]
    Busy,
    /// The shard's store failed; the text says what happened.
    #[error("{0}")]
    Failed(String),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Rule(namespace::Refusal::Errno(errno))
    }
}

impl From<namespace::Refusal> for Refusal {
    fn from(refusal: namespace::Refusal) -> Refusal {
        Refusal::Rule(refusal)
    }
}
