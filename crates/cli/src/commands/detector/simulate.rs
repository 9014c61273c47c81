//! `varve detector simulate`: sends the frames of a simulated detector, or of an existing series, to a destination.

mod cbf;
mod file;
mod stop;
mod stream;
mod stream2;

use crate::commands::record::{advice as advice_of, metadata as metadata_of, structure, validators};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stop::StopFlag;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::FrameCounts;
use varve_detector_filters::Filter;
use varve_detector_hdf5::ElementType;
use varve_detector_tools::replay::FrameReplay;
use varve_detector_tools::simulator::{DetectorModel, Simulator};
use varve_detector_writer::Finished;

/// Play a simulated detector, or an existing series, into a file, a service, or CBF files
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    to: Destination,
    /// pilatus6m, eiger16m, pco4000, pco-edge, excalibur, or WIDTHxHEIGHTxTYPE (1024x512xu16)
    #[arg(long, default_value = "pilatus6m", conflicts_with = "replay")]
    model: DetectorModel,
    /// Play the frames of an HDF5 file, or of the CBF files of a directory, repeated as needed
    #[arg(long, value_name = "FILE|DIR")]
    replay: Option<PathBuf>,
    /// Dataset of the frames in the HDF5 file [default: the usual places]
    #[arg(long, value_name = "PATH", requires = "replay")]
    dataset: Option<String>,
    /// Frames a second; a frame that cannot be delivered in time is dropped and counted [default: as fast as possible]
    #[arg(long, value_name = "HZ", allow_negative_numbers = true, value_parser = validators::rate)]
    rate: Option<f64>,
    /// Frames of the run [default: 250, or the whole series with --replay]
    #[arg(long)]
    frames: Option<u64>,
    /// Compression ratio of the frames with bitshuffle+LZ4
    #[arg(long, value_name = "R", default_value_t = 6.0, conflicts_with = "replay")]
    compress_ratio: f64,
    /// Fraction of the frames that the detector loses, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    drop: f64,
    /// Seed; the same seed gives the same frames
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Chunk, filter, writers and alignment as `varve --json record advise` proposed them
    #[arg(long, value_name = "FILE", conflicts_with = "filter")]
    advice: Option<PathBuf>,
    /// raw, gzip[:1-9], lz4, zstd[:1-22], bslz4, bszstd[:1-22]; shuffle+ before gzip, lz4 or zstd
    #[arg(long, default_value = "bslz4")]
    filter: Filter,
    /// Groups and datasets of the file: raw, nexus, or an XML file in the format of areaDetector's HDF5 writer
    #[arg(long, value_name = "NAME|FILE", default_value = "nexus")]
    layout: PathBuf,
    /// Metadata of the whole run, as TOML or, in a .json file, JSON: a table `values` by name, a table `nxmx` for the
    /// structure nexus
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
    /// Threads that compress and write [default: one a processor]
    #[arg(long, value_parser = validators::threads)]
    threads: Option<usize>,
    #[command(flatten)]
    service: stream::ServiceArguments,
}

/// The destination of the frames.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Destination {
    /// HDF5 file to make; it must not exist. SIGINT and SIGTERM end it with the frames so far; the exit code is then
    /// 130
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// tcp://HOST:PORT: the service that listens there (`varve record serve`); zmq+tcp://HOST:PORT: a client that
    /// connects there, which receives stream2 as from a DECTRIS detector
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Directory for one CBF file per frame; it is made if missing
    #[arg(long, value_name = "DIR")]
    cbf: Option<PathBuf>,
}

/// A source of frames.
enum FrameSource {
    Simulated(Box<Simulator>),
    Replayed(FrameReplay),
}

/// Facts about the run for a sink.
struct SeriesInfo {
    element: ElementType,
    /// Sides of a frame, the slowest first.
    frame: Vec<u64>,
    frames: u64,
    rate: Option<f64>,
}

/// A destination of frames.
trait FrameSink {
    /// Whether an earlier simulator, which was killed, has delivered the frame already.
    fn has(&self, _number: u64) -> bool {
        false
    }

    /// Takes the frame out of `frame`. Returns `false` if it drops the frame.
    fn take(&mut self, number: u64, frame: &mut Vec<u8>) -> Result<bool>;

    /// Notes a frame that the detector dropped because it could not be delivered in time.
    fn dropped(&mut self) {}

    /// Ends the series and returns its final counts. If not `complete`, frames at its end are missing.
    fn finish(self: Box<Self>, complete: bool) -> Result<Option<Finished>>;
}

