//! `varve record recover FILE`: a valid file with every acknowledged frame, after a crash of its writer.

use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use varve_detector::recover::{RecoverError, Recovered, recover};

/// Make a run's file whole after its writer died; the journal beside it is used up
#[derive(Debug, Args)]
pub struct Arguments {
    /// The run's HDF5 file
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

#[derive(Serialize)]
struct Told {
    file: PathBuf,
    #[serde(flatten)]
    recovered: Recovered,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let recovered = recover(&arguments.file).map_err(|error| {
        let problem = Problem::new(format!("cannot recover {}", arguments.file.display())).caused_by(&error);
        match error {
            RecoverError::NothingToDo { .. } => problem.next("Open the file: it is whole."),
            _ => problem,
        }
    })?;
    let told = Told { file: arguments.file.clone(), recovered };
    output.result("record recover", &told, |told| {
        let counts = &told.recovered.counts;
        columns(&[
            ("file", told.file.display().to_string()),
            ("frames", (counts.received + counts.late + counts.duplicate).to_string()),
            ("missing", counts.missing.to_string()),
            ("damaged", counts.damaged.to_string()),
        ])
    })?;
    // A damaged frame was never acknowledged as durable; whoever waits for it must know all the same.
    Ok(if told.recovered.counts.damaged > 0 { Exit::Degraded } else { Exit::Done })
}
