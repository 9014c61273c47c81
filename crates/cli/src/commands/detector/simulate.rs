//! `varve detector simulate --out FILE`: a simulated detector's run, compressed and written as a real one's.

use crate::commands::record::{Metadata, structure};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use varve_detector::description::Description;
use varve_detector::filters::Filter;
use varve_detector::frame::{Frame, Payload};
use varve_detector::simulator::{Model, Simulator};
use varve_detector::writer::{Finished, Settings, WriteError, Writer, now};

/// Write the run of a simulated detector to one HDF5 file
#[derive(Debug, Args)]
pub struct Arguments {
    /// HDF5 file to make; it must not exist
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// pilatus6m, eiger16m, pco4000, pco-edge, excalibur, or WIDTHxHEIGHTxTYPE (1024x512xu16)
    #[arg(long, default_value = "pilatus6m")]
    model: Model,
    /// Frames a second; a frame that finds no room is dropped and counted [default: as fast as they are written]
    #[arg(long, value_name = "HZ")]
    rate: Option<f64>,
    /// Frames of the run
    #[arg(long, default_value_t = 250)]
    frames: u64,
    /// How far bitshuffle+LZ4 is to compress the frames
    #[arg(long, value_name = "R", default_value_t = 6.0)]
    compress_ratio: f64,
    /// Share of the frames that the detector loses, from 0 to 1
    #[arg(long, value_name = "P", default_value_t = 0.0)]
    drop: f64,
    /// The same seed gives the same frames
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// raw, gzip[:1-9], lz4, zstd[:1-22], bslz4, bszstd[:1-22]; shuffle+ before gzip, lz4 or zstd
    #[arg(long, default_value = "bslz4")]
    filter: Filter,
    /// Groups and datasets of the file: raw, nexus, or an XML file as areaDetector's HDF5 writer takes it
    #[arg(long, value_name = "raw|nexus|FILE", default_value = "nexus")]
    layout: PathBuf,
    /// What holds for the whole run, in TOML, or in JSON if its name ends so: a table `values` for the layout file, a
    /// table `nxmx` for the structure nexus
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
    /// Threads that compress and write [default: one a processor]
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Serialize)]
struct Simulated {
    out: PathBuf,
    /// Of the run, from its first frame until everything was durable.
    seconds: f64,
    frames_per_s: f64,
    /// Uncompressed.
    bytes_per_s: f64,
    #[serde(flatten)]
    finished: Finished,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    if arguments.rate.is_some_and(|rate| !(rate > 0.0 && rate.is_finite())) {
        return Err(Problem::usage("--rate must be above 0").next("Leave it out to write as fast as possible."));
    }
    if !(0.0..=1.0).contains(&arguments.drop) {
        return Err(Problem::usage(format!("--drop {} is not from 0 to 1", arguments.drop)));
    }
    let failed = |error: WriteError| {
        Problem::new(format!("cannot write the run to {}", arguments.out.display())).caused_by(&error)
    };
    let simulator = Simulator::new(arguments.model.clone(), arguments.compress_ratio, arguments.seed)
        .map_err(|error| Problem::usage("--compress-ratio").caused_by(&error))?;
    let model = &arguments.model;
    let mut description = Description::new(model.element, vec![model.height, model.width]);
    description.scan = vec![Some(arguments.frames)];
    description.filter = arguments.filter;
    description.structure = structure(&arguments.layout)?;
    if let Some(metadata) = &arguments.metadata {
        Metadata::read(metadata)?.add_to(&mut description);
    }
    let frame_bytes = description.frame_bytes() as f64;
    let mut settings = Settings::default();
    settings.threads = arguments.threads.unwrap_or(settings.threads);
    let writer = Writer::create(&arguments.out, description, settings, Arc::new(|_, _| {})).map_err(failed)?;
    let start = Instant::now();
    play(arguments, &simulator, &writer, start).map_err(failed)?;
    let finished = writer.finish().map_err(failed)?;
    let seconds = start.elapsed().as_secs_f64();
    let frames = (finished.counts.received + finished.counts.late) as f64;
    let simulated = Simulated {
        out: arguments.out.clone(),
        seconds,
        frames_per_s: frames / seconds,
        bytes_per_s: frames * frame_bytes / seconds,
        finished,
    };
    output.result("detector simulate", &simulated, lines)?;
    Ok(if finished.dropped > 0 { Exit::Degraded } else { Exit::Done })
}

/// A detector with a rate does not wait: what finds no room is dropped.
fn play(
    arguments: &Arguments,
    simulator: &Simulator,
    writer: &Writer,
    start: Instant,
) -> std::result::Result<(), WriteError> {
    /// Without a rate, only a store that hangs makes a frame wait so long.
    const PATIENCE: Duration = Duration::from_secs(60);
    for number in 0..arguments.frames {
        if simulator.is_lost(number, arguments.drop) {
            continue;
        }
        let payload = Payload::Plain(simulator.frame(number));
        let wait = match arguments.rate {
            None => PATIENCE,
            Some(rate) => {
                let due = Duration::from_secs_f64(number as f64 / rate);
                std::thread::sleep(due.saturating_sub(start.elapsed()));
                Duration::ZERO
            }
        };
        match writer.submit(Frame { number, taken: now(), payload }, wait) {
            Err(WriteError::Full) if arguments.rate.is_some() => {}
            result => result?,
        }
    }
    Ok(())
}

fn lines(simulated: &Simulated) -> String {
    let counts = &simulated.finished.counts;
    columns(&[
        ("file", simulated.out.display().to_string()),
        ("frames", (counts.received + counts.late).to_string()),
        ("missing", counts.missing.to_string()),
        ("dropped", simulated.finished.dropped.to_string()),
        ("seconds", format!("{:.2}", simulated.seconds)),
        ("frames/s", format!("{:.1}", simulated.frames_per_s)),
        ("MB/s", format!("{:.1} before compression", simulated.bytes_per_s / 1e6)),
        ("file bytes", simulated.finished.file_bytes.to_string()),
    ])
}
