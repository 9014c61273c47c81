//! Results and errors of a recovery.

use super::without_journal::NoJournal;
use crate::journal::{Damage, JournalError};
use crate::store_error::is_full;
use std::io;
use std::path::PathBuf;
use varve_detector_dataset::frame::FrameCounts;
use varve_detector_dataset::ranges::Ranges;

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{path} is still being written by a running writer; stop that run, then recover")]
    Running { path: PathBuf },
    #[error("{path} needs no recovery: there is no journal beside it, and it is finished")]
    NothingToDo { path: PathBuf },
    #[error(transparent)]
    NoJournal(#[from] NoJournal),
    #[error("{path} is not a recoverable run file: {why}")]
    Foreign { path: PathBuf, why: String },
    #[error("{path} does not exist, but its journal {journal} records {frames} frames in it: put it back where it was")]
    TakenAway { path: PathBuf, journal: PathBuf, frames: usize },
    #[error("{journal} is not a run's journal any more ({why}), and {path} {what}")]
    Headless { journal: PathBuf, why: String, path: PathBuf, what: String },
}

/// Result of a recovery.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    #[serde(flatten)]
    pub counts: FrameCounts,
    /// Journal bytes of a record that a crash cut short.
    pub torn_bytes: u64,
    /// Damaged parts of the journal before those bytes.
    pub journal_damage: Damage,
    /// Frames restored from the file's last commit, or from a damaged record that the file's content confirms.
    pub restored: u64,
    /// New path of a damaged journal.
    pub damaged_journal: Option<PathBuf>,
    /// Frames that are in the file completely and unchanged.
    #[serde(skip)]
    pub whole: Ranges,
    /// Set if the journal's head is lost, so that its run is unknown: the file then has its last commit and nothing
    /// more.
    pub journal_head: Option<Headless>,
}

/// Loss caused by a damaged journal head.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Headless {
    /// Defect of the head.
    pub why: String,
    /// Number of frames in the journal's other records that the last commit does not have.
    pub frames: u64,
}

impl RecoverError {
    /// Whether the cause is a full store.
    pub fn is_full_store(&self) -> bool {
        matches!(self, RecoverError::Io { source, .. } if is_full(source))
    }
}
