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
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;
use varve_detector_dataset::dataset_spec::nxmx::Nxmx;
use varve_detector_dataset::dataset_spec::{DatasetSpec, RunValue, Structure};
use varve_detector_dataset::layout::Layout;
use varve_env::toml_text;

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

/// The content of the `--metadata` file: metadata of the whole run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metadata {
    #[serde(default)]
    values: BTreeMap<String, RunValue>,
    nxmx: Option<Nxmx>,
}

impl Metadata {
    /// Reads JSON from a `.json` file, else TOML.
    pub fn read(path: &Path) -> Result<Metadata> {
        let cannot = |what: &str| Problem::usage(format!("cannot {what} the metadata {}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| cannot("read").caused_by(&error))?;
        if path.extension().is_some_and(|extension| extension == "json") {
            return serde_json::from_str(&text).map_err(|error| cannot("understand").caused_by(&error));
        }
        toml::from_str(&text).map_err(|error| cannot("understand").because(toml_text::reason(&text, &error)))
    }

    pub fn add_to(self, description: &mut DatasetSpec) {
        description.values.extend(self.values);
        description.nxmx = self.nxmx.or(description.nxmx.take());
    }
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
