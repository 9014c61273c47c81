//! `varve report assert`: checks what a run must have reached.

use super::{explain, read};
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use varve_bench::assertion::{Assertion, CheckedComparison};

/// Check figures of a run; exit code 10 if the assertion does not hold
///
/// `native.create.ops` is the median of the creates at the target `native`. A name without a target belongs to the one
/// target that the assertion does not name. Quantities: ops, mib, s, ms, value, min, max, low, high, p50, p99, p999.
/// Conditions choose among several entries: create[clients=8,file_bytes=4096].ops
#[derive(Debug, Args)]
pub struct Arguments {
    /// The run file; `-` is standard input
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// For example 'create.ops > 3.5 * native.create.ops and stat.p99 < 500'
    #[arg(value_name = "ASSERTION", required = true)]
    assertions: Vec<String>,
    /// The target of names without one
    #[arg(long, value_name = "LABEL")]
    of: Option<String>,
    /// Fail also if the assertion holds for the medians, but not for all values in their intervals
    #[arg(long)]
    certain: bool,
}

#[derive(Serialize)]
struct AssertionOutput {
    holds: bool,
    comparisons: Vec<CheckedComparison>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let assertions = arguments.assertions.iter().map(|text| text.parse::<Assertion>());
    let assertions: Vec<Assertion> =
        assertions.collect::<std::result::Result<_, _>>().map_err(|error| explain(&error).next(EXAMPLE))?;
    let run = read(&arguments.run)?;
    let mut comparisons = Vec::new();
    for assertion in &assertions {
        comparisons.extend(assertion.check(&run, arguments.of.as_deref()).map_err(|error| explain(&error))?);
    }
    let is_met = |checked: &CheckedComparison| checked.holds && (!arguments.certain || checked.certain == Some(true));
    let result = AssertionOutput { holds: comparisons.iter().all(is_met), comparisons };
    output.result("report assert", &result, text)?;
    if result.holds {
        return Ok(Exit::Done);
    }
    let broken: Vec<&str> =
        result.comparisons.iter().filter(|checked| !is_met(checked)).map(|checked| checked.text.as_str()).collect();
    Err(Problem::new(format!("{} does not hold: {}", arguments.run.display(), broken.join("; "))).exits(Exit::Refuted))
}

const EXAMPLE: &str = "Write it like this: 'create.ops > 3.5 * native.create.ops'";

fn text(result: &AssertionOutput) -> String {
    let line = |checked: &CheckedComparison| {
        let verdict = if checked.holds { "holds" } else { "fails" };
        let certain = match checked.certain {
            Some(true) => "for all values in the intervals",
            Some(false) => "for the medians only: the intervals overlap",
            None => "for the medians; too few turns for intervals",
        };
        format!("{}: {verdict} ({} and {}), {certain}", checked.text, number(checked.left), number(checked.right))
    };
    result.comparisons.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Four digits, without those that say nothing.
fn number(value: f64) -> String {
    if value.abs() >= 1000.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.4}").trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}
