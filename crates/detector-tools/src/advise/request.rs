//! The parameters of [`advise`](super::advise), and its errors.

use crate::simulator::{DetectorModel, OutOfReach};
use std::io;
use std::path::PathBuf;
use std::time::Duration;
use varve_detector_writer::WriteError;

/// The parameters of [`advise`](super::advise).
#[derive(Clone, Debug)]
pub struct AdviceRequest {
    pub directory: PathBuf,
    pub name: String,
    pub model: DetectorModel,
    /// Frames per second.
    pub rate: f64,
    /// Compression ratio of the frames with bitshuffle+LZ4.
    pub ratio: f64,
    /// Total time for the probes.
    pub time: Duration,
    /// Upper limit for the number of threads.
    pub threads_max: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} has {free} bytes free, too little for a probe: free at least {needed}")]
    Room { path: PathBuf, free: u64, needed: u64 },
    #[error("a trial run failed: {0}")]
    Trial(#[from] WriteError),
    #[error(transparent)]
    Model(#[from] OutOfReach),
}
