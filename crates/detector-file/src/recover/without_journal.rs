//! Examines a file without a journal: either its run ended normally and removed the journal, or the journal was lost.

use crate::report::{RunReport, report};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use varve_detector_hdf5::superblock::{self, Superblock};

/// Kind of a file without a journal.
#[derive(Clone, Debug, PartialEq)]
pub enum Alone {
    /// The run ended normally, or the file was recovered.
    Finished,
    /// The journal is missing.
    Unfinished(UnfinishedFile),
    /// Not a file of this project's runs.
    Foreign(String),
}

/// Frames that are readable in an unfinished file.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct UnfinishedFile {
    /// Number of complete frames, including duplicate and late ones.
    pub frames: u64,
    pub missing: u64,
    pub damaged: u64,
    pub partial: u64,
}

/// Distinguishes finished from unfinished files. While a run writes its file, the file is longer than its superblock
/// states; it is truncated when the run ends.
pub fn look(path: &Path) -> io::Result<Alone> {
    let file = File::open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Ok(Alone::Foreign("it is a directory; give the run's file in it".into()));
    }
    let bytes = metadata.len();
    let mut head = [0; superblock::LENGTH];
    match file.read_exact_at(&mut head, 0) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Ok(Alone::Foreign(format!("it has {bytes} bytes, less than the head of an HDF5 file")));
        }
        Err(error) => return Err(error),
    }
    let Some(Superblock { end, .. }) = Superblock::decode(&head) else {
        return Ok(match head.iter().all(|byte| *byte == 0) {
            true => Alone::Unfinished(UnfinishedFile::default()),
            false => Alone::Foreign("it does not begin as an HDF5 file of a run does".into()),
        });
    };
    match bytes {
        _ if bytes < end => Ok(Alone::Foreign(format!(
            "it was truncated by another program: it has {bytes} of its {end} bytes, and no reader opens it"
        ))),
        _ if bytes == end => Ok(Alone::Finished),
        _ => Ok(match report(path) {
            Ok(report) => Alone::Unfinished(UnfinishedFile::of(&report)),
            Err(error) => Alone::Foreign(error.to_string()),
        }),
    }
}

impl UnfinishedFile {
    fn of(report: &RunReport) -> UnfinishedFile {
        let RunReport { received, missing, damaged, duplicate, late, partial, .. } = *report;
        UnfinishedFile { frames: received + duplicate + late, missing, damaged, partial }
    }
}

/// Error for an unfinished file whose journal is missing; its text has the remedy.
#[derive(Debug, thiserror::Error)]
#[error(
    "{path} is not finished, and its journal {journal} is missing, the only record of the frames after the last \
    commit: if it was moved, put it back and recover again; as it is, the file opens with the {} frames of its last \
    commit ({} missing, {} damaged, {} partial)",
    left.frames, left.missing, left.damaged, left.partial
)]
pub struct NoJournal {
    pub path: PathBuf,
    pub journal: PathBuf,
    pub left: UnfinishedFile,
}
