//! Detector files: CBF images at a fixed rate, in one or several streams. The figures are the sustained rate and the
//! lateness of each image behind its time.

use super::campaign::{Campaign, CampaignConfig, Point};
use super::data::no_library;
use super::{Job, RankWork, check_clients_and_repeat};
use crate::measure::Percentiles;
use crate::ranks::{PhaseRecord, RankContext, Recorder};
use crate::results::{Figure, Parameters, RunResults};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use varve_detector_tools::cbf::CbfImage;
use varve_detector_tools::simulator::{DetectorModel, Simulator};

/// The evaluation of the deliverable: 4,000 images.
pub const IMAGES: u64 = 4000;
/// The rates of the deliverable are between these.
pub const RATES: [f64; 5] = [1.0, 10.0, 20.0, 25.0, 50.0];
pub const IMAGES_MAX: u64 = 10_000_000;
/// No detector that writes a file an image is faster.
pub const RATE_MAX: f64 = 100_000.0;
/// Different images of a stream; encoding one takes longer than writing it.
const DISTINCT: u64 = 4;
const SEED: u64 = 1;
/// Waits are in pieces, so that a stream sees the end of the run.
const WAIT_PIECE: Duration = Duration::from_millis(100);
const MIB: f64 = 1048576.0;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ImagesOptions {
    /// Images of each stream.
    pub images: u64,
    /// Images a second of each stream.
    pub rate_hz: f64,
    /// As text, as on the command line.
    pub model: String,
    /// fsync each image.
    pub sync: bool,
}

pub struct ImagesConfig {
    pub campaign: CampaignConfig,
    /// Images of all streams together.
    pub images: u64,
    /// Images a second of all streams together.
    pub rates_hz: Vec<f64>,
    pub streams: Vec<usize>,
    /// Its name on the command line.
    pub model: String,
    pub sync: bool,
    /// A run is no longer than that: slow rates write fewer images.
    pub seconds_max: Option<f64>,
    pub repeat: u32,
}

/// Measures and reports. All files of the run are removed, after success and after failure.
///
/// # Errors
/// If nothing was measured. Later failures are in the results.
pub fn run(config: &ImagesConfig) -> Result<RunResults> {
    check_clients_and_repeat(&config.streams, config.repeat)?;
    no_library(&config.campaign.via)?;
    if config.images == 0 || config.images > IMAGES_MAX {
        return Err(Error::Usage(format!("1 to {IMAGES_MAX} images")));
    }
    if config.rates_hz.is_empty() || config.rates_hz.iter().any(|rate| !(*rate > 0.0 && *rate <= RATE_MAX)) {
        return Err(Error::Usage(format!("rates are above 0 and at most {RATE_MAX} images a second")));
    }
    config.model.parse::<DetectorModel>().map_err(|error| Error::Usage(error.to_string()))?;
    let most = config.streams.iter().copied().max().unwrap_or(1);
    let mut campaign = Campaign::open(&config.campaign, "bench images", most, None)?;
    let streams = campaign.fixed_clients().map_or(config.streams.clone(), |ranks| vec![ranks]);
    let outcome = streams.iter().try_for_each(|streams| {
        config.rates_hz.iter().try_for_each(|rate| {
            (0..config.repeat).try_for_each(|turn| {
                let point = point(config, *streams, *rate);
                campaign.turn(&point, turn, &|phases| figures(phases, *rate))
            })
        })
    });
    campaign.finish(outcome)
}

fn point(config: &ImagesConfig, streams: usize, rate_hz: f64) -> Point {
    let most = config.seconds_max.map_or(config.images, |seconds| ((seconds * rate_hz) as u64).max(1));
    let images = config.images.min(most);
    let options = ImagesOptions {
        images: (images / streams as u64).max(1),
        rate_hz: rate_hz / streams as f64,
        model: config.model.clone(),
        sync: config.sync,
    };
    let parameters = Parameters::from([
        ("rate_hz".to_owned(), rate_hz.into()),
        ("streams".to_owned(), streams.into()),
        ("images".to_owned(), images.into()),
        ("model".to_owned(), config.model.clone().into()),
    ]);
    Point { workload: "images", clients: streams, parameters, work: RankWork::Images(options) }
}

