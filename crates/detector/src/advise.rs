//! Recommends run settings with which a detector's frames reach a directory in time.
//!
//! The recommendation uses properties of the file system and measurements: filters on simulated frames, writers on the
//! store alone, and then whole runs of the most promising combinations. Entry: [`advise`].

mod probe;
mod store;

pub use probe::{FilterProbe, Trial, WriteProbe};
pub use store::Store;

use crate::dataset_spec::DatasetSpec;
use crate::filters::Filter;
use crate::hdf5::ElementType;
use crate::simulator::{DetectorModel, OutOfReach, Simulator};
use crate::writer::{Settings, WriteError};
use probe::Probe;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// With at least this margin, a smaller file is preferred to a greater margin.
const MARGIN_WANTED: f64 = 1.5;
/// Alignment used when the file system reports no stripe size: a write size that every store handles well.
const ALIGNMENT_BYTES: u64 = 4 << 20;
/// Stripes shorter than this are combined into writes of at least this size.
const ALIGNMENT_BYTES_MIN: u64 = 1 << 20;
/// Chunks below this size may cost more in the index than they are worth, so several frames to a chunk are tried.
const CHUNK_BYTES_MIN: u64 = 1 << 20;
/// Chunks above this size keep one thread busy for too long while others wait, so frames are divided.
const CHUNK_BYTES_MAX: u64 = 64 << 20;

/// The parameters of [`advise`].
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

/// Probes the directory for about [`AdviceRequest::time`]. All probe files are removed again.
///
/// # Errors
/// If the directory cannot be written, or has too little free space.
pub fn advise(request: &AdviceRequest) -> Result<Advice, AdviseError> {
    let io = |source| AdviseError::Io { path: request.directory.clone(), source };
    let simulator = Simulator::new(request.model.clone(), request.ratio, 1)?;
    let frames: Vec<Vec<u8>> = (0..4).map(|number| simulator.frame(number)).collect();
    let frame = vec![request.model.height, request.model.width];
    let probe = Probe::new(request, frames).map_err(io)?;
    let room = store::room(&request.directory).map_err(io)?;
    probe.check_room(room)?;
    let store = probe.store().map_err(io)?;
    let alignment_bytes = alignment(&store);
    let chunks = chunks(&frame, request.model.element, request.rate);
    let filters = probe.filters(request.time.mul_f64(0.25)).map_err(io)?;
    let writes = probe.writes(alignment_bytes, request.time.mul_f64(0.35)).map_err(io)?;
    let best = writes.iter().max_by(|one, other| one.bytes_per_s.total_cmp(&other.bytes_per_s));
    let (writers, bytes_per_s) = best.map_or((1, 0.0), |best| (best.writers, best.bytes_per_s));
    // The same threads compress and then write, so the slower step bounds the rate.
    let promise = |probe: &FilterProbe| probe.frames_per_s.min(bytes_per_s * probe.ratio / frame_bytes(request) as f64);
    let mut promising: Vec<&FilterProbe> = filters.iter().collect();
    promising.sort_by(|one, other| promise(other).total_cmp(&promise(one)));
    let kept = promising.iter().take(probe::FILTERS_TRIED);
    let time = request.time.mul_f64(0.4) / (kept.len() * chunks.len()) as u32;
    let mut trials = Vec::new();
    for candidate in kept {
        let threads = if candidate.filter.is_raw() { writers } else { writers.max(request.threads_max) };
        for chunk in &chunks {
            let mut description = DatasetSpec::new(request.model.element, frame.clone());
            (description.chunk, description.filter) = (chunk.clone(), candidate.filter);
            trials.push(probe.trial(description, (threads, alignment_bytes), time)?);
        }
    }
    let chosen = choose(&trials, request.rate).clone();
    Ok(Advice {
        model: request.name.clone(),
        element: request.model.element,
        frame,
        rate_hz: request.rate,
        directory: request.directory.clone(),
        store,
        chunk: chosen.chunk,
        alignment_bytes,
        writers: chosen.writers,
        filter: chosen.filter,
        frames_per_s: chosen.frames_per_s,
        margin: rounded(chosen.frames_per_s / request.rate),
        filters,
        writes,
        trials,
        advised_ns: crate::writer::unix_nanos(),
    })
}

