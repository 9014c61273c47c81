//! `varve man DIR`: a manual page for the program and for each command.

use crate::definition;
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;

/// Write the manual pages into a directory
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory for varve.1, varve-format.1 and so on; made if missing
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

#[derive(Serialize)]
struct ManOutput {
    pages: Vec<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let directory = &arguments.directory;
    let failed = |error: std::io::Error| {
        Problem::new(format!("cannot write manual pages into {}", directory.display())).caused_by(&error)
    };
    std::fs::create_dir_all(directory).map_err(failed)?;
    let definition = definition::definition().disable_help_subcommand(true);
    clap_mangen::generate_to(definition, directory).map_err(failed)?;
    let entries = std::fs::read_dir(directory).map_err(failed)?;
    let mut pages: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    pages.retain(|page| page.file_name().is_some_and(|name| name.to_string_lossy().starts_with("varve")));
    pages.sort();
    let lines = |written: &ManOutput| written.pages.iter().map(|page| format!("{}\n", page.display())).collect();
    output.result("man", &ManOutput { pages }, lines)?;
    Ok(Exit::Done)
}