fn figures(phases: &[PhaseRecord], rate_hz: f64) -> Vec<Figure> {
    let Some(images) = phases.iter().find(|phase| phase.phase == EXPERIMENT && phase.operations > 0) else {
        return Vec::new();
    };
    let mut figures = paced_figures(images, rate_hz);
    let drain = phases.iter().find(|phase| phase.phase == "drain" && phase.operations > 0);
    if let Some(drain) = drain {
        figures.push(Figure::plain("drain", "s", false, drain.seconds()));
    }
    figures
}

/// The figures of an experiment with a fixed rate.
pub(super) fn paced_figures(images: &PhaseRecord, rate_hz: f64) -> Vec<Figure> {
    let lateness: Percentiles = images.lateness.percentiles();
    let sustained = images.operations as f64 / images.seconds();
    vec![
        Figure::rate("sustained", "frames/s", sustained.min(rate_hz), EXPERIMENT),
        Figure::plain("written", "MiB/s", true, images.bytes as f64 / MIB / images.seconds()),
        Figure::plain("lateness_p50", "ms", false, lateness.p50 / 1e3),
        Figure::plain("lateness_p99", "ms", false, lateness.p99 / 1e3),
        Figure::plain("lateness_max", "ms", false, lateness.max / 1e3),
        Figure::plain("missed", "frames", false, images.missed as f64),
    ]
}

/// The phase of the paced stream.
pub(super) const EXPERIMENT: &str = "experiment";

pub(crate) fn run_rank(job: &Job, options: &ImagesOptions, context: &RankContext<'_>) -> Result<()> {
    let via = job.target()?;
    let directory = via.directory().join(&job.directory);
    let stream = ImageStream::new(via.to_string(), directory.clone(), context.rank, options)?;
    context.phase(EXPERIMENT, |recorder| stream.write(recorder))?;
    context.phase("drain", |recorder| {
        if context.rank != 0 {
            return Ok(());
        }
        let failed = |source| stream.failed("sync", &directory, source);
        let opened = std::fs::File::open(&directory).map_err(failed)?;
        rustix::fs::syncfs(&opened).map_err(|errno| failed(errno.into()))?;
        recorder.done(0)
    })
}

/// One stream of images, each a file.
pub(super) struct ImageStream {
    via: String,
    directory: PathBuf,
    number: usize,
    images: u64,
    period: Duration,
    sync: bool,
    encoded: Encoded,
}

impl ImageStream {
    pub(super) fn new(via: String, directory: PathBuf, number: usize, options: &ImagesOptions) -> Result<ImageStream> {
        let usage = |text: String| Error::Usage(format!("cannot make images of {}: {text}", options.model));
        let encoded = encoded(&options.model).map_err(usage)?;
        Ok(ImageStream {
            via,
            directory,
            number,
            images: options.images,
            period: Duration::from_secs_f64(1.0 / options.rate_hz),
            sync: options.sync,
            encoded,
        })
    }

    pub(super) fn path(directory: &Path, stream: usize, number: u64) -> PathBuf {
        directory.join(format!("run_{stream:02}_{:06}.cbf", number + 1))
    }

    /// Writes each image at its time. An image that is late does not move the times of later ones.
    pub(super) fn write(&self, recorder: &mut Recorder<'_>) -> Result<()> {
        let begun = recorder.begun();
        for number in 0..self.images {
            let due = begun + self.period.mul_f64(number as f64);
            wait_until(due, recorder)?;
            let path = ImageStream::path(&self.directory, self.number, number);
            let image = &self.encoded[(number % DISTINCT) as usize % self.encoded.len()];
            let started = Instant::now();
            self.write_one(&path, image).map_err(|source| self.failed("write", &path, source))?;
            let late = Instant::now() - due;
            recorder.late(late, late > self.period);
            recorder.done_since(started, image.len() as u64)?;
        }
        Ok(())
    }

