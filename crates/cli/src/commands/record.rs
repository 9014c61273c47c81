//! `varve record …`: the detector service, its runs, and their files.

mod advise;
mod control;
mod join;
pub mod protection;
mod recover;
mod report;
mod serve;
pub mod validators;
mod weld;

pub use advise::read as advice;

use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::{Args, Subcommand};
use std::path::Path;
use varve_detector_dataset::dataset_spec::Structure;
use varve_detector_dataset::layout::Layout;
use varve_detector_dataset::run_metadata::RunMetadata;

/// Record runs of detectors, and maintain their files
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Arguments),
    Start(control::StartArguments),
    /// Finish a run with all frames taken so far
    Stop(control::RunArguments),
    /// End a run as aborted; its file is valid and keeps all frames taken so far
    Abort(control::RunArguments),
    Status(control::StatusArguments),
    /// Follow a run: prints a line whenever frames have become durable, until it ends
    Watch(control::RunArguments),
    Join(join::Arguments),
    Advise(advise::Arguments),
    Recover(recover::Arguments),
    Report(report::Arguments),
    Weld(weld::Arguments),
}

impl Arguments {
    /// The log file of the service.
    pub fn log_file(&self) -> Option<&Path> {
        match &self.command {
            Command::Serve(arguments) => arguments.log_file.as_deref(),
            _ => None,
        }
    }
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    match &arguments.command {
        Command::Serve(arguments) => serve::run(arguments, output),
        Command::Start(arguments) => control::start(arguments, output),
        Command::Stop(arguments) => control::end("stop", arguments, output),
        Command::Abort(arguments) => control::end("abort", arguments, output),
        Command::Status(arguments) => control::status(arguments, output),
        Command::Watch(arguments) => control::watch(arguments, output),
        Command::Join(arguments) => join::run(arguments, output),
        Command::Advise(arguments) => advise::run(arguments, output),
        Command::Recover(arguments) => recover::run(arguments, output),
        Command::Report(arguments) => report::run(arguments, output),
        Command::Weld(arguments) => weld::run(arguments, output),
    }
}

/// Reads the file of `--metadata`.
pub fn metadata(path: &Path) -> Result<RunMetadata> {
    varve_detector_tools::metadata::read(path).map_err(|error| {
        Problem::usage("--metadata")
            .caused_by(&error)
            .next("Its tables are `values`, `nxmx` and `arrays`; see formats/nexus.md.")
    })
}

/// The structure that `--layout` names: a built-in one, or a layout file. A file with the name of a built-in one needs
/// a directory: `./raw`.
pub fn structure(layout: &Path) -> Result<Structure> {
    match layout.to_str() {
        Some("raw") => return Ok(Structure::Raw),
        Some("nexus") => return Ok(Structure::Nexus),
        _ => {}
    }
    let bytes = std::fs::read(layout).map_err(|error| {
        Problem::usage(format!("cannot read the layout {}", layout.display()))
            .caused_by(&error)
            .next("Give `raw`, `nexus`, or the path of an XML layout file.")
    })?;
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Problem::usage(format!("{} is not a layout", layout.display()))
            .because(format!("line {line} is not UTF-8"))
            .next("Save it as UTF-8, and declare UTF-8 or no encoding in its first line.")
    })?;
    let layout = Layout::parse(&text)
        .map_err(|error| Problem::usage(format!("{} is not a layout", layout.display())).caused_by(&error))?;
    Ok(Structure::Layout(layout))
}

#[cfg(test)]
mod tests;
