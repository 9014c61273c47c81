//! Recommended settings of a run, and the measurements behind them. They are part of a dataset spec and of the file.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use varve_detector_filters::Filter;
use varve_detector_hdf5::ElementType;

/// The recommended settings and the measurements behind them. A run that uses them stores them in its file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    pub model: String,
    pub element: ElementType,
    /// Sides of a frame, slowest first.
    pub frame: Vec<u64>,
    pub rate_hz: f64,
    pub directory: PathBuf,
    pub store: Store,
    /// Chunk sides as in a dataset spec; `None`: one frame.
    pub chunk: Option<Vec<u64>>,
    /// Writes end at multiples of this.
    pub alignment_bytes: u64,
    /// Number of threads that compress and write.
    pub writers: usize,
    pub filter: Filter,
    /// Durable frames per second in the best trial.
    pub frames_per_s: f64,
    /// `frames_per_s` divided by the required rate.
    pub margin: f64,
    pub filters: Vec<FilterProbe>,
    pub writes: Vec<WriteProbe>,
    pub trials: Vec<Trial>,
    /// Nanoseconds since 1970.
    pub advised_ns: u64,
}

/// Properties that a file system reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Store {
    /// The name that `mount` uses, or the magic number in hexadecimal.
    pub file_system: String,
    /// Preferred minimum size of a write.
    pub block_bytes: u64,
    /// Bytes that lie together on one server.
    pub stripe_bytes: Option<u64>,
    /// Number of servers or targets of a file.
    pub stripe_count: Option<u64>,
}

/// Result of one filter on all threads, without a store.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FilterProbe {
    pub filter: Filter,
    /// Plain bytes divided by stored bytes.
    pub ratio: f64,
    pub frames_per_s: f64,
}

/// Result of writing to the store without compression.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WriteProbe {
    pub writers: usize,
    /// Bytes in one write.
    pub block_bytes: u64,
    /// Includes the final sync.
    pub bytes_per_s: f64,
}

/// Result of a whole run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Chunk sides as in a dataset spec; `None`: one frame.
    #[serde(default)]
    pub chunk: Option<Vec<u64>>,
    pub filter: Filter,
    pub writers: usize,
    pub ratio: f64,
    /// Measured from the first frame until all frames were durable.
    pub frames_per_s: f64,
}

impl Advice {
    /// Whether the best trial is fast enough.
    pub fn reaches(&self) -> bool {
        self.margin >= 1.0
    }

    /// The bottleneck according to the measurements.
    pub fn narrowest(&self) -> &'static str {
        let stored = |trial: &&Trial| trial.filter == self.filter && trial.chunk == self.chunk;
        let bytes = self.frame.iter().product::<u64>() as f64 * self.element.size() as f64;
        let ratio = self.trials.iter().find(stored).map_or(1.0, |trial| trial.ratio);
        let store = self.writes.iter().map(|probe| probe.bytes_per_s).fold(0.0, f64::max) * ratio / bytes;
        let filters = self.filters.iter().filter(|probe| probe.filter == self.filter);
        let compression = filters.map(|probe| probe.frames_per_s).fold(f64::INFINITY, f64::min);
        if store < compression { "the store" } else { "compression" }
    }
}
