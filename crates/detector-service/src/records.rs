//! State that survives a kill of the service: one file per run, `.varve-record/NAME.json` below its directory. It is
//! written before the run's first frame and again when the run has ended.

use super::pva::PvaSource;
use super::request::{RECORDS, StartRequest};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use varve_detector_dataset::ranges::Ranges;
use varve_detector_stream::FinishedHead;
use varve_detector_stream2::Stream2Series;
use varve_detector_writer::WriterProgress;
use varve_env::disk;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunRecord {
    pub request: StartRequest,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<Box<TakenSeries>>,
    /// The PV whose frames the run has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pva: Option<PvaSource>,
    /// The run's file was created. If file and journal are missing, the run was recovered and moved away, or removed.
    #[serde(default)]
    pub begun: bool,
    /// A client that sends frames began the run, and is expected to return to the next service.
    #[serde(default)]
    pub by_client: bool,
    /// Absent while the run is unfinished.
    #[serde(default)]
    pub ended: Option<RunEnd>,
}

/// A DECTRIS detector's series: contents of its start message and first image, which the detector does not send again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TakenSeries {
    /// Address of the detector's stream.
    pub detector: String,
    pub series: Stream2Series,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    pub how: EndKind,
    /// Explanation for people; may be empty.
    pub why: String,
    pub finished: FinishedHead,
    /// Ranges of frames in the file: first frame and count.
    pub frames: Vec<(u64, u64)>,
    /// The ranges of the second and further sources, if each source sends a region of every frame.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Vec<(u64, u64)>>,
    /// Progress up to the end.
    #[serde(default)]
    pub progress: WriterProgress,
    #[serde(default)]
    pub tallied: Tallied,
    /// Clients that took part. A client whose connection broke before the notification of the end may ask again.
    #[serde(default)]
    pub clients: Vec<[u8; 16]>,
}

/// Counts kept outside the writer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tallied {
    /// Frames that clients dropped before sending.
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
    /// Either the file is valid with all frames so far, or `why` says what to do.
    Failed,
}

impl RunRecord {
    /// The record of a run that begins on request.
    pub fn of(request: StartRequest) -> RunRecord {
        RunRecord { request, series: None, pva: None, begun: false, by_client: false, ended: None }
    }
}

impl RunEnd {
    /// The frames of each distinguished source.
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
    /// Opens the records below `root`.
    ///
    /// # Errors
    /// If their directory cannot be created.
    pub fn open(root: &Path) -> io::Result<RunRecords> {
        let directory = root.join(RECORDS);
        disk::create_directories(&directory)?;
        Ok(RunRecords(directory))
    }

    /// Removes partial files of a service that died.
    pub fn remove_leftovers(&self) -> io::Result<()> {
        disk::remove_leftovers(&self.0, &[]).map(drop)
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

    /// All readable records, and the errors of the others.
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
