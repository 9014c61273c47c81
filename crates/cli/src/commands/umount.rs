//! `varve umount DIR`: returns when everything is durable, or says what is in the way.

use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Span;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;
use varve_fuse::Error;
use varve_fuse::unmount::{Unwritten, unmount};

/// Unmount a volume; returns when everything is on disk
///
/// A mount that cannot write everything stays, so that nothing is lost: bring back its store or server and unmount again, or
/// give up what is not written with --force (exit code 3 then).
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory on which the volume is mounted
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// How long to wait for the mount's process to write everything and end
    #[arg(long, value_name = "DURATION", default_value_t = Span(Duration::from_secs(60)))]
    wait: Span,
    /// Unmount also if not everything can be written: what was written to files that were neither closed nor fsynced is
    /// lost, and what was acknowledged in the last sync interval is lost if the machine fails too
    #[arg(long, short)]
    force: bool,
}

#[derive(Serialize)]
struct Unmounted {
    directory: PathBuf,
    /// Why not everything is on disk; only with --force.
    given_up: Option<String>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let directory = &arguments.directory;
    let unwritten = if arguments.force { Unwritten::GiveUp } else { Unwritten::Keep };
    let given_up = unmount(directory, arguments.wait.0, unwritten).map_err(|error| {
        let failed = Problem::new(format!("cannot unmount {}", directory.display()));
        let problem = match &error {
            Error::Unmount { source, .. } => failed.caused_by(source),
            error => failed.caused_by(error),
        };
        match error {
            Error::Busy { .. } => problem.next("End what holds it, then unmount again."),
            Error::StillRunning { .. } => problem.next("Wait for that process to end before the store is used."),
            Error::NotDurable { .. } => {
                let force = format!("varve umount --force {}", directory.display());
                problem.next(format!(
                    "Bring the store back, or the server, then unmount again. If that cannot be, `{force}` gives up what is not written."
                ))
            }
            _ => problem,
        }
    })?;
    let given_up = given_up.map(|error| error.to_string());
    let exit = if given_up.is_some() { Exit::Degraded } else { Exit::Done };
    let unmounted = Unmounted { directory: directory.clone(), given_up };
    output.result("umount", &unmounted, text)?;
    Ok(exit)
}

fn text(unmounted: &Unmounted) -> String {
    let Some(reason) = &unmounted.given_up else { return String::new() };
    format!(
        "{} is unmounted, and not everything was written: {reason}.\n\
         What was written to files that were neither closed nor fsynced is lost. What was acknowledged before is in the\n\
         volume's logs; `varve fsck` shows what is wrong there.\n",
        unmounted.directory.display()
    )
}
