//! Errors of submitting frames, and results of a run.

use crate::catalog::FrameCounts;
use crate::dataset_spec::BadDatasetSpec;
use crate::filters::PluginError;
use crate::recover::RecoverError;
use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    #[error(transparent)]
    Description(#[from] BadDatasetSpec),
    #[error("{path} exists; a run never overwrites a file: move it or give another name")]
    Exists { path: PathBuf },
    #[error(
        "{path} is the journal of a run that did not end in order, or still runs; \
         run `varve record recover` on the file beside it first"
    )]
    Unfinished { path: PathBuf },
    #[error("{path}: {source}{}", advice(source))]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Plugin(#[from] PluginError),
    #[error(transparent)]
    Resume(#[from] RecoverError),
    /// The whole run has failed and accepts no more frames.
    #[error("the run has failed and accepts no more frames: {0}")]
    Failed(String),
    /// The run is being ended by its owner.
    #[error("the run is ending and accepts no more frames")]
    Closed,
    /// This frame cannot be written; the run continues.
    #[error("frame {number} is refused: {why}")]
    Frame { number: u64, why: String },
    /// The queue had no space within the given time.
    #[error("the queue stayed full: frames come faster than they are compressed and written")]
    Full,
    /// Invalid column of scalars.
    #[error("the column `{name}` is refused: {why}")]
    Column { name: String, why: String },
}

/// Remedy for an error of a store, to be added to its text; empty if the text suffices.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if is_full(error) => "; the store is full: free space there before the next run",
        io::ErrorKind::FileTooLarge => "; the file size limit is reached: raise it (`ulimit -f`) or use shorter runs",
        _ => "",
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl WriteError {
    /// Whether the cause is a full store.
    pub fn is_full_store(&self) -> bool {
        match self {
            WriteError::Io { source, .. } => is_full(source),
            WriteError::Resume(error) => error.is_full_store(),
            _ => false,
        }
    }
}

impl RecoverError {
    /// Whether the cause is a full store.
    pub fn is_full_store(&self) -> bool {
        matches!(self, RecoverError::Io { source, .. } if is_full(source))
    }
}

#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WriterProgress {
    /// Frames of which any part was taken, each counted once.
    pub taken: u64,
    /// Number of frames whose received parts have all reached at least this level.
    pub written: u64,
    pub durable: u64,
    /// Frames, or regions of frames, refused because the queue was full.
    pub dropped: u64,
    pub stored_bytes: u64,
    /// One past the highest frame visible to readers.
    pub published: u64,
    pub failure: Option<String>,
}

/// Result of a finished run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finished {
    #[serde(flatten)]
    pub counts: FrameCounts,
    pub file_bytes: u64,
    pub dropped: u64,
}
