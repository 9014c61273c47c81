//! `varve report`: shows, compares and checks run files, and imports results of other programs.

mod assert;
mod compare;
mod import;

use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::{Args, Subcommand};
use serde::Serialize;
use std::io::Read;
use std::path::{Path, PathBuf};
use varve_bench::Error;
use varve_bench::run_file::{RUN_FILE_BYTES_MAX, RunFile};
use varve_bench::run_report::published::{COLLECTIONS, Published};
use varve_bench::run_report::{self, MergedRuns, csv, figures};
use varve_env::disk;

/// Show run files of benchmarks as one page
///
/// The page has no scripts and no links. It begins with the answer in words, as far as the intervals allow, and has figures, tables and the environment.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct Arguments {
    #[command(subcommand)]
    work: Option<ReportWork>,
    /// Run files; several are shown side by side. `-` is standard input
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// The page [default: report.html]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write each figure, and all measurements, as CSV files into this directory
    #[arg(long, value_name = "DIR")]
    csv: Option<PathBuf>,
    /// Published figures beside those of the run: d82, io500, or a TOML file of your own
    #[arg(long, value_name = "NAME|FILE")]
    published: Vec<String>,
    /// Title of the page [default: that of the first run]
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

#[derive(Debug, Subcommand)]
enum ReportWork {
    Assert(assert::Arguments),
    Compare(compare::Arguments),
    Import(import::Arguments),
}

#[derive(Serialize)]
struct Written {
    page: PathBuf,
    figures: usize,
    csv_files: usize,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    match &arguments.work {
        Some(ReportWork::Assert(arguments)) => assert::run(arguments, output),
        Some(ReportWork::Compare(arguments)) => compare::run(arguments, output),
        Some(ReportWork::Import(arguments)) => import::run(arguments, output),
        None => page(arguments, output),
    }
}

fn page(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let runs = arguments.runs.iter().map(|path| Ok((name(path), read(path)?)));
    let mut runs: Vec<(String, RunFile)> = runs.collect::<Result<_>>()?;
    if let (Some(title), Some((_, first))) = (&arguments.title, runs.first_mut()) {
        first.title.clone_from(title);
    }
    let published: Vec<Published> = arguments.published.iter().map(|name| published(name)).collect::<Result<_>>()?;
    let runs = MergedRuns::of(runs).map_err(|error| explain(&error))?;
    let page = arguments.output.clone().unwrap_or_else(|| "report.html".into());
    write(&page, run_report::render(&runs, &published).as_bytes())?;
    let figures = figures::choose(&runs);
    let mut written = Written { page, figures: figures.len(), csv_files: 0 };
    if let Some(directory) = &arguments.csv {
        make(directory)?;
        for (name, text) in csv::files(&runs) {
            write(&directory.join(name), text.as_bytes())?;
            written.csv_files += 1;
        }
    }
    output
        .result("report", &written, |written| format!("{} has {} figures.", written.page.display(), written.figures))?;
    Ok(Exit::Done)
}

/// Reads a run file, or standard input.
pub fn read(path: &Path) -> Result<RunFile> {
    let failed = || Problem::new(format!("cannot read the run file {}", path.display()));
    let mut text = String::new();
    let taken = match path.to_str() {
        Some("-") => std::io::stdin().take(RUN_FILE_BYTES_MAX + 1).read_to_string(&mut text),
        _ => std::fs::File::open(path).and_then(|file| file.take(RUN_FILE_BYTES_MAX + 1).read_to_string(&mut text)),
    };
    taken.map_err(|error| failed().caused_by(&error))?;
    if text.len() as u64 > RUN_FILE_BYTES_MAX {
        return Err(failed().because(format!("it has more than {RUN_FILE_BYTES_MAX} bytes")));
    }
    let advice = "Make one with: varve --json bench suite quick --target native=path:DIR > run.json";
    RunFile::from_json(&text).map_err(|error| failed().caused_by(&error).next(advice))
}

pub fn explain(error: &Error) -> Problem {
    match error {
        Error::Usage(text) => Problem::usage(text.as_str()),
        other => Problem::new("cannot make the report").caused_by(other),
    }
}

/// The name of a run within a report: that of its file.
fn name(path: &Path) -> String {
    path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default()
}

fn published(name: &str) -> Result<Published> {
    if let Some(shipped) = Published::shipped(name) {
        return shipped.map_err(|error| explain(&error));
    }
    let known = COLLECTIONS.map(|(known, _)| known).join(", ");
    let text = std::fs::read_to_string(name).map_err(|error| {
        Problem::new(format!("cannot read the published figures {name}"))
            .caused_by(&error)
            .next(format!("Give {known}, or a TOML file; docs/guide/report.md shows its form."))
    })?;
    Published::from_toml(name, &text).map_err(|error| explain(&error))
}

fn make(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .map_err(|error| Problem::new(format!("cannot make the directory {}", directory.display())).caused_by(&error))
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    disk::replace(path, bytes)
        .map_err(|error| Problem::new(format!("cannot write {}", path.display())).caused_by(&error))
}
