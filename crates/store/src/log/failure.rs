//! Errors of a log, worded for the administrator.

use slatedb::wal::WalError;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use varve_env::store_path::StorePath;
use varve_types::ShardId;

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("the log's directory {} is not there: {source}; bring the store back", directory.display())]
    Unreachable { directory: PathBuf, source: io::Error },
    #[error(
        "the log file {} is damaged at byte {offset} ({reason}), in its fsynced part: acknowledged changes are lost. \
         Restore the file from a copy of the store, or save what is intact with `varve fsck --repair`", path.display()
    )]
    Damaged { path: PathBuf, offset: u64, reason: String },
    #[error(
        "the log of shard {shard} lacks its files in {}: they end with group {found}, but the tables need the groups \
         after {needed}. Restore them from a copy of the store, or save what is intact with `varve fsck --repair`",
        directory.display()
    )]
    Missing { shard: ShardId, directory: PathBuf, found: u64, needed: u64 },
    #[error(
        "the log of shard {shard} is gone: {} exists, but no file of the log; acknowledged changes that were only in \
         the log are lost. Restore the directory from a copy of the store, or continue with the content of the tables \
         by `varve fsck --repair`", mark.display()
    )]
    Gone { shard: ShardId, mark: PathBuf },
    #[error("{} is of format version {found}, and this program reads version {known}: use a newer varve", path.display())]
    Newer { path: PathBuf, found: u32, known: u32 },
    #[error("a batch of {bytes} bytes is above the limit of {max}")]
    TooLarge { bytes: u64, max: u64 },
    #[error("another owner has taken the shard over")]
    Fenced,
}

impl LogError {
    pub fn io<'a>(action: &'static str, path: &'a StorePath) -> impl FnOnce(io::Error) -> LogError + use<'a> {
        move |source| LogError::Io { action, path: path.clone().into(), source }
    }
}

impl From<LogError> for WalError {
    fn from(error: LogError) -> WalError {
        match error {
            LogError::Fenced => WalError::Fenced,
            LogError::Io { .. } | LogError::Unreachable { .. } => WalError::Unavailable(Arc::new(error)),
            LogError::TooLarge { .. } => WalError::InternalError(Arc::new(error)),
            LogError::Damaged { .. } | LogError::Missing { .. } | LogError::Gone { .. } | LogError::Newer { .. } => {
                WalError::DataError(Arc::new(error))
            }
        }
    }
}
