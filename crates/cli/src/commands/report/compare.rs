//! `varve report compare`: two runs of one suite, as before and after an upgrade.

use super::{explain, read};
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use std::path::PathBuf;
use varve_bench::run_compare::{RunComparison, compare};

/// Compare two runs, as before and after an upgrade; exit code 3 if something became worse
///
/// Only a difference that the intervals of both runs confirm, and that is larger than --ignore, counts.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The run before
    #[arg(value_name = "BEFORE")]
    before: PathBuf,
    /// The run after
    #[arg(value_name = "AFTER")]
    after: PathBuf,
    /// Differences up to this fraction do not count
    #[arg(long, value_name = "FRACTION", default_value_t = 0.05)]
    ignore: f64,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    if !(0.0..1.0).contains(&arguments.ignore) {
        return Err(Problem::usage("--ignore is a fraction from 0 to below 1, such as 0.05"));
    }
    let (before, after) = (read(&arguments.before)?, read(&arguments.after)?);
    let comparison = compare(&before, &after, arguments.ignore).map_err(|error| explain(&error))?;
    output.result("report compare", &comparison, RunComparison::to_text)?;
    Ok(if comparison.worse == 0 { Exit::Done } else { Exit::Degraded })
}
