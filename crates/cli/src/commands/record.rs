//! `varve record …`: files of detector runs.

mod recover;

use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::{Args, Subcommand};
use std::path::Path;
use varve_detector::description::Structure;
use varve_detector::layout::Layout;

/// Look after files of detector runs
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Recover(recover::Arguments),
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    match &arguments.command {
        Command::Recover(arguments) => recover::run(arguments, output),
    }
}

/// What `--layout` names: a built-in structure, or a layout file. A file called as a built-in one needs its directory:
/// `./raw`.
pub fn structure(layout: &Path) -> Result<Structure> {
    match layout.to_str() {
        Some("raw") => return Ok(Structure::Raw),
        Some("nexus") => return Ok(Structure::Nexus),
        _ => {}
    }
    let text = std::fs::read_to_string(layout).map_err(|error| {
        Problem::usage(format!("cannot read the layout {}", layout.display()))
            .caused_by(&error)
            .next("Give `raw`, `nexus`, or the path of an XML layout file.")
    })?;
    let layout = Layout::parse(&text)
        .map_err(|error| Problem::usage(format!("{} is no layout", layout.display())).caused_by(&error))?;
    Ok(Structure::Layout(layout))
}
