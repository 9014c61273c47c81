//! `varve detector simulate`: a simulated detector's run, or one that was written before, to wherever frames go.

mod cbf;
mod file;
mod stop;
mod stream;
mod stream2;

use crate::commands::record::{Metadata, advice as advice_of, structure, validators};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use stop::StopFlag;
use varve_detector::catalog::FrameCounts;
use varve_detector::dataset_spec::DatasetSpec;
use varve_detector::filters::Filter;
use varve_detector::frame::ElementType;
use varve_detector::replay::FrameReplay;
use varve_detector::simulator::{DetectorModel, Simulator};
use varve_detector::writer::Finished;

/// Play a simulated detector, or a series that exists, into a file, a service, or CBF files
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(flatten)]
    to: Destination,
    /// pilatus6m, eiger16m, pco4000, pco-edge, excalibur, or WIDTHxHEIGHTxTYPE (1024x512xu16)
    #[arg(long, default_value = "pilatus6m", conflicts_with = "replay")]
    model: DetectorModel,
    /// Play the frames of an HDF5 file, or of the CBF files of a directory, again and again if need be
    #[arg(long, value_name = "FILE|DIR")]
    replay: Option<PathBuf>,
    /// Where in the HDF5 file the frames are [default: the usual places]
    #[arg(long, value_name = "PATH", requires = "replay")]
    dataset: Option<String>,
    /// Frames a second; one that cannot be given away in time is dropped and counted [default: as fast as they are taken]
    #[arg(long, value_name = "HZ", allow_negative_numbers = true, value_parser = validators::rate)]
    rate: Option<f64>,
    /// Frames of the run [default: 250, or all that are replayed]
    #[arg(long)]
    frames: Option<u64>,
    /// How far bitshuffle+LZ4 is to compress the frames
    #[arg(long, value_name = "R", default_value_t = 6.0, conflicts_with = "replay")]
    compress_ratio: f64,
    /// Share of the frames that the detector loses, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    drop: f64,
    /// The same seed gives the same frames
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Chunk, filter, writers and alignment as `varve --json record advise` proposed them
    #[arg(long, value_name = "FILE", conflicts_with = "filter")]
    advice: Option<PathBuf>,
    /// raw, gzip[:1-9], lz4, zstd[:1-22], bslz4, bszstd[:1-22]; shuffle+ before gzip, lz4 or zstd
    #[arg(long, default_value = "bslz4")]
    filter: Filter,
    /// Groups and datasets of the file: raw, nexus, or an XML file as areaDetector's HDF5 writer takes it
    #[arg(long, value_name = "raw|nexus|FILE", default_value = "nexus")]
    layout: PathBuf,
    /// What holds for the whole run, as TOML or, in a file called so, JSON: a table `values` by name, a table `nxmx`
    /// for the structure nexus
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
    /// Threads that compress and write [default: one a processor]
    #[arg(long, value_parser = validators::threads)]
    threads: Option<usize>,
    #[command(flatten)]
    service: stream::ServiceArguments,
}

/// Where the frames go.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Destination {
    /// HDF5 file to make; it must not exist. SIGINT and SIGTERM end it with the frames so far, and the exit code is 130
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// tcp://HOST:PORT: to the service that listens there (`varve record serve`); zmq+tcp://HOST:PORT: as a DECTRIS
    /// detector sends them (stream2), to the client that connects there
    #[arg(long, value_name = "URL")]
    to: Option<String>,
    /// Directory for one CBF file a frame; it is made if need be
    #[arg(long, value_name = "DIR")]
    cbf: Option<PathBuf>,
}

/// Frames, from wherever they come.
enum FrameSource {
    Simulated(Box<Simulator>),
    Replayed(FrameReplay),
}

/// What a sink must know of the run.
struct SeriesInfo {
    element: ElementType,
    /// Sides of a frame, the slowest first.
    frame: Vec<u64>,
    frames: u64,
    rate: Option<f64>,
}

/// Somewhere that frames go.
trait FrameSink {
    /// Whether the frame was given away before, by a simulator that was killed.
    fn has(&self, _number: u64) -> bool {
        false
    }

    /// Takes a frame out of `frame`, or drops it: `false`.
    fn take(&mut self, number: u64, frame: &mut Vec<u8>) -> Result<bool>;

