//! The status of a run.

use super::{Run, RunState};
use crate::sink::RunSink;
use serde::Serialize;
use std::path::PathBuf;
use varve_detector_dataset::frame::AckLevel;
use varve_detector_dataset::structure::DatasetPlace;
use varve_detector_dataset::time::Nanoseconds;
use varve_detector_stream::FinishedHead;
use varve_detector_writer::WriterProgress;

/// The reply to `GET /runs/NAME`.
#[derive(Debug, Serialize)]
pub struct RunStatus {
    pub name: String,
    pub file: PathBuf,
    /// `waiting`, `running`, `ending`, `finished`, `aborted` or `failed`. A `waiting` run cannot be taken up from a
    /// previous service's files yet. A run that accepts nothing more because of a failure is `ending` until its file
    /// has been made valid, and then `failed`.
    pub state: &'static str,
    pub why: Option<String>,
    pub started_ns: Nanoseconds,
    pub connections: usize,
    #[serde(flatten)]
    pub progress: WriterProgress,
    /// Frames dropped by the service or its clients.
    pub dropped_frames: u64,
    pub damaged: u64,
    pub duplicate: u64,
    pub refused: u64,
    pub received_bytes: u64,
    /// The highest durable frame, if any.
    pub latest_durable: Option<u64>,
    /// Readers find so many frames at the beginning of the dataset. A lost frame stops it, unlike `latest_durable`.
    pub readable: u64,
    /// The datasets of the frames and of the scalars with which the run began.
    pub datasets: Vec<DatasetPlace>,
    /// Final counts of the run.
    pub finished: Option<FinishedHead>,
}

impl Run {
    pub fn status(&self) -> RunStatus {
        let sink = self.sink.read().as_ref().map(RunSink::state);
        let sink = sink.or_else(|| self.closing.lock().as_ref().map(|observe| observe()));
        let state = self.state.lock();
        let (name, ended) = match &*state {
            RunState::Waiting(_) => ("waiting", None),
            RunState::Running => ("running", None),
            RunState::Ending(..) => ("ending", None),
            RunState::Ended(ended) => (["finished", "aborted", "failed"][ended.how as usize], Some(ended.clone())),
        };
        drop(state);
        let tallied = self.tallies.read();
        let progress = match &ended {
            Some(ended) => ended.progress.clone(),
            None => sink.unwrap_or_default(),
        };
        // Clients learn of a failure before the run is ended because of it.
        let name = if name == "running" && progress.failure.is_some() { "ending" } else { name };
        let why = match &ended {
            Some(ended) => Some(ended.why.clone()).filter(|why| !why.is_empty()),
            None => self.awaits().or_else(|| progress.failure.clone()),
        };
        let dropped = ended.as_ref().map(|ended| ended.finished.dropped);
        RunStatus {
            name: self.request.name.clone(),
            file: self.path.clone(),
            state: name,
            why,
            started_ns: self.started,
            connections: self.clients.lock().connections(),
            dropped_frames: dropped.unwrap_or(progress.dropped + tallied.lost),
            progress,
            damaged: tallied.damaged,
            duplicate: tallied.duplicate,
            refused: tallied.refused,
            received_bytes: tallied.received_bytes,
            readable: self.board.first_gap(AckLevel::Durable),
            datasets: self.datasets.clone(),
            latest_durable: self
                .board
                .end(AckLevel::Durable)
                .checked_sub(1)
                .map(|latest| latest + self.request.description.first_frame),
            finished: ended.map(|ended| ended.finished),
        }
    }
}
