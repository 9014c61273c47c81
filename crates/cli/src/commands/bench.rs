//! `varve bench`: measures the speed of a volume beside the storage beneath it and its ceilings.

mod companion;
mod compare;
mod data;
mod detector;
mod drive;
mod failover;
mod files;
mod images;
mod mdtest;
mod mixed;
mod new_volume;
mod null;
mod overall;
mod profile;
mod scale;
mod servers;
mod stream;
mod suite;
mod tree;
mod work;

use crate::escaping;
use crate::identity::{self, Rights, Work};
use crate::output::{self, Output};
use crate::problem::{Exit, Problem, Result};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use varve_bench::Error;
use varve_bench::report::{BenchReport, Regression, compare};
use varve_bench::target::Via;
use varve_env::printable::printable;

/// Measure a volume beside the storage beneath it
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    workload: Workload,
}

#[derive(Debug, Subcommand)]
enum Workload {
    Data(data::Arguments),
    Detector(detector::Arguments),
    Failover(failover::Arguments),
    Files(files::Arguments),
    Images(images::Arguments),
    Mdtest(mdtest::Arguments),
    Mixed(mixed::Arguments),
    Overall(overall::Arguments),
    Saturate(overall::SaturateArguments),
    #[command(hide = true)]
    Rank(drive::RankArguments),
    #[command(hide = true)]
    Companion(companion::Arguments),
    Compare(compare::Arguments),
    Profile(profile::Arguments),
    Scale(scale::Arguments),
    #[command(hide = true)]
    ScaleClient(scale::ClientArguments),
    Stream(stream::Arguments),
    Suite(suite::Arguments),
    Tree(tree::Arguments),
}

/// Output flags common to all workloads.
#[derive(Debug, Args)]
struct ReportFlags {
    /// Print one small table: rates, and how many times as fast as the plain directory they are
    #[arg(long)]
    brief: bool,
    /// Write a self-contained HTML page with plots
    #[arg(long, value_name = "FILE")]
    page: Option<PathBuf>,
    /// Keep the report as JSON, as --json prints it
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// Compare with a saved report; exit code 3 if a ratio fell by more than a tenth
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    match &arguments.workload {
        Workload::Data(arguments) => data::run(arguments, output),
        Workload::Detector(arguments) => detector::run(arguments, output),
        Workload::Failover(arguments) => failover::run(arguments, output),
        Workload::Files(arguments) => files::run(arguments, output),
        Workload::Images(arguments) => images::run(arguments, output),
        Workload::Mdtest(arguments) => mdtest::run(arguments, output),
        Workload::Mixed(arguments) => mixed::run(arguments, output),
        Workload::Overall(arguments) => overall::run(arguments, output),
        Workload::Saturate(arguments) => overall::saturate(arguments, output),
        Workload::Rank(arguments) => drive::run_rank(arguments),
        Workload::Companion(arguments) => companion::run(arguments),
        Workload::Compare(arguments) => compare::run(arguments, output),
        Workload::Profile(arguments) => profile::run(arguments, output),
        Workload::Scale(arguments) => scale::run(arguments, output),
        Workload::ScaleClient(arguments) => scale::run_client(arguments),
        Workload::Stream(arguments) => stream::run(arguments, output),
        Workload::Suite(arguments) => suite::run(arguments, output),
        Workload::Tree(arguments) => tree::run(arguments, output),
    }
}

/// The command line, for the report.
fn command_line() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

fn explain(error: &Error) -> Problem {
    match error {
        Error::Usage(text) => Problem::usage(text.as_str()),
        Error::Interrupted => Problem::new("the benchmark was interrupted").exits(Exit::BrokenOff),
        other => Problem::new("the benchmark failed").caused_by(other),
    }
}

/// Takes the rights of the user whose stores are measured through the library. Checks that output files are writable
/// with these rights too: a run of an hour must not lose its figures for that.
fn take_rights(via: &[Via], report: &ReportFlags) -> Result<Rights> {
    take_rights_for(via, [&report.save, &report.page].into_iter().flatten())
}

fn take_rights_for<'a>(via: &[Via], files: impl Iterator<Item = &'a PathBuf>) -> Result<Rights> {
    let libraries = via.iter().filter(|via| matches!(via, Via::Library(_)));
    let rights = identity::take_all(&libraries.map(Via::directory).collect::<Vec<_>>(), Work::Bench)?;
    if rights.of_another.is_some() {
        for path in files {
            let opened = std::fs::File::options().create(true).append(true).open(path);
            opened.map_err(|error| {
                rights.explain(Problem::new(format!("cannot write {}", path.display())).caused_by(&error))
            })?;
        }
    }
    Ok(rights)
}

impl ReportFlags {
    /// The report to compare with. It is read before the measurement starts, because the same file may be the target of
    /// --save and a wrong path must not cost the figures of an hour.
    fn recorded(&self) -> Result<Option<BenchReport>> {
        self.compare.as_ref().map(read).transpose()
    }
}

/// Saves the report, prints it, and compares it. A report that cannot be saved is printed all the same.
fn deliver(report: &BenchReport, recorded: Option<&BenchReport>, flags: &ReportFlags, output: &Output) -> Result<Exit> {
    let json = report.to_json().map_err(|error| explain(&error))?;
    let saved = flags.save.as_ref().map(|path| write(path, &format!("{json}\n"))).transpose();
    output::print_line(&match (output.is_json(), flags.brief) {
        (true, _) => escaping::json(&json),
        (false, true) => escaping::lines(&report.to_brief_text()),
        (false, false) => escaping::lines(&report.to_text()),
    })?;
    saved?;
    if let Some(path) = &flags.page {
        write(path, &report.to_html())?;
    }
    let fallen = recorded.map(|recorded| compare_with(report, recorded)).unwrap_or_default();
    for regression in &fallen {
        eprintln!("slower: {}", printable(&regression.to_string()));
    }
    Ok(if fallen.is_empty() { Exit::Done } else { Exit::Degraded })
}

/// Returns the ratios that fell. Prints the reasons that make the comparison doubtful.
fn compare_with(report: &BenchReport, recorded: &BenchReport) -> Vec<Regression> {
    let machines = (report.environment.machine(), recorded.environment.machine());
    if machines.0 != machines.1 {
        let (here, there) = (printable(&machines.0), printable(&machines.1));
        eprintln!("note: the recorded report was measured on {there}, and this one on {here}");
    }
    let others: Vec<&str> = report.other_settings(recorded);
    if !others.is_empty() {
        eprintln!("note: the recorded report was measured with other settings: {}", others.join(", "));
    }
    let comparison = compare(report, recorded);
    if comparison.common == 0 {
        eprintln!("note: nothing is compared, because the two reports have no ratio in common");
    }
    comparison.fallen
}

fn read(path: &PathBuf) -> Result<BenchReport> {
    let failed = || Problem::new(format!("cannot compare with {}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| failed().caused_by(&error))?;
    BenchReport::from_json(&text).map_err(|error| failed().caused_by(&error))
}

fn write(path: &PathBuf, text: &str) -> Result<()> {
    std::fs::write(path, text)
        .map_err(|error| Problem::new(format!("cannot write {}", path.display())).caused_by(&error))
}