    fn write_one(&self, path: &Path, image: &[u8]) -> std::io::Result<()> {
        let mut file = std::fs::File::options().write(true).create_new(true).open(path)?;
        file.write_all(image)?;
        if self.sync { file.sync_all() } else { Ok(()) }
    }

    pub(super) fn failed(&self, operation: &'static str, path: &Path, source: std::io::Error) -> Error {
        Error::Operation { via: self.via.clone(), operation, path: path.display().to_string(), source }
    }
}

pub(super) fn wait_until(due: Instant, recorder: &Recorder<'_>) -> Result<()> {
    loop {
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        recorder.check()?;
        std::thread::sleep(left.min(WAIT_PIECE));
    }
}

type Encoded = Arc<Vec<Vec<u8>>>;

/// The images of one model, made once in a process: making them takes longer than writing them.
fn encoded(name: &str) -> std::result::Result<Encoded, String> {
    static KNOWN: Mutex<Option<(String, Encoded)>> = Mutex::new(None);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, images)) = known.as_ref().filter(|(of, _)| of == name) {
        return Ok(Arc::clone(images));
    }
    let model: DetectorModel = name.parse().map_err(|error| format!("{error}"))?;
    let images = Arc::new(encode(model, SEED)?);
    *known = Some((name.to_owned(), Arc::clone(&images)));
    Ok(images)
}

/// Encoded images of the model's frames.
fn encode(model: DetectorModel, seed: u64) -> std::result::Result<Vec<Vec<u8>>, String> {
    /// As the counts of a diffraction pattern.
    const COMPRESSION_RATIO: f64 = 4.0;
    let (width, height, element) = (model.width, model.height, model.element);
    let simulator = Simulator::new(model, COMPRESSION_RATIO, seed).map_err(|error| format!("{error:?}"))?;
    let header = ["Detector: Varve simulator".to_owned()];
    let image = |number: u64| {
        let pixels = simulator.frame(number);
        let image = CbfImage { width, height, element, pixels };
        image.encode(&format!("run_{number:06}"), &header).map_err(|error| error.to_string())
    };
    (0..DISTINCT).map(image).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::campaign::tests::on_threads;

    #[test]
    fn images_come_at_their_rate_in_several_streams() {
        let dir = tempfile::tempdir().unwrap();
        let config = ImagesConfig {
            campaign: on_threads(&[dir.path()]),
            images: 20,
            rates_hz: vec![50.0],
            streams: vec![1, 2],
            model: "64x32xu16".to_owned(),
            sync: false,
            seconds_max: None,
            repeat: 1,
        };
        let results = run(&config).unwrap();
        assert_eq!(results.error, None);
        let found = |metric: &str| results.results.iter().filter(|found| found.metric == metric).collect::<Vec<_>>();
        let rates = found("sustained");
        assert_eq!(rates.len(), 2);
        // The last image is due after 19 periods; a slow machine may take longer.
        assert!(rates.iter().all(|rate| rate.samples[0] > 1.0 && rate.samples[0] <= 50.0), "{rates:?}");
        assert_eq!(found("lateness_p99").len(), 2);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn images_of_a_stream_are_whole_cbf_files() {
        let encoded = encode("64x32xu16".parse().unwrap(), 3).unwrap();
        assert_eq!(encoded.len() as u64, DISTINCT);
        let image = varve_detector_tools::cbf::decode(&encoded[1]).unwrap();
        assert_eq!((image.width, image.height), (64, 32));
        assert_ne!(encoded[0], encoded[1]);
    }
}
