//! `varve plan`: whether a measured storage carries the load of an experiment.

use crate::commands::report;
use crate::output::Output;
use crate::problem::{Exit, Result};
use clap::Args;
use std::path::PathBuf;
use varve_bench::load_plan::{DetectorLoad, LoadPlan, PlanRequest, PlannedFiles, plan};

/// Tell from a run file whether storage carries an experiment
///
/// It names the margin, the limit that comes first, and the change that would help. Figures count at the low end of their intervals. The exit code is 3 if no target carries the load, or the run does not
/// tell.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A run file of `varve bench suite`; `-` is standard input
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// Detector and frames a second; several run at the same time. Models: pilatus6m, eiger16m, pco4000, pco-edge,
    /// excalibur, or WIDTHxHEIGHTxTYPE
    #[arg(long = "detector", value_name = "MODEL@HZ", required = true, value_parser = clap::value_parser!(DetectorLoad))]
    detectors: Vec<DetectorLoad>,
    /// How long the experiment writes
    #[arg(long, value_name = "HOURS", allow_negative_numbers = true)]
    hours: f64,
    /// Files that the frames go into: a number, or per-frame
    #[arg(long, value_name = "COUNT", default_value = "1", value_parser = clap::value_parser!(PlannedFiles))]
    files: PlannedFiles,
    /// Compression ratio of the frames that are written
    #[arg(long, value_name = "R", default_value_t = 1.0)]
    compress_ratio: f64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let run = report::read(&arguments.run)?;
    let request = PlanRequest {
        detectors: arguments.detectors.clone(),
        hours: arguments.hours,
        files: arguments.files,
        compress_ratio: arguments.compress_ratio,
    };
    let plan = plan(&request, &run).map_err(|error| report::explain(&error))?;
    output.result("plan", &plan, LoadPlan::to_text)?;
    Ok(if plan.is_carried() { Exit::Done } else { Exit::Degraded })
}