#[derive(Serialize)]
struct Simulated {
    /// File, directory or URL.
    out: String,
    /// Frames taken.
    frames: u64,
    /// Frames that an earlier simulator had delivered.
    already: u64,
    /// Frames that were not taken in time.
    dropped: u64,
    /// Whether a signal, or a frame that cannot be replayed, ended it before its last frame.
    broken_off: bool,
    /// Duration of the run, from its first frame until everything was durable or sent.
    seconds: f64,
    frames_per_s: f64,
    /// Frames a second that were asked for.
    rate: Option<f64>,
    /// Uncompressed bytes.
    bytes_per_s: f64,
    #[serde(flatten)]
    file: Option<InFile>,
}

/// Further counts of the file.
#[derive(Serialize)]
struct InFile {
    /// Includes late frames and duplicates.
    received: u64,
    missing: u64,
    damaged: u64,
    duplicate: u64,
    late: u64,
    partial: u64,
    file_bytes: u64,
}

impl InFile {
    fn of(Finished { counts, file_bytes, .. }: Finished) -> InFile {
        let FrameCounts { missing, damaged, duplicate, late, partial, .. } = counts;
        let received = counts.received + duplicate + late;
        InFile { received, missing, damaged, duplicate, late, partial, file_bytes }
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    if !(0.0..=1.0).contains(&arguments.drop) {
        return Err(Problem::usage(format!("--drop {} is not from 0 to 1", arguments.drop)));
    }
    if arguments.frames == Some(0) {
        return Err(Problem::usage("--frames is 0; a run has at least one frame")
            .next("Give a larger number, or omit --frames for 250 frames or the whole replayed series."));
    }
    // The service and the other destinations handle a simulator that disappears.
    let stop = if arguments.to.out.is_some() { StopFlag::on_signals()? } else { Arc::default() };
    let (source, series) = open(arguments)?;
    let (mut sink, out): (Box<dyn FrameSink>, String) = match &arguments.to {
        Destination { cbf: Some(directory), .. } => {
            (Box::new(cbf::CbfSink::begin(directory, &series)?), directory.display().to_string())
        }
        Destination { to: Some(url), .. } => match url.strip_prefix(stream::SCHEME) {
            Some(address) => (Box::new(stream::StreamSink::begin(url, address, arguments, &series)?), url.clone()),
            None => (Box::new(stream2::Stream2Sink::begin(url, &series, arguments.service.timeout.0)?), url.clone()),
        },
        Destination { out: Some(file), .. } => {
            (Box::new(file::FileSink::begin(file, arguments, &series)?), file.display().to_string())
        }
        Destination { out: None, to: None, cbf: None } => unreachable!("one of them is required"),
    };
    let start = Instant::now();
    let Played { frames, already, mut dropped, broken_off, unreadable } =
        play(arguments, (&source, &series), &mut *sink, (start, &stop))?;
    let finished = sink.finish(!broken_off)?;
    let seconds = start.elapsed().as_secs_f64();
    dropped = dropped.max(finished.map_or(0, |finished| finished.dropped));
    let frame_bytes = series.frame.iter().product::<u64>() as f64 * series.element.size() as f64;
    let simulated = Simulated {
        out,
        frames,
        already,
        dropped,
        broken_off,
        seconds,
        frames_per_s: frames as f64 / seconds,
        rate: series.rate,
        bytes_per_s: frames as f64 * frame_bytes / seconds,
        file: finished.map(InFile::of),
    };
    output.result("detector simulate", &simulated, lines)?;
    if let Some(problem) = unreadable {
        return Err(problem.next("The run ends with the frame before it."));
    }
    Ok(match (broken_off, dropped) {
        (true, _) => Exit::BrokenOff,
        (false, 0) => Exit::Done,
        (false, _) => Exit::Degraded,
    })
}

fn open(arguments: &Arguments) -> Result<(FrameSource, SeriesInfo)> {
    /// Ten seconds of a Pilatus 6M.
    const FRAMES: u64 = 250;
    let series = |element, frame, frames| SeriesInfo { element, frame, frames, rate: arguments.rate };
    if let Some(path) = &arguments.replay {
        let replay = FrameReplay::open(path, arguments.dataset.as_deref())
            .map_err(|error| Problem::new("cannot replay the series").caused_by(&error))?;
        let frames = arguments.frames.unwrap_or(replay.frames);
        let series = series(replay.element, replay.frame.clone(), frames);
        return Ok((FrameSource::Replayed(replay), series));
    }
    let simulator = Simulator::new(arguments.model.clone(), arguments.compress_ratio, arguments.seed)
        .map_err(|error| Problem::usage("--compress-ratio").caused_by(&error))?;
    let model = simulator.model();
    let series = series(model.element, vec![model.height, model.width], arguments.frames.unwrap_or(FRAMES));
    Ok((FrameSource::Simulated(Box::new(simulator)), series))
}

#[derive(Default)]
struct Played {
    frames: u64,
    already: u64,
    dropped: u64,
    broken_off: bool,
    /// The replayed series could not be read further, which ended the run.
    unreadable: Option<Problem>,
}

/// The dataset spec of the run, sent before its first frame.
fn description(arguments: &Arguments, series: &SeriesInfo) -> Result<DatasetSpec> {
    let mut description = DatasetSpec::new(series.element, series.frame.clone());
    description.scan = vec![Some(series.frames)];
    description.filter = arguments.filter;
    description.structure = structure(&arguments.layout)?;
    if let Some(metadata) = &arguments.metadata {
        metadata_of(metadata)?.add_to(&mut description);
    }
    if let Some(advice) = &arguments.advice {
        description.follow(&advice_of(advice)?).map_err(|why| Problem::usage("--advice").because(why))?;
    }
    Ok(description)
}

/// Plays the frames; returns the frames taken and dropped. A detector with a rate does not wait: it keeps a frame for
/// one second at most.
fn play(
    arguments: &Arguments,
    (source, series): (&FrameSource, &SeriesInfo),
    sink: &mut dyn FrameSink,
    (start, stop): (Instant, &StopFlag),
) -> Result<Played> {
    const MEMORY: Duration = Duration::from_secs(1);
    let mut played = Played::default();
    let mut frame = Vec::new();
    for number in 0..series.frames {
        let missing = matches!(source, FrameSource::Replayed(replay) if replay.is_missing(number));
        if missing || varve_detector_tools::simulator::is_lost(arguments.seed, number, arguments.drop) {
            continue;
        }
        if sink.has(number) {
            played.already += 1;
            continue;
        }
        let mut due = Duration::ZERO;
        if let Some(rate) = series.rate {
            // Frames delivered earlier took no time.
            due = Duration::from_secs_f64((number - played.already) as f64 / rate);
        }
        if stop.wait(due.saturating_sub(start.elapsed())) {
            played.broken_off = true;
            break;
        }
        if series.rate.is_some() && start.elapsed() > due + MEMORY {
            played.dropped += 1;
            sink.dropped();
            continue;
        }
        match source {
            FrameSource::Simulated(simulator) => simulator.frame_into(number, &mut frame),
            FrameSource::Replayed(replay) => {
                if let Err(error) = replay.frame_into(number, &mut frame) {
                    played.broken_off = true;
                    played.unreadable = Some(Problem::new(format!("cannot replay frame {number}")).caused_by(&error));
                    break;
                }
            }
        }
        if sink.take(number, &mut frame)? { played.frames += 1 } else { played.dropped += 1 }
    }
    Ok(played)
}

fn lines(simulated: &Simulated) -> String {
    let mut rows = vec![("to", simulated.out.clone()), ("frames", simulated.frames.to_string())];
    if simulated.broken_off {
        rows.push(("broken off", "the file ends with the last of them".to_owned()));
    }
    if simulated.already > 0 {
        rows.push(("there already", simulated.already.to_string()));
    }
    if let Some(file) = &simulated.file {
        rows.push(("missing", file.missing.to_string()));
    }
    rows.extend([
        ("dropped", simulated.dropped.to_string()),
        ("seconds", format!("{:.2}", simulated.seconds)),
        ("frames/s", format!("{:.1}", simulated.frames_per_s)),
        ("MB/s", format!("{:.1} before compression", simulated.bytes_per_s / 1e6)),
    ]);
    if let Some(rate) = simulated.rate.filter(|_| simulated.dropped > 0) {
        let fast = simulated.frames_per_s;
        rows.push(("too slow", format!("this machine and this store took {fast:.1} of {rate} frames/s")));
        rows.push(("", "give a lower --rate, a smaller --model, or no --rate to wait for each frame".to_owned()));
    }
    if let Some(file) = &simulated.file {
        rows.push(("file bytes", file.file_bytes.to_string()));
    }
    columns(&rows)
}
