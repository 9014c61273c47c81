//! `varve bench tree`: programs that list, read and make trees of small files, in several directories by turns.

use super::{command_line, explain, write};
use crate::escaping;
use crate::output::{self, Output};
use crate::problem::{Exit, Result};
use clap::Args;
use std::path::PathBuf;
use varve_bench::workloads::tree::{self, TreeConfig, TreeProgram};

/// Time ls, find, du, tar, git, cp, rm and python on small files, in several directories by turns
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directories, plain or of a mount; ratios are to the first
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Empty files in the directory that ls lists
    #[arg(long, value_name = "COUNT", default_value_t = 100_000)]
    names: u64,
    /// Files in the tree of the other programs
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    files: u64,
    /// Programs to run [default: all that are installed]: ls-f, ls-f-changed, ls-l, find, du, tar,
    /// untar, git-add, git-clone, git-status, cp-a, rm-r, cp-al, python-env, import-storm
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    programs: Vec<TreeProgram>,
    /// Counted turns; 10 or more give intervals of the ratios
    #[arg(long, value_name = "COUNT", default_value_t = 3)]
    repeat: u32,
    /// Keep the report as JSON, as --json prints it
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let config = TreeConfig {
        directories: arguments.directories.clone(),
        names: arguments.names,
        files: arguments.files,
        repeat: arguments.repeat,
        programs: arguments.programs.clone(),
        progress: output.shows_progress(),
        arguments: command_line(),
    };
    let report = tree::run(&config).map_err(|error| explain(&error))?;
    let json = report.to_json().map_err(|error| explain(&error))?;
    let saved = arguments.save.as_ref().map(|path| write(path, &format!("{json}\n"))).transpose();
    output::print_line(&if output.is_json() { escaping::json(&json) } else { escaping::lines(&report.to_text()) })?;
    saved?;
    Ok(Exit::Done)
}