    /// All frames have been taken, or, if not `complete`, no more will come; what is known of them then.
    fn finish(self: Box<Self>, complete: bool) -> Result<Option<Finished>>;
}

#[derive(Serialize)]
struct Simulated {
    /// File, directory or URL.
    out: String,
    /// Frames taken.
    frames: u64,
    /// Frames that an earlier simulator had given away.
    already: u64,
    /// Frames that were not taken in time.
    dropped: u64,
    /// A signal, or a frame that cannot be replayed, ended it before its last frame.
    broken_off: bool,
    /// Of the run, from its first frame until everything was durable or sent.
    seconds: f64,
    frames_per_s: f64,
    /// Uncompressed.
    bytes_per_s: f64,
    #[serde(flatten)]
    file: Option<InFile>,
}

/// What the file tells besides.
#[derive(Serialize)]
struct InFile {
    /// Late ones and duplicates with them.
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
        return Err(Problem::usage("--frames 0: a run has at least one frame")
            .next("Leave it out for 250 frames, or all that are replayed."));
    }
    // Others than the file know what to make of a simulator that is gone.
    let stop = if arguments.to.out.is_some() { StopFlag::on_signals()? } else { Arc::default() };
    let (source, series) = open(arguments)?;
    let (mut sink, out): (Box<dyn FrameSink>, String) = match &arguments.to {
        Destination { cbf: Some(directory), .. } => {
            (Box::new(cbf::CbfSink::begin(directory, &series)?), directory.display().to_string())
        }
        Destination { to: Some(url), .. } => match url.strip_prefix(stream::SCHEME) {
            Some(address) => (Box::new(stream::StreamSink::begin(url, address, arguments, &series)?), url.clone()),
            None => (Box::new(stream2::Stream2Sink::begin(url, &series, arguments.service.patience.0)?), url.clone()),
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
        bytes_per_s: frames as f64 * frame_bytes / seconds,
        file: finished.map(InFile::of),
    };
    output.result("detector simulate", &simulated, lines)?;
    if let Some(problem) = unreadable {
        return Err(problem.next("What was brought ends with the frame before it."));
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
            .map_err(|error| Problem::new("nothing can be replayed").caused_by(&error))?;
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
    /// What is replayed cannot be read on, which broke it off.
    unreadable: Option<Problem>,
}

/// What is said of the run before its first frame.
fn description(arguments: &Arguments, series: &SeriesInfo) -> Result<DatasetSpec> {
    let mut description = DatasetSpec::new(series.element, series.frame.clone());
    description.scan = vec![Some(series.frames)];
    description.filter = arguments.filter;
    description.structure = structure(&arguments.layout)?;
    if let Some(metadata) = &arguments.metadata {
        Metadata::read(metadata)?.add_to(&mut description);
    }
    if let Some(advice) = &arguments.advice {
        advice_of(advice)?.apply(&mut description).map_err(|why| Problem::usage("--advice").because(why))?;
    }
    Ok(description)
}

/// Frames taken and dropped. A detector with a rate does not wait: it keeps what it took for a second, and no longer.
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
        if missing || varve_detector::simulator::is_lost(arguments.seed, number, arguments.drop) {
            continue;
        }
        if sink.has(number) {
            played.already += 1;
            continue;
        }
        let mut due = Duration::ZERO;
        if let Some(rate) = series.rate {
            // Those that are there already took no time.
            due = Duration::from_secs_f64((number - played.already) as f64 / rate);
        }
        if stop.wait(due.saturating_sub(start.elapsed())) {
            played.broken_off = true;
            break;
        }
        if series.rate.is_some() && start.elapsed() > due + MEMORY {
            played.dropped += 1;
            continue;
        }
        match source {
            FrameSource::Simulated(simulator) => simulator.frame_into(number, &mut frame),
            FrameSource::Replayed(replay) => {
                if let Err(error) = replay.frame_into(number, &mut frame) {
                    played.broken_off = true;
                    played.unreadable =
                        Some(Problem::new(format!("frame {number} cannot be replayed")).caused_by(&error));
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
    if let Some(file) = &simulated.file {
        rows.push(("file bytes", file.file_bytes.to_string()));
    }
    columns(&rows)
}
