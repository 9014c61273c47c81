//! `varve record …`: files of detector runs.

mod recover;

use crate::output::Output;
use crate::problem::{Exit, Result};
use clap::{Args, Subcommand};

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
