//! What comes of giving frames to a run, and of the run.

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
    #[error("{path} exists; a run never writes over a file: move it away or give another name")]
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
    /// The run as a whole has failed and takes no more frames.
    #[error("the run has failed and takes no more frames: {0}")]
    Failed(String),
    /// The run is being ended, by whom it belongs to.
    #[error("the run is being ended and takes no more frames")]
    Closed,
    /// This frame cannot be written; the run goes on.
    #[error("frame {number} is refused: {why}")]
    Frame { number: u64, why: String },
    /// No room within the time given.
    #[error("the queue stayed full: frames come faster than they are compressed and written")]
    Full,
    /// A column of scalars that cannot be.
    #[error("the column `{name}` is refused: {why}")]
    Column { name: String, why: String },
}

/// What there is to do about this error of a store, besides what is done with the run; nothing, where its own text says
/// enough.
pub(crate) fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        _ if is_full(error) => "; the store is full: make room there before the next run",
        io::ErrorKind::FileTooLarge => {
            "; a file may not become larger here: raise the limit (`ulimit -f`) or use shorter runs"
        }
        _ => "",
    }
}

pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl WriteError {
    /// Whether there was no room for it in the store.
    pub fn is_full_store(&self) -> bool {
        match self {
            WriteError::Io { source, .. } => is_full(source),
            WriteError::Resume(error) => error.is_full_store(),
            _ => false,
        }
    }
}

impl RecoverError {
    /// Whether there was no room for it in the store.
    pub fn is_full_store(&self) -> bool {
        matches!(self, RecoverError::Io { source, .. } if is_full(source))
    }
}

/// A run's progress.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct WriterProgress {
    /// Frames of which anything was taken, each counted once.
    pub taken: u64,
    /// Frames by the level that all of them that had come has reached at least.
    pub written: u64,
    pub durable: u64,
    /// Frames, or regions of frames, refused because the queue was full.
    pub dropped: u64,
    pub stored_bytes: u64,
    /// The highest frame that readers find, plus one.
    pub published: u64,
    pub failure: Option<String>,
}

/// What a finished run has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Finished {
    #[serde(flatten)]
    pub counts: FrameCounts,
    pub file_bytes: u64,
    pub dropped: u64,
}
