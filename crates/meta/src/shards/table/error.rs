//! Why a table cannot do what it was asked.

use slatedb::wal::WalError;
use slatedb::{CloseReason, ErrorKind};
use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use varve_types::ShardId;
use varve_world::posix_store::io_error_within;

/// Kinds that a caller acts on differently; the text is for the administrator.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TableError {
    /// Another owner has taken the shard over; this table answers nothing any more.
    #[error("shard {shard} has been taken over by another owner")]
    Fenced { shard: ShardId },
    /// The table was closed by its owner.
    #[error("shard {shard} is closed")]
    Closed { shard: ShardId },
    /// The store does not do what it should: it is full, broken or away. Opening the table again may help.
    #[error("cannot {action} the table of shard {shard}: {source}")]
    Unavailable { shard: ShardId, action: &'static str, source: Arc<dyn Error + Send + Sync> },
    /// What is stored is damaged, or missing. Only an administrator can help.
    #[error("the table of shard {shard} is damaged: {source}")]
    Damaged { shard: ShardId, source: Arc<dyn Error + Send + Sync> },
    /// A mistake of Varve's.
    #[error("cannot {action} the table of shard {shard}: {source}")]
    Internal { shard: ShardId, action: &'static str, source: Arc<dyn Error + Send + Sync> },
}

impl TableError {
    /// `log` is the reason for which the log ended, if it did: it says more than the database that ended with it.
    pub(super) fn new(
        shard: ShardId,
        action: &'static str,
        error: slatedb::Error,
        log: Option<WalError>,
    ) -> TableError {
        if let Some(failure) = log.filter(|failure| !matches!(failure, WalError::Closed)) {
            return TableError::from_log(shard, failure);
        }
        match error.kind() {
            ErrorKind::Closed(CloseReason::Clean) => TableError::Closed { shard },
            ErrorKind::Closed(CloseReason::Fenced) => TableError::Fenced { shard },
            ErrorKind::Unavailable => TableError::Unavailable { shard, action, source: Arc::new(error) },
            ErrorKind::Data => TableError::Damaged { shard, source: Arc::new(error) },
            _ => TableError::Internal { shard, action, source: Arc::new(error) },
        }
    }

    pub(super) fn from_log(shard: ShardId, error: WalError) -> TableError {
        let action = "append to the log of";
        match error {
            WalError::Fenced => TableError::Fenced { shard },
            WalError::Closed => TableError::Closed { shard },
            WalError::Unavailable(source) => TableError::Unavailable { shard, action, source },
            WalError::DataError(source) => TableError::Damaged { shard, source },
            error => TableError::Internal { shard, action, source: Arc::new(error) },
        }
    }

    /// The store has not fsynced for so long.
    pub(super) fn hung(shard: ShardId, waited: Duration) -> TableError {
        let source =
            io::Error::new(io::ErrorKind::TimedOut, format!("the store has not fsynced its log for {waited:?}"));
        TableError::Unavailable { shard, action: "sync", source: Arc::new(source) }
    }

    pub(super) fn internal(shard: ShardId, message: String) -> TableError {
        TableError::Internal { shard, action: "open", source: Arc::new(io::Error::other(message)) }
    }

    /// The operating system's error behind it, if there is one: a full disk (ENOSPC, EDQUOT), a failing one (EIO), a
    /// store that became read-only (EROFS).
    pub fn io_error(&self) -> Option<&io::Error> {
        match self {
            TableError::Fenced { .. } | TableError::Closed { .. } => None,
            TableError::Unavailable { source, .. }
            | TableError::Damaged { source, .. }
            | TableError::Internal { source, .. } => io_error_within(source.as_ref()),
        }
    }
}
