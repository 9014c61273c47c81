//! `varve report import`: results of other programs as a run file.

use super::{explain, write};
use crate::escaping;
use crate::output::{self, Output};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use std::path::{Path, PathBuf};
use varve_bench::import::{self, ForeignFormat};

/// Turn results of mdtest, IOR, fio, elbencho, IO500, iozone or h5perf into a run file
///
/// Files are what the program printed, or its own result files: fio's JSON, elbencho's CSV or JSON, a result directory of
/// IO500. Results of one measurement in several files become turns of one entry.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Result files, and directories of IO500
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The program that wrote them: mdtest, ior, fio, elbencho, io500, iozone, h5perf [default: by their content]
    #[arg(long, value_name = "NAME", value_parser = clap::value_parser!(ForeignFormat))]
    format: Option<ForeignFormat>,
    /// Name of the file system that was measured
    #[arg(long, value_name = "NAME", default_value = "imported")]
    label: String,
    /// Write the run file here [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let files: Vec<&Path> = arguments.files.iter().map(PathBuf::as_path).collect();
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let run = import::import(&files, arguments.format, &arguments.label, words).map_err(|error| match error {
        varve_bench::Error::Usage(text) => Problem::new(text),
        other => explain(&other),
    })?;
    let json = run.to_json().map_err(|error| explain(&error))?;
    let Some(path) = &arguments.output else {
        output::print_line(&escaping::json(&json))?;
        return Ok(Exit::Done);
    };
    write(path, format!("{json}\n").as_bytes())?;
    if output.is_json() {
        output::print_line(&escaping::json(&json))?;
    } else {
        output::print_line(&format!("{} has {} measurements.", path.display(), run.entries.len()))?;
    }
    Ok(Exit::Done)
}
