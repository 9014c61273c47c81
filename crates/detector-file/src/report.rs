//! Analysis of the times in a run's file: how long frames took from stage to stage, and which stage is the slowest.

use hdf5_reader::group::Group;
use hdf5_reader::{Dataset, Hdf5File};
use serde::Serialize;
use std::path::{Path, PathBuf};
use varve_detector_dataset::frame::{FrameStatus, Times};

#[derive(Debug, thiserror::Error)]
#[error("{path}: {why}")]
pub struct ReportError {
    path: PathBuf,
    why: String,
}

/// Duration of one stage, in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StageTiming {
    pub name: &'static str,
    /// Number of frames with known times at both ends of the stage.
    pub frames: u64,
    pub mean_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p99_ms: f64,
    pub max_ms: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunReport {
    /// Number of frames by status.
    pub received: u64,
    pub missing: u64,
    pub damaged: u64,
    pub duplicate: u64,
    pub late: u64,
    pub partial: u64,
    /// In the order in which a frame passes them, followed by the total.
    pub stages: Vec<StageTiming>,
    /// The stage with the largest mean; `None` without times.
    pub slowest: Option<&'static str>,
}

/// Stages: name, and the indexes in [`Times::NAMES`] of start and end.
const STAGES: [(&str, usize, usize); 4] = [("transfer", 0, 1), ("compression", 1, 2), ("write", 2, 3), ("sync", 3, 4)];

/// Reads the file at `path`. If it is still being written, the report covers the published frames.
///
/// # Errors
/// If it cannot be read, or has no times.
pub fn report(path: &Path) -> Result<RunReport, ReportError> {
    let (status, times) = open(path)?;
    let columns: Result<Vec<Vec<u64>>, _> = times.iter().map(read).collect();
    let columns = columns.map_err(|cause| ReportError { path: path.to_owned(), why: cause.to_string() })?;
    Ok(RunReport::new(&status, &columns))
}

/// Reads the status of each frame in the file at `path`.
///
/// # Errors
/// Same as [`report`].
pub fn status(path: &Path) -> Result<Vec<u8>, ReportError> {
    open(path).map(|(status, _)| status)
}

/// The status dataset's content and the datasets of times.
fn open(path: &Path) -> Result<(Vec<u8>, Vec<Dataset>), ReportError> {
    let error = |why: String| ReportError { path: path.to_owned(), why };
    let file = Hdf5File::open(path).map_err(|cause| error(cause.to_string()))?;
    let root = file.root_group().map_err(|cause| error(cause.to_string()))?;
    let (status, times) = find(&root, 0)
        .map_err(|cause| error(cause.to_string()))?
        .ok_or_else(|| error("it has no `frame_status` with `times`; only files of varve runs have them".into()))?;
    Ok((status.read_raw_bytes().map_err(|cause| error(cause.to_string()))?, times))
}

type Found = Option<(Dataset, Vec<Dataset>)>;

/// Deeper than any layout of this project; it also bounds the search where groups contain each other.
const DEPTH_MAX: usize = 16;

/// Searches the status dataset and the datasets of times, wherever a layout has placed them.
fn find(group: &Group, depth: usize) -> Result<Found, hdf5_reader::error::Error> {
    let (groups, _) = group.member_names()?;
    if groups.iter().any(|name| name == "times")
        && let Ok(status) = group.dataset("frame_status")
    {
        let times = group.group("times")?;
        let datasets: Result<Vec<Dataset>, _> = Times::NAMES.iter().map(|name| times.dataset(name)).collect();
        if let Ok(datasets) = datasets {
            return Ok(Some((status, datasets)));
        }
    }
    if depth < DEPTH_MAX {
        for name in groups {
            if let Some(found) = find(&group.group(&name)?, depth + 1)? {
                return Ok(Some(found));
            }
        }
    }
    Ok(None)
}

fn read(dataset: &Dataset) -> Result<Vec<u64>, hdf5_reader::error::Error> {
    Ok(dataset.read_array::<u64>()?.iter().copied().collect())
}

impl RunReport {
    /// `columns`: in the order of [`Times::NAMES`], one value per frame.
    fn new(status: &[u8], columns: &[Vec<u64>]) -> RunReport {
        let count = |wanted: FrameStatus| status.iter().filter(|byte| **byte == wanted as u8).count() as u64;
        let stage = |name, from: usize, to: usize| {
            let ends = columns[from].iter().zip(&columns[to]).filter(|(from, to)| **from > 0 && **to > 0);
            StageTiming::new(name, ends.map(|(from, to)| to.saturating_sub(*from)).collect())
        };
        let mut stages: Vec<StageTiming> = STAGES.iter().map(|(name, from, to)| stage(name, *from, *to)).collect();
        let known = stages.iter().filter(|stage| stage.frames > 0);
        let slowest = known.max_by(|one, other| one.mean_ms.total_cmp(&other.mean_ms)).map(|stage| stage.name);
        stages.push(stage("received-to-durable", 1, 4));
        RunReport {
            received: count(FrameStatus::Received),
            missing: count(FrameStatus::Missing),
            damaged: count(FrameStatus::Damaged),
            duplicate: count(FrameStatus::Duplicate),
            late: count(FrameStatus::Late),
            partial: count(FrameStatus::Partial),
            stages,
            slowest,
        }
    }
}

impl StageTiming {
    fn new(name: &'static str, mut nanoseconds: Vec<u64>) -> StageTiming {
        nanoseconds.sort_unstable();
        let frames = nanoseconds.len();
        let ms = |nanoseconds: f64| nanoseconds / 1e6;
        // The smallest value that at least this share of the values does not exceed.
        let share = |share: f64| {
            let rank = (share * frames as f64).ceil() as usize;
            nanoseconds.get(rank.max(1) - 1).map_or(0.0, |value| ms(*value as f64))
        };
        let sum: f64 = nanoseconds.iter().map(|value| *value as f64).sum();
        StageTiming {
            name,
            frames: frames as u64,
            mean_ms: if frames == 0 { 0.0 } else { ms(sum / frames as f64) },
            p50_ms: share(0.5),
            p90_ms: share(0.9),
            p99_ms: share(0.99),
            max_ms: share(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_and_the_slowest_stage_is_named() {
        let status = [1, 1, 0, 4];
        let ms = 1_000_000;
        let columns = [
            vec![0, 0, 0, 0],
            vec![ms, ms, 0, ms],
            vec![2 * ms, 3 * ms, 0, 11 * ms],
            vec![3 * ms, 4 * ms, 0, 12 * ms],
            vec![9 * ms, 9 * ms, 0, 13 * ms],
        ];
        let report = RunReport::new(&status, &columns);
        assert_eq!((report.received, report.missing, report.late), (2, 1, 1));
        assert_eq!(report.stages[0].frames, 0);
        let compression = &report.stages[1];
        assert_eq!((compression.frames, compression.p50_ms, compression.p99_ms), (3, 2.0, 10.0));
        assert_eq!(report.slowest, Some("compression"));
        assert_eq!(report.stages[4].max_ms, 12.0);
    }
}
