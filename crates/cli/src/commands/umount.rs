//! `varve umount DIR`: returns when everything is durable, or says what is in the way.

use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Span;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use varve_fuse::Error;

/// Unmount a volume; returns when everything is on disk
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory on which the volume is mounted
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// How long to wait for the mount's process to write everything and end
    #[arg(long, value_name = "DURATION", default_value_t = Span(Duration::from_secs(60)))]
    wait: Span,
}

#[derive(Serialize)]
struct Unmounted {
    directory: PathBuf,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let directory = &arguments.directory;
    varve_fuse::unmount::unmount(directory, arguments.wait.0).map_err(|error| {
        let problem = Problem::new(format!("cannot unmount {}", directory.display())).caused_by(&error);
        match error {
            Error::Busy { .. } => problem.next("End what holds it, then unmount again."),
            Error::StillRunning { .. } => problem.next("Wait for that process to end before the store is used."),
            Error::NotDurable { .. } => problem.next("Bring the store back, then unmount again."),
            _ => problem,
        }
    })?;
    let unmounted = Unmounted { directory: directory.clone() };
    output.result("umount", &unmounted, |_| String::new())?;
    Ok(Exit::Done)
}
