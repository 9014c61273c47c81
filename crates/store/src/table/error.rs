//! Errors of a table.

use super::checked_store::DamagedObject;
use crate::log::LogError;
use slatedb::wal::WalError;
use slatedb::{CloseReason, ErrorKind};
use std::error::Error;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use varve_env::posix_store::{self, StoreIoError, io_error_within};
use varve_env::volume_dir::VolumeDir;
use varve_types::{Errno, ShardId};

/// One kind for each way a caller acts; the text is for the administrator.
#[derive(Clone, Debug, thiserror::Error)]
pub enum TableError {
    /// Another owner has taken the shard over; this table answers no more calls.
    #[error("shard {shard} has been taken over by another owner")]
    Fenced { shard: ShardId },
    /// This process was to own the shard, and the time for which it may take it over has ended. It may begin anew.
    #[error("shard {shard} may not be taken over: the lease of this server has ended")]
    NotOwned { shard: ShardId },
    /// The table was closed by its owner.
    #[error("shard {shard} is closed")]
    Closed { shard: ShardId },
    /// The table was opened read-only, because its store accepts no writes.
    #[error("shard {shard} is read-only until its store accepts writes again")]
    ReadOnly { shard: ShardId, errno: Errno },
    /// The store is full, broken or unreachable. Opening the table again may help.
    #[error("cannot {action} the table of shard {shard}: {}", plain(*shard, source.as_ref()))]
    Unavailable { shard: ShardId, action: &'static str, source: Arc<dyn Error + Send + Sync> },
    /// The stored data are damaged or missing. Only an administrator can help.
    #[error("the table of shard {shard} is damaged: {}", plain(*shard, source.as_ref()))]
    Damaged { shard: ShardId, source: Arc<dyn Error + Send + Sync> },
    /// A bug in Varve.
    #[error("cannot {action} the table of shard {shard}: {}", plain(*shard, source.as_ref()))]
    Internal { shard: ShardId, action: &'static str, source: Arc<dyn Error + Send + Sync> },
}

/// The missing part of a shard that is not new.
#[derive(Debug, thiserror::Error)]
pub enum MissingState {
    #[error(
        "{} is missing; restore it from a copy of the store, or continue without its content by `varve fsck --repair`",
        directory.display()
    )]
    Directory { directory: PathBuf },
    #[error(
        "there is no manifest in {}, but a log; restore the manifest from a copy of the store, or save what is left \
         with `varve fsck --repair`", directory.display()
    )]
    Manifest { directory: PathBuf },
    #[error(
        "the content of {} is gone: the shard was opened before; restore the directory from a copy of the store, or \
         continue without its content by `varve fsck --repair`", directory.display()
    )]
    All { directory: PathBuf },
    #[error(
        "the log in {} is gone: the shard was opened before; acknowledged changes that were only in the log are lost. \
         Restore the directory from a copy of the store, or continue with the content of the tables by `varve fsck \
         --repair`", directory.display()
    )]
    Log { directory: PathBuf },
}

impl TableError {
    /// `log`: the failure that ended the log, if it has ended. It is more specific than the error of the database that
    /// ended with it.
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
            // A failing store carries an error of the operating system; a file that is too short does not.
            ErrorKind::Unavailable if io_error_within(&error).is_some() => {
                TableError::Unavailable { shard, action, source: Arc::new(error) }
            }
            ErrorKind::Unavailable => TableError::Damaged { shard, source: Arc::new(error) },
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

    /// The store has not completed an fsync for the time `waited`.
    pub(super) fn hung(shard: ShardId, waited: Duration) -> TableError {
        let source =
            io::Error::new(io::ErrorKind::TimedOut, format!("the store has not fsynced its log for {waited:?}"));
        TableError::Unavailable { shard, action: "sync", source: Arc::new(source) }
    }

    pub(super) fn internal(shard: ShardId, message: String) -> TableError {
        TableError::Internal { shard, action: "open", source: Arc::new(io::Error::other(message)) }
    }

    /// Whether the error stays until an administrator repairs the shard.
    pub fn is_damage(&self) -> bool {
        matches!(self, TableError::Damaged { .. } | TableError::Internal { .. })
    }

    /// Whether the store's directory was not in its place.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, TableError::Unavailable { source, .. } if posix_store::is_unreachable(source.as_ref()))
    }

    /// The errno that callers get: the store's own errno if it accepts no writes.
    pub fn errno(&self) -> Errno {
        match self {
            TableError::ReadOnly { errno, .. } => *errno,
            TableError::Unavailable { source, .. } => match source.downcast_ref::<io::Error>() {
                Some(error) => errno_of_store(error),
                None => self.io_error().map_or(Errno::EIO, errno_of_store),
            },
            _ => self.io_error().map_or(Errno::EIO, errno_of_store),
        }
    }

    /// The operating system's error behind this one, if there is one: a full disk (ENOSPC, EDQUOT), a failing disk
    /// (EIO), a store that became read-only (EROFS).
    pub fn io_error(&self) -> Option<&io::Error> {
        match self {
            TableError::Fenced { .. }
            | TableError::NotOwned { .. }
            | TableError::Closed { .. }
            | TableError::ReadOnly { .. } => None,
            TableError::Unavailable { source, .. }
            | TableError::Damaged { source, .. }
            | TableError::Internal { source, .. } => io_error_within(source.as_ref()),
        }
    }
}

/// The errno that callers get for a store error. Only errors that describe the volume as well as the store pass
/// through: a file missing in the store, for example, is damage and not ENOENT.
pub fn errno_of_store(error: &io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::StorageFull => Errno::ENOSPC,
        io::ErrorKind::QuotaExceeded => Errno::EDQUOT,
        io::ErrorKind::ReadOnlyFilesystem => Errno::EROFS,
        io::ErrorKind::TimedOut => Errno::ETIMEDOUT,
        _ => Errno::EIO,
    }
}

/// The part of an error that an administrator needs: the file, and the system's message. The names of the layers in
/// between help nobody, so they are left out.
fn plain(shard: ShardId, error: &(dyn Error + 'static)) -> String {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(ours) = error.downcast_ref::<LogError>() {
            return ours.to_string();
        }
        if let Some(lost) = error.downcast_ref::<MissingState>() {
            return lost.to_string();
        }
        if let Some(damaged) = error.downcast_ref::<DamagedObject>() {
            return damaged.to_string();
        }
        if let Some(StoreIoError { action, path, source }) = error.downcast_ref::<StoreIoError>() {
            return format!("cannot {action} shards/{path}: {source}");
        }
        next = error.source();
    }
    let text = error.to_string();
    let text = KINDS.iter().find_map(|kind| text.strip_prefix(kind)).unwrap_or(&text);
    let inner = LAYERS.iter().find_map(|layer| text.strip_prefix(layer)?.strip_suffix(')'));
    let name = VolumeDir::shard_name(shard);
    inner.unwrap_or(text).replace(&format!(" {name}/"), &format!(" shards/{name}/"))
}

/// The prefixes of SlateDB's error texts.
const KINDS: [&str; 3] = ["Data error: ", "Unavailable error: ", "Internal error: "];
/// The prefixes with which it wraps other errors.
const LAYERS: [&str; 2] = ["wal data error (", "object store error ("];
