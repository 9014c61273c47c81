//! `varve bench detector`: the detector service at the machine's limit, beside each of its stages and an h5py process.

use super::{command_line, explain, write};
use crate::escaping;
use crate::output::{self, Output};
use crate::problem::{Exit, Result};
use clap::Args;
use std::path::{Path, PathBuf};
use varve_bench::workloads::detector::{self, DetectorConfig, PipelineCase, RATES};
use varve_detector_tools::simulator::DetectorModel;
use varve_env::private_file::check_directory;

/// Measure the detector service: frames a second, drops, latencies, and what each stage takes
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory for the files [default: /dev/shm, so that the figures do not depend on a disk]
    #[arg(value_name = "DIR")]
    directory: Option<PathBuf>,
    /// Detector of the cases without a rate
    #[arg(long, default_value = "2048x1024xu16")]
    model: DetectorModel,
    /// Compression ratio of its frames with bitshuffle+LZ4
    #[arg(long, value_name = "R", default_value_t = 4.0)]
    compress_ratio: f64,
    /// Frames of a run without a rate; precompressed runs, which are much faster, have three times as many
    #[arg(long, default_value_t = 800)]
    frames: u64,
    /// Connections for the frames of a run without a rate; the h5py process and each of several writers always use one
    /// [default: one per processor]
    #[arg(long, value_name = "N")]
    connections: Option<u16>,
    /// Cases to measure instead of all: precompressed, raw-bslz4, h5py, scalars-0, scalars-30, writers-4-one-file,
    /// writers-4-four-files, rate-HZ
    #[arg(long, value_name = "CASE", value_delimiter = ',', conflicts_with = "rates")]
    cases: Vec<PipelineCase>,
    /// Rates at which to simulate a Pilatus 6M, in frames a second; `none` skips these runs
    #[arg(long, value_name = "HZ", value_delimiter = ',', default_values_t = RATES.map(|rate| rate.to_string()))]
    rates: Vec<String>,
    /// Seconds of a run at a rate
    #[arg(long, value_name = "SECONDS", default_value_t = 4.0)]
    rate_seconds: f64,
    /// Turns of everything without a rate; 10 or more give intervals of the ratios
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repeat: u32,
    /// Python with h5py and hdf5plugin, for the process measured for comparison [default: venv/bin/python, python3]
    #[arg(long, value_name = "FILE")]
    python: Option<PathBuf>,
    /// Keep the report as JSON, as --json prints it
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let rates = arguments.rates.iter().filter(|rate| *rate != "none").map(|rate| rate.parse().map(PipelineCase::Rate));
    let rates = rates.collect::<std::result::Result<Vec<PipelineCase>, _>>().map_err(|_| {
        crate::problem::Problem::usage("--rates are whole numbers of frames a second, with commas between, or `none`")
    })?;
    let cases = match arguments.cases.as_slice() {
        [] => PipelineCase::FAST.into_iter().chain(rates).collect(),
        cases => cases.to_vec(),
    };
    let program = std::env::current_exe()
        .map_err(|error| crate::problem::Problem::new("cannot find this program itself").caused_by(&error))?;
    let candidates = match &arguments.python {
        Some(python) => vec![python.clone()],
        None => own_environment().into_iter().chain(["python3".into()]).collect(),
    };
    let config = DetectorConfig {
        directory: arguments.directory.clone().unwrap_or_else(default_directory),
        model: arguments.model.clone(),
        compress_ratio: arguments.compress_ratio,
        frames: arguments.frames,
        connections: arguments.connections.unwrap_or_else(detector::default_connections),
        cases,
        rate_seconds: arguments.rate_seconds,
        repeat: arguments.repeat,
        program,
        python: detector::find_python(&candidates),
        progress: output.shows_progress(),
        arguments: command_line(),
    };
    let report = detector::run(&config).map_err(|error| explain(&error))?;
    let json = report.to_json().map_err(|error| explain(&error))?;
    if let Some(path) = &arguments.save {
        write(path, &format!("{json}\n"))?;
    }
    output::print_line(&if output.is_json() { escaping::json(&json) } else { escaping::lines(&report.to_text()) })?;
    Ok(Exit::Done)
}

/// The working directory's Python environment, unless another user could have placed a program there.
fn own_environment() -> Option<PathBuf> {
    let is_own = |directory: &str| check_directory(Path::new(directory)).is_ok();
    [".", "venv", "venv/bin"].into_iter().all(is_own).then(|| "venv/bin/python".into())
}

fn default_directory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}
