//! `varve completions SHELL`: a completion script on stdout.

use crate::definition;
use crate::output;
use crate::problem::{Exit, Result};
use clap::Args;
use clap_complete::Shell;

/// Print a shell's completion script
#[derive(Debug, Args)]
pub struct Arguments {
    /// The shell that will read it
    shell: Shell,
}

pub fn run(arguments: &Arguments) -> Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut definition::definition(), "varve", &mut script);
    output::print_line(&String::from_utf8_lossy(&script))?;
    Ok(Exit::Done)
}
