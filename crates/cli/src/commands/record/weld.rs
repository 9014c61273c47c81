//! `varve record weld MASTER OUT`: one file from the files that a virtual dataset shows.

use crate::identity::{self, Work};
use crate::output::{Output, columns};
use crate::problem::{Exit, Problem, Result};
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use varve_detector_tools::weld::weld;
use varve_detector_writer::Finished;

/// Copy the frames that a virtual dataset shows from their files into one new file, without decompressing them
#[derive(Debug, Args)]
pub struct Arguments {
    /// File with the virtual dataset
    #[arg(value_name = "MASTER")]
    master: PathBuf,
    /// HDF5 file to create
    #[arg(value_name = "OUT")]
    out: PathBuf,
    /// Name of the dataset in the files, if the master has several virtual datasets
    #[arg(long, value_name = "NAME")]
    dataset: Option<String>,
    /// Groups of the new file: `raw`, `nexus`, or an areaDetector XML layout file
    #[arg(long, value_name = "LAYOUT", default_value = "nexus")]
    layout: PathBuf,
    /// TOML or JSON file with metadata of the run
    #[arg(long, value_name = "FILE")]
    metadata: Option<PathBuf>,
}

#[derive(Serialize)]
struct WeldOutput {
    file: PathBuf,
    #[serde(flatten)]
    finished: Finished,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let structure = super::structure(&arguments.layout)?;
    let metadata = arguments.metadata.as_deref().map(super::metadata).transpose()?;
    let failed = || Problem::new(format!("cannot weld the files of {}", arguments.master.display()));
    // Root has the rights of the user whose directory the new file is in, who could put a link in its place.
    let absolute = std::path::absolute(&arguments.out).map_err(|error| failed().caused_by(&error))?;
    identity::take(absolute.parent().unwrap_or(Path::new("/")), Work::Detector, failed)?;
    let finished = weld(&arguments.master, arguments.dataset.as_deref(), &arguments.out, |description| {
        description.structure = structure;
        if let Some(metadata) = metadata {
            metadata.add_to(description);
        }
    });
    let finished = finished.map_err(|error| failed().caused_by(&error))?;
    let missing = finished.counts.missing;
    output.result("record weld", &WeldOutput { file: arguments.out.clone(), finished }, lines)?;
    Ok(if missing > 0 { Exit::Degraded } else { Exit::Done })
}

fn lines(welded: &WeldOutput) -> String {
    let counts = &welded.finished.counts;
    columns(&[
        ("file", welded.file.display().to_string()),
        ("frames", counts.received.to_string()),
        ("missing", counts.missing.to_string()),
        ("file bytes", welded.finished.file_bytes.to_string()),
    ])
}