/// Returns the trial with the smallest file among those with enough margin, and of these the one with the largest
/// chunks. If no trial has enough margin, returns the fastest.
fn choose(trials: &[Trial], rate: f64) -> &Trial {
    let enough = trials.iter().filter(|trial| trial.frames_per_s >= MARGIN_WANTED * rate);
    let elements = |trial: &Trial| trial.chunk.as_ref().map_or(0, |chunk| chunk.iter().product::<u64>());
    let smallest = enough.max_by(|one, other| match one.filter == other.filter {
        true => elements(one).cmp(&elements(other)),
        false => one.ratio.total_cmp(&other.ratio),
    });
    let fastest = || trials.iter().max_by(|one, other| one.frames_per_s.total_cmp(&other.frames_per_s));
    smallest.or_else(fastest).expect("some filters were tried")
}

fn frame_bytes(request: &AdviceRequest) -> u64 {
    request.model.height * request.model.width * request.model.element.size() as u64
}

fn alignment(store: &Store) -> u64 {
    match store.stripe_bytes {
        Some(stripe) => stripe * ALIGNMENT_BYTES_MIN.div_ceil(stripe),
        None => ALIGNMENT_BYTES.next_multiple_of(store.block_bytes.max(1)),
    }
}

/// Chunk shapes to try: one frame, or a part of it if it is very large, and several frames if one is small. Frames of
/// one chunk arrive within a second.
fn chunks(frame: &[u64], element: ElementType, rate: f64) -> Vec<Option<Vec<u64>>> {
    let (height, width) = (frame[0], frame[1]);
    let bytes = height * width * element.size() as u64;
    if bytes > CHUNK_BYTES_MAX {
        return vec![Some(vec![height.div_ceil(bytes.div_ceil(CHUNK_BYTES_MAX)), width])];
    }
    let together = CHUNK_BYTES_MIN.div_ceil(bytes).min((rate as u64).max(1));
    let several = (together > 1).then(|| vec![together, height, width]);
    [None].into_iter().chain(several.map(Some)).collect()
}

/// Rounds to three decimals, so that the number survives a round trip through JSON.
fn rounded(value: f64) -> f64 {
    (value * 1000.0).round() / 1000.0
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

    /// Copies the recommendation into a dataset spec.
    ///
    /// # Errors
    /// If the run's frames have another shape or element type.
    pub fn apply(&self, description: &mut DatasetSpec) -> Result<(), String> {
        if self.frame != description.frame || self.element != description.element {
            return Err(format!(
                "the advice is for frames of {:?} {}, the run has frames of {:?} {}",
                self.frame,
                self.element.name(),
                description.frame,
                description.element.name()
            ));
        }
        if let Some(chunk) = &self.chunk {
            let within = chunk[chunk.len() - self.frame.len()..].to_vec();
            let scan = description.scan.len();
            let mut whole = vec![1; scan];
            if chunk.len() > self.frame.len() {
                whole[scan - 1] = chunk[0].min(description.scan[scan - 1].unwrap_or(u64::MAX)).max(1);
            }
            whole.extend(within);
            description.chunk = Some(whole);
        } else {
            description.chunk = None;
        }
        description.filter = self.filter;
        description.advice = Some(Box::new(self.clone()));
        Ok(())
    }

    /// The writer settings of a run that uses the recommendation.
    pub fn settings(&self, settings: Settings) -> Settings {
        Settings {
            threads: self.writers.max(1),
            stripe_bytes: self.alignment_bytes,
            extent_bytes: settings.extent_bytes.next_multiple_of(self.alignment_bytes),
            ..settings
        }
    }
}

/// Removes the files of a probe when dropped, even after a failure.
struct RemoveOnDrop(PathBuf);

impl RemoveOnDrop {
    fn files(&self) -> [PathBuf; 2] {
        [self.0.clone(), crate::journal::path_beside(&self.0)]
    }
}

impl Drop for RemoveOnDrop {
    fn drop(&mut self) {
        for file in self.files() {
            match std::fs::remove_file(&file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!("cannot remove the probe file {}: {error}", file.display());
                }
                _ => {}
            }
        }
    }
}

/// A random name that no other process uses.
fn scratch(directory: &Path, what: &str) -> RemoveOnDrop {
    let random: [u8; 8] = varve_env::random::bytes();
    RemoveOnDrop(directory.join(format!(".varve-advise-{:016x}-{what}", u64::from_le_bytes(random))))
}

#[cfg(test)]
mod tests;
