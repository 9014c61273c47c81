//! Errors of submitting frames, and results of a run.

use std::io;
use std::path::PathBuf;
use varve_detector_dataset::frame::FrameCounts;
use varve_detector_dataset::limits::BadDatasetSpec;
use varve_detector_file::recover::RecoverError;
use varve_detector_file::store_error::{advice, is_full};
use varve_detector_filters::PluginError;

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

/// A second writer would use the same addresses for frames whose arrival this writer does not know of.
pub const ONE_WRITER: &str = "a run without an index has one writer; let it allocate packed or sparse";

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
