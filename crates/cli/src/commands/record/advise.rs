//! `varve record advise`: proposes settings for a run, measured in the directory where it will be written.

use crate::output::{Output, SCHEMA_VERSION, columns};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Span;
use clap::Args;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use varve_detector_dataset::advice::Advice;
use varve_detector_tools::advise::{AdviceRequest, advise};
use varve_detector_tools::simulator::DetectorModel;

/// The command's name in its JSON.
const COMMAND: &str = "record advise";

const TIME_MIN: Duration = Duration::from_millis(100);

/// Probe a directory, and propose chunk, alignment, writers and filter for a detector's frames
///
/// `record start --advice` and `detector simulate --advice` accept the JSON output (`varve --json record advise … >
/// advice.json`). The file of the run stores it.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory for the runs; the probes leave nothing there
    directory: PathBuf,
    /// pilatus6m, eiger16m, pco4000, pco-edge, excalibur, or WIDTHxHEIGHTxTYPE (1024x512xu16)
    #[arg(long)]
    model: String,
    /// Frames a second
    #[arg(long, value_name = "HZ", allow_negative_numbers = true, value_parser = super::validators::rate)]
    rate: f64,
    /// Compression ratio of the detector's frames with bitshuffle+LZ4
    #[arg(long, value_name = "R", default_value_t = 6.0)]
    compress_ratio: f64,
    /// Time for all probes together, at least 100ms; the time to make the test frames is not included, and each probe
    /// writes at least one
    #[arg(long, value_name = "TIME", default_value = "10s")]
    time: Span,
    /// Threads that may compress and write [default: one a processor]
    #[arg(long, value_parser = super::validators::threads)]
    threads: Option<usize>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    if arguments.time.0 < TIME_MIN {
        return Err(Problem::usage(format!(
            "--time must be at least {}: a shorter probe measures nothing useful",
            Span(TIME_MIN)
        )));
    }
    if !arguments.directory.is_dir() {
        return Err(Problem::usage(format!("{} is not a directory", arguments.directory.display()))
            .next("Give the directory where the runs will be written."));
    }
    let model: DetectorModel = arguments.model.parse().map_err(|error| Problem::usage("--model").caused_by(&error))?;
    let processors = std::thread::available_parallelism().map_or(2, usize::from);
    let request = AdviceRequest {
        directory: arguments.directory.clone(),
        name: arguments.model.clone(),
        model,
        rate: arguments.rate,
        ratio: arguments.compress_ratio,
        time: arguments.time.0,
        threads_max: arguments.threads.unwrap_or(processors).max(1),
    };
    let advice = advise(&request)
        .map_err(|error| Problem::new(format!("cannot probe {}", arguments.directory.display())).caused_by(&error))?;
    output.result(COMMAND, &advice, lines)?;
    if !advice.reaches() {
        return Err(Problem::new(format!(
            "no setting reaches {} frames/s: the best, {} in {} with {} writers, reaches {:.1}, {:.2} times that",
            advice.rate_hz,
            advice.filter,
            sides(advice.chunk.as_deref().unwrap_or(&advice.frame)),
            advice.writers,
            advice.frames_per_s,
            advice.margin
        ))
        .because(format!("the bottleneck is {}", advice.narrowest()))
        .next("Lower the rate, write to another directory, or share the run among hosts (`varve record join`)."));
    }
    Ok(Exit::Done)
}

/// Reads the JSON output of this command.
pub fn read(path: &Path) -> Result<Advice> {
    let cannot = |what: &str| Problem::usage(format!("cannot {what} the advice {}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| cannot("read").caused_by(&error))?;
    let again = "Create it with: varve --json record advise … > advice.json";
    let understood = |error: serde_json::Error| cannot("understand").caused_by(&error).next(again);
    let envelope: AdviceEnvelope = serde_json::from_str(&text).map_err(understood)?;
    if let Some(command) = envelope.command.filter(|command| command != COMMAND) {
        return Err(cannot("understand").because(format!("it is the output of `{command}`")).next(again));
    }
    if let Some(version) = envelope.schema_version.filter(|version| *version > SCHEMA_VERSION) {
        return Err(cannot("understand")
            .because(format!("its schema version is {version}; this program supports up to {SCHEMA_VERSION}"))
            .next(again));
    }
    serde_json::from_str(&text).map_err(understood)
}

/// The fields printed around an advice. A run's file holds the advice without them.
#[derive(Deserialize)]
struct AdviceEnvelope {
    command: Option<String>,
    schema_version: Option<u32>,
}

fn sides(sides: &[u64]) -> String {
    sides.iter().map(u64::to_string).collect::<Vec<_>>().join("x")
}

fn lines(advice: &Advice) -> String {
    let store = &advice.store;
    let stripe = match (store.stripe_bytes, store.stripe_count) {
        (Some(bytes), Some(count)) => format!("{bytes} bytes over {count}"),
        _ => "not reported".to_owned(),
    };
    let mut rows = vec![
        ("directory", advice.directory.display().to_string()),
        ("file system", store.file_system.clone()),
        ("block", format!("{} bytes", store.block_bytes)),
        ("stripe", stripe),
    ];
    for probe in &advice.writes {
        let text =
            format!("{:.0} MB/s by {} writers of {} bytes", probe.bytes_per_s / 1e6, probe.writers, probe.block_bytes);
        rows.push(("writes", text));
    }
    for probe in &advice.filters {
        rows.push(("filter", format!("{}: {:.2}:1, {:.1} frames/s", probe.filter, probe.ratio, probe.frames_per_s)));
    }
    for trial in &advice.trials {
        let (chunk, filter) = (sides(trial.chunk.as_deref().unwrap_or(&advice.frame)), trial.filter);
        let text = format!(
            "{filter} in {chunk} with {} writers: {:.1} frames/s, all durable",
            trial.writers, trial.frames_per_s
        );
        rows.push(("run", text));
    }
    rows.extend([
        ("proposed filter", advice.filter.to_string()),
        ("proposed chunk", sides(advice.chunk.as_deref().unwrap_or(&advice.frame))),
        ("proposed alignment", format!("{} bytes", advice.alignment_bytes)),
        ("proposed writers", advice.writers.to_string()),
        ("margin", format!("{:.2} times the {} frames/s needed", advice.margin, advice.rate_hz)),
    ]);
    columns(&rows)
}
