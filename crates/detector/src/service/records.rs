//! What the service must know after it was killed: a file a run, `.varve-record/NAME.json` beneath its directory, written
//! before the run's first frame and again when it has ended.

use super::request::StartRequest;
use crate::stream::{FinishedHead, Ranges};
use crate::stream2::Stream2Series;
use crate::writer::WriterProgress;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use varve_env::disk;

pub const DIRECTORY: &str = ".varve-record";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunRecord {
    pub request: StartRequest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Box<TakenSeries>>,
    /// Its file was made. One that is gone with its journal was recovered and moved away, or removed.
    #[serde(default)]
    pub begun: bool,
    /// Who began it brings its frames, and is to come back to the next service.
    #[serde(default)]
    pub by_client: bool,
    /// Absent while the run goes on.
    #[serde(default)]
    pub ended: Option<RunEnd>,
}

/// A DECTRIS detector's series: what its start and its first image said, which it does not say again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TakenSeries {
    /// Address of the detector's stream.
    pub detector: String,
    pub series: Stream2Series,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    pub how: EndKind,
    /// For people; empty if there is nothing to say.
    pub why: String,
    pub finished: FinishedHead,
    /// First frame and how many, of those in the file.
    pub frames: Vec<(u64, u64)>,
    /// Where each source brought a region of every frame, the same for each from the second on.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Vec<(u64, u64)>>,
    /// As far as it came.
    #[serde(default)]
    pub progress: WriterProgress,
    #[serde(default)]
    pub tallied: Tallied,
    /// Clients that took part: one whose connection broke before it heard the end may ask again.
    #[serde(default)]
    pub clients: Vec<[u8; 16]>,
}

/// What was counted beside the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tallied {
    /// Dropped by clients before they could send them.
    pub lost: u64,
    pub damaged: u64,
    pub duplicate: u64,
    pub refused: u64,
    pub received_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EndKind {
    Finished,
    Aborted,
    /// The file is valid with all frames so far, or `why` says what to do.
    Failed,
}

impl RunRecord {
    /// Of a run that is to begin because somebody asks for it.
    pub fn of(request: StartRequest) -> RunRecord {
        RunRecord { request, series: None, begun: false, by_client: false, ended: None }
    }
}

impl RunEnd {
    /// The frames of each source that is told apart.
    pub fn ranges(&self) -> Vec<Ranges> {
        let ranges = |pairs: &Vec<(u64, u64)>| {
            let mut ranges = Ranges::default();
            pairs.iter().for_each(|(first, many)| ranges.add(*first..first.saturating_add(*many)));
            ranges
        };
        std::iter::once(&self.frames).chain(&self.others).map(ranges).collect()
    }
}

pub struct RunRecords(PathBuf);

impl RunRecords {
    /// Those beneath `root`.
    ///
    /// # Errors
    /// If their directory cannot be made.
    pub fn open(root: &Path) -> io::Result<RunRecords> {
        let directory = root.join(DIRECTORY);
        disk::create_directories(&directory)?;
        Ok(RunRecords(directory))
    }

    /// Removes what a service that died was writing.
    pub fn remove_leftovers(&self) -> io::Result<()> {
        disk::remove_leftovers(&self.0).map(drop)
    }

    pub fn directory(&self) -> &Path {
        &self.0
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.json"))
    }

    pub fn write(&self, record: &RunRecord) -> io::Result<()> {
        let bytes = serde_json::to_vec(record).map_err(io::Error::other)?;
        disk::replace(&self.path(&record.request.name), &bytes)
    }

    pub fn remove(&self, name: &str) -> io::Result<()> {
        disk::remove_file(&self.path(name))
    }

    /// All, and what is wrong with those that cannot be read.
    pub fn read(&self) -> io::Result<(Vec<RunRecord>, Vec<String>)> {
        let (mut records, mut wrong) = (Vec::new(), Vec::new());
        for entry in std::fs::read_dir(&self.0)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "json") {
                match serde_json::from_slice(&std::fs::read(&path)?) {
                    Ok(record) => records.push(record),
                    Err(error) => wrong.push(format!("{}: {error}", path.display())),
                }
            }
        }
        Ok((records, wrong))
    }
}
