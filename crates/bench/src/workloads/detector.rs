//! The detector service at the machine's limit: frames from simulated detectors over loopback into one file. The same
//! turns measure each stage alone, and one h5py process that is fed by the same stream.
//!
//! The stages of a pipeline share the processors. Its limit is therefore the number of processors divided by the sum of
//! the processor time per byte of each stage alone. The report's ratios, made turn by turn, are those of a case to this
//! limit and to its reference.

mod case;
mod h5py;
mod memory;
mod pipeline;
pub mod report;
mod stages;
mod writers;

pub use case::PipelineCase;

use crate::environment::Environment;
use crate::interrupt::{self, Interrupt};
use crate::progress::ProgressDisplay;
use crate::{Error, Result};
use report::{BenchTurn, DetectorReport};
use stages::Stages;
use std::path::{Path, PathBuf};
use varve_detector_filters::{Encoder, Filter};
use varve_detector_tools::simulator::{DetectorModel, Simulator};
use varve_env::private_file::make_directory;

/// Chunks are made before the run and sent in turn. They exceed the processor caches, as a real detector's chunks do.
const PREPARED_BYTES: usize = 128 << 20;
/// Fewer frames give no usable figures.
const FRAMES_MIN: u64 = 48;
/// Each connection has a sender of its own, and a machine cannot run more of them.
const CONNECTIONS_MAX: u16 = 32;
/// The Pilatus 6M test of the deliverable: the frame rates to try.
pub const RATES: [u32; 7] = [1, 5, 10, 20, 25, 40, 50];

#[derive(Clone, Debug)]
pub struct DetectorConfig {
    /// The directory for the files; each file is removed as soon as it has been measured.
    pub directory: PathBuf,
    pub model: DetectorModel,
    pub compress_ratio: f64,
    /// Frames of a run without a rate.
    pub frames: u64,
    /// Connections that carry the frames of such a run to the one service.
    pub connections: u16,
    /// The cases to run. Those of [`PipelineCase::FAST`] run in this order in each turn, and in reverse order in every
    /// other turn. Those at a rate run once.
    pub cases: Vec<PipelineCase>,
    /// Seconds of a run at a rate.
    pub rate_seconds: f64,
    pub repeat: u32,
    /// `varve` itself. The cases of several writers start it as processes.
    pub program: PathBuf,
    /// A Python with h5py and hdf5plugin; `None`: the h5py process is left out.
    pub python: Option<PathBuf>,
    pub progress: bool,
    pub arguments: Vec<String>,
}

impl DetectorConfig {
    fn check(&self) -> Result<()> {
        super::check_clients_and_repeat(&[1], self.repeat)?;
        let fail = |text: &str| Err(Error::Usage(text.to_owned()));
        if self.frames < FRAMES_MIN {
            return fail(&format!("a run has at least {FRAMES_MIN} frames: the figures of fewer mean nothing"));
        }
        if !(1..=CONNECTIONS_MAX).contains(&self.connections) {
            return Err(Error::Usage(format!("frames come on 1 to {CONNECTIONS_MAX} connections")));
        }
        if !(0.5..=3600.0).contains(&self.rate_seconds) {
            return fail("a run at a rate takes 0.5 to 3600 seconds");
        }
        if self.cases.is_empty() {
            return fail("no case is to be measured; name one");
        }
        if self.cases.iter().any(|case| matches!(case, PipelineCase::Rate(rate) if !(1..=10_000).contains(rate))) {
            return fail("rates go from 1 to 10000 frames a second");
        }
        Ok(())
    }
}

/// Data shared by the cases: frames and chunks, made once.
struct Material {
    simulator: Simulator,
    /// Chunks of frames 0 and on, filtered by bitshuffle+LZ4.
    chunks: Vec<Vec<u8>>,
}

impl Material {
    /// Makes the data for runs that send `frames` frames.
    fn make(model: DetectorModel, ratio: f64, frames: u64) -> Result<Material> {
        let simulator = Simulator::new(model, ratio, 1).map_err(|error| Error::Usage(error.to_string()))?;
        let mut encoder = Encoder::new(Filter::BSLZ4, simulator.model().element.size())
            .map_err(|error| Error::Usage(error.to_string()))?;
        let (mut chunks, mut bytes) = (Vec::new(), 0);
        for number in 0..frames {
            let mut chunk = Vec::new();
            encoder.encode(&simulator.frame(number), &mut chunk).map_err(|error| Error::Usage(error.to_string()))?;
            bytes += chunk.len();
            chunks.push(chunk);
            if bytes >= PREPARED_BYTES {
                break;
            }
        }
        Ok(Material { simulator, chunks })
    }

