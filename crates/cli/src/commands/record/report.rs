//! `varve record report FILE`: the latency of a run's frames between stages, from the timestamps in its file.

use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use varve_detector_file::report::{RunReport, report};

/// Show the latency of a run's frames between stages, and which stage was the slowest
#[derive(Debug, Args)]
pub struct Arguments {
    /// The run's HDF5 file; it may still be in use by its writer
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Serialize)]
struct ReportOutput {
    file: PathBuf,
    #[serde(flatten)]
    report: RunReport,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let report = report(&arguments.file).map_err(|error| Problem::new("cannot report on the run").caused_by(&error))?;
    let reported = ReportOutput { file: arguments.file.clone(), report };
    output.result("record report", &reported, lines)?;
    Ok(Exit::Done)
}

fn lines(reported: &ReportOutput) -> String {
    let report = &reported.report;
    let mut text = format!("{}\n", reported.file.display());
    let counts = [
        ("received", report.received),
        ("missing", report.missing),
        ("damaged", report.damaged),
        ("duplicate", report.duplicate),
        ("late", report.late),
        ("partial", report.partial),
    ];
    let counts: Vec<String> =
        counts.iter().filter(|(_, count)| *count > 0).map(|(name, count)| format!("{count} {name}")).collect();
    let _ = writeln!(text, "frames: {}", if counts.is_empty() { "none".to_owned() } else { counts.join(", ") });
    let _ = writeln!(text, "{:22}{:>10}{:>10}{:>10}{:>10}{:>10}  ms", "stage", "mean", "p50", "p90", "p99", "max");
    for stage in &report.stages {
        if stage.frames == 0 {
            let _ = writeln!(text, "{:22}{:>10}", stage.name, "unknown");
            continue;
        }
        let _ = writeln!(
            text,
            "{:22}{:>10.3}{:>10.3}{:>10.3}{:>10.3}{:>10.3}",
            stage.name, stage.mean_ms, stage.p50_ms, stage.p90_ms, stage.p99_ms, stage.max_ms
        );
    }
    if let Some(slowest) = report.slowest {
        let _ = writeln!(text, "slowest stage: {slowest}");
    }
    text
}
