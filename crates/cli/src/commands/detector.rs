//! `varve detector …`: simulated detectors.

mod simulate;

use crate::output::Output;
use crate::problem::{Exit, Result};
use clap::{Args, Subcommand};

/// Simulate detectors
#[derive(Debug, Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Simulate(simulate::Arguments),
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    match &arguments.command {
        Command::Simulate(arguments) => simulate::run(arguments, output),
    }
}