    fn frame_bytes(&self) -> f64 {
        let model = self.simulator.model();
        (model.width * model.height * model.element.size() as u64) as f64
    }

    /// Bytes of a chunk, on average.
    fn chunk_bytes(&self) -> f64 {
        self.chunks.iter().map(Vec::len).sum::<usize>() as f64 / self.chunks.len() as f64
    }
}

/// The directory of a run, removed at its end in all cases.
struct RunDirectory(PathBuf);

/// One per processor: with fewer connections than the stages can use, processors wait for the sender.
pub fn default_connections() -> u16 {
    stages::processors().try_into().unwrap_or(CONNECTIONS_MAX).min(CONNECTIONS_MAX)
}

/// The first of these Pythons that has h5py and hdf5plugin.
pub fn find_python(candidates: &[PathBuf]) -> Option<PathBuf> {
    candidates.iter().find(|python| h5py::works(python)).cloned()
}

impl RunDirectory {
    fn make(directory: &Path) -> Result<RunDirectory> {
        let path = directory.join(format!("varve-bench-detector.{}", std::process::id()));
        // An existing directory belongs to a process of the same number in another container.
        std::fs::create_dir_all(directory)
            .and_then(|()| make_directory(&path, 0o700))
            .map_err(Error::io(format!("cannot make {}", path.display())))?;
        Ok(RunDirectory(path))
    }
}

impl Drop for RunDirectory {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}, remove it by hand: {error}", self.0.display());
        }
    }
}

/// Measures and reports. All files of the run are removed, after success and after failure.
///
/// # Errors
/// If the configuration makes no sense, or a run fails: figures of failed runs mean nothing.
pub fn run(config: &DetectorConfig) -> Result<DetectorReport> {
    config.check()?;
    let _interrupt = Interrupt::listen();
    let environment = Environment::gather(&[])?;
    let place = RunDirectory::make(&config.directory)?;
    let material = Material::make(config.model.clone(), config.compress_ratio, config.frames)?;
    let mut report = DetectorReport::begin(config, &place.0)?;
    let (rates, mut fast): (Vec<PipelineCase>, Vec<PipelineCase>) =
        config.cases.iter().copied().partition(|case| matches!(case, PipelineCase::Rate(_)));
    let turns = if fast.is_empty() { 0 } else { config.repeat };
    let steps = u64::from(turns) * (fast.len() as u64 + 2) + rates.len() as u64;
    let progress = ProgressDisplay::new(config.progress, steps);
    for number in 0..turns {
        progress.show_line(format!("turn {}, stages", number + 1));
        let before = Stages::measure(&material, &place.0, config.frames)?;
        progress.advance(1);
        let mut cases = Vec::new();
        for case in &fast {
            interrupt::check()?;
            progress.show_line(format!("turn {}, {case}", number + 1));
            if let Some(measured) = case.run(config, &material, &place.0)? {
                cases.push((*case, measured));
            }
            progress.advance(1);
        }
        progress.show_line(format!("turn {}, stages again", number + 1));
        let stages = Stages::between(before, Stages::measure(&material, &place.0, config.frames)?);
        progress.advance(1);
        let mut turn = BenchTurn::new(stages, &material);
        cases.into_iter().for_each(|(case, measured)| turn.add(case, measured, &material));
        report.add(turn);
        // Reverses the order in every other turn, so that no case always runs first or last.
        fast.reverse();
    }
    if !rates.is_empty() {
        let pilatus = "pilatus6m".parse().expect("a model that exists");
        let material = Material::make(pilatus, config.compress_ratio, FRAMES_MIN)?;
        for case in rates {
            interrupt::check()?;
            progress.show_line(case.to_string());
            if let Some(measured) = case.run(config, &material, &place.0)? {
                report.add_rate(case, measured, &material);
            }
            progress.advance(1);
        }
    }
    drop(progress);
    Ok(report.finish(environment.finished()))
}
