//! Recommends run settings with which a detector's frames reach a directory in time.
//!
//! The recommendation uses properties of the file system and measurements: filters on simulated frames, writers on the
//! store alone, and then whole runs of the most promising combinations. Entry: [`advise`].

mod probe;
mod probe_file;
mod request;
mod store;

pub use request::{AdviceRequest, AdviseError};

use crate::simulator::Simulator;
use probe::{Probe, rounded};
use varve_detector_dataset::advice::{Advice, FilterProbe, Store, Trial};
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::time::unix_nanos;
use varve_detector_hdf5::ElementType;

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
        advised_ns: unix_nanos(),
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

#[cfg(test)]
mod tests;
