//! Whether a storage carries the load of an experiment, from the measured figures of a run: with what margin, what
//! limits first, and what would have to change.
//!
//! A figure is taken at the low end of its interval (or its lowest turn), because an experiment cannot repeat a frame.

#[cfg(test)]
mod tests;

use crate::measure::median_interval;
use crate::report::numbers;
use crate::run_file::{RunEntry, RunFile, RunTarget, marks, parameters, units};
use crate::{Error, Result};
use serde::Serialize;
use std::fmt::Write;
use std::str::FromStr;
use varve_detector_tools::simulator::DetectorModel;

/// A load that takes more of a limit than this leaves nothing for a disk that fails or a second user.
const MARGIN_WANTED: f64 = 1.5;
const MIB: f64 = 1048576.0;
/// Faster detectors do not exist.
const RATE_MAX: f64 = 1e6;

/// `eiger16m@100`: a model and its frames a second.
#[derive(Clone, Debug, PartialEq)]
pub struct DetectorLoad {
    pub name: String,
    pub model: DetectorModel,
    pub rate_hz: f64,
}

impl FromStr for DetectorLoad {
    type Err = Error;

    fn from_str(text: &str) -> Result<DetectorLoad> {
        let fail = |why: String| Error::Usage(format!("{text:?} is no detector and rate, such as eiger16m@100: {why}"));
        let (name, rate) = text.split_once('@').ok_or_else(|| fail("it has no @".to_owned()))?;
        let rate_hz: f64 = rate.parse().map_err(|_| fail(format!("{rate:?} is no number of frames a second")))?;
        if !(rate_hz > 0.0 && rate_hz <= RATE_MAX) {
            return Err(fail(format!("the rate is above 0 and at most {RATE_MAX}")));
        }
        let model: DetectorModel = name.parse().map_err(|error| fail(format!("{error}")))?;
        Ok(DetectorLoad { name: name.to_owned(), model, rate_hz })
    }
}

/// Into how many files the frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlannedFiles {
    /// One file for each frame, as with CBF images.
    PerFrame,
    /// So many files in all.
    Count(u64),
}

impl FromStr for PlannedFiles {
    type Err = Error;

    fn from_str(text: &str) -> Result<PlannedFiles> {
        match (text, text.parse()) {
            ("per-frame", _) => Ok(PlannedFiles::PerFrame),
            (_, Ok(count)) if count > 0 => Ok(PlannedFiles::Count(count)),
            _ => Err(Error::Usage(format!("{text:?} is no number of files: write a number above 0, or per-frame"))),
        }
    }
}

pub struct PlanRequest {
    pub detectors: Vec<DetectorLoad>,
    pub hours: f64,
    pub files: PlannedFiles,
    /// By which the detector's frames shrink before they are written.
    pub compress_ratio: f64,
}

/// The answer for all targets of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LoadPlan {
    pub frames: f64,
    pub bytes: f64,
    pub files: f64,
    pub targets: Vec<PlannedTarget>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedTarget {
    pub target: String,
    /// `None`: the run has no figure that would tell.
    pub carries: Option<bool>,
    /// The smallest margin first.
    pub limits: Vec<PlannedLimit>,
    /// Figures that the run lacks, and reasons to distrust those that it has.
    pub notes: Vec<String>,
}

/// One thing that may limit the load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PlannedLimit {
    /// `bytes a second`, `file creation`, `space`.
    pub name: String,
    pub unit: String,
    pub needed: f64,
    pub measured: f64,
    /// Measured over needed: below 1 the storage does not carry the load.
    pub margin: f64,
    /// The change that would give the margin; empty if the margin suffices.
    pub advice: String,
    /// Where the figure comes from.
    pub source: String,
}

/// The needs of the experiment.
struct Need {
    frames_per_s: f64,
    mib_per_s: f64,
    creates_per_s: f64,
    bytes: f64,
}

/// # Errors
/// [`Error::Usage`] for a load that makes no sense.
pub fn plan(request: &PlanRequest, run: &RunFile) -> Result<LoadPlan> {
    let fail = |why: &str| Err(Error::Usage(why.to_owned()));
    if request.detectors.is_empty() {
        return fail("give at least one --detector, such as eiger16m@100");
    }
    if !(request.hours > 0.0 && request.hours.is_finite()) {
        return fail("--hours must be above 0");
    }
    if !(request.compress_ratio >= 1.0 && request.compress_ratio.is_finite()) {
        return fail("--compress-ratio must be 1 or more");
    }
    let seconds = request.hours * 3600.0;
    let frames_per_s: f64 = request.detectors.iter().map(|detector| detector.rate_hz).sum();
    let bytes_per_s: f64 = request.detectors.iter().map(bytes_per_s).sum::<f64>() / request.compress_ratio;
    let files = match request.files {
        PlannedFiles::PerFrame => frames_per_s * seconds,
        PlannedFiles::Count(count) => count as f64,
    };
    let need = Need {
        frames_per_s,
        mib_per_s: bytes_per_s / MIB,
        creates_per_s: files / seconds,
        bytes: bytes_per_s * seconds,
    };
    let targets = run.targets.iter().map(|target| judge(target, run, &need)).collect();
    Ok(LoadPlan { frames: frames_per_s * seconds, bytes: need.bytes, files, targets })
}

fn bytes_per_s(detector: &DetectorLoad) -> f64 {
    let model = &detector.model;
    model.width as f64 * model.height as f64 * model.element.size() as f64 * detector.rate_hz
}

fn judge(target: &RunTarget, run: &RunFile, need: &Need) -> PlannedTarget {
    let of: Vec<&RunEntry> =
        run.entries.iter().filter(|entry| entry.target == target.label && entry.tool.is_empty()).collect();
    let (mut limits, mut notes) = (Vec::new(), Vec::new());
    // A rate until the store has the data, if there is one: an experiment fills every cache.
    let written = |metric: &str| best(&of, |entry| entry.unit == units::MIB_PER_S && entry.metric == metric);
    let write = written("write_drained").or_else(|| written("write"));
    match write {
        Some(entry) => limits.push(bandwidth(entry, need)),
        None => notes.push("the run has no write throughput (bench stream): bytes a second are not judged".to_owned()),
    }
    // One file a second and more is a load of its own.
    let create = best(&of, |entry| entry.metric == "create" && entry.unit == units::OPS_PER_S);
    match create {
        Some(entry) => limits.push(creation(entry, need)),
        None => notes.push("the run has no create rate (bench mdtest): file creation is not judged".to_owned()),
    }
    match target.free_bytes {
        Some(free) => limits.push(space(free, need)),
        None => notes.push("the run does not say how much space is free".to_owned()),
    }
    for (entry, what) in [(write, "write throughput"), (create, "create rate")] {
        let Some(entry) = entry else { continue };
        for mark in &entry.marks {
            let meaning = match mark.as_str() {
                marks::PAGE_CACHE => "may be of the page cache, and the storage slower",
                marks::PARTIAL => "is of a measurement that ended early",
                marks::DEBUG_BUILD => "is of a debug build, which is slower",
                _ => continue,
            };
            notes.push(format!("the {what} {meaning}"));
        }
    }
    limits.sort_by(|a, b| a.margin.total_cmp(&b.margin));
    let carries = limits.first().map(|first| first.margin >= 1.0);
    // Without a throughput, nothing says that the load is carried; a limit that is too small says that it is not.
    let carries = if write.is_none() && carries == Some(true) { None } else { carries };
    PlannedTarget { target: target.label.clone(), carries, limits, notes }
}

/// The highest rate: a site drives its storage with as many clients as suit it.
fn best<'a>(of: &[&'a RunEntry], wanted: impl Fn(&RunEntry) -> bool) -> Option<&'a RunEntry> {
    of.iter().filter(|entry| wanted(entry)).max_by(|a, b| dependable(a).total_cmp(&dependable(b))).copied()
}

/// The low end of the interval, or the lowest turn.
fn dependable(entry: &RunEntry) -> f64 {
    median_interval(&entry.samples).map_or(entry.spread().min, |interval| interval.low)
}

fn source(entry: &RunEntry) -> String {
    format!("{} ({})", entry.name(), entry.conditions())
}

fn bandwidth(entry: &RunEntry, need: &Need) -> PlannedLimit {
    let measured = dependable(entry);
    let margin = measured / need.mib_per_s;
    let advice = advise(margin, |factor| {
        format!(
            "{factor} times the write throughput; or frames compressed {factor} times as much; or {} frames a second \
             instead of {}",
            numbers::with_commas(need.frames_per_s * margin / MARGIN_WANTED),
            numbers::with_commas(need.frames_per_s)
        )
    });
    let (name, unit) = ("bytes a second".to_owned(), units::MIB_PER_S.to_owned());
    PlannedLimit { name, unit, needed: need.mib_per_s, measured, margin, advice, source: source(entry) }
}

fn creation(entry: &RunEntry, need: &Need) -> PlannedLimit {
    let measured = dependable(entry);
    let margin = measured / need.creates_per_s;
    let advice =
        advise(margin, |factor| format!("{factor} times the create rate; or {factor} times as many frames in a file"));
    let bytes = entry.number(parameters::FILE_BYTES).unwrap_or(0.0);
    let source = format!("{}, files of {}", source(entry), numbers::bytes(bytes as u64));
    let (name, unit) = ("file creation".to_owned(), "files/s".to_owned());
    PlannedLimit { name, unit, needed: need.creates_per_s, measured, margin, advice, source }
}

fn space(free: u64, need: &Need) -> PlannedLimit {
    const GIB: f64 = 1073741824.0;
    let margin = free as f64 / need.bytes;
    let advice = advise(margin, |factor| {
        format!("{factor} times the free space; or move the data away during the experiment; or compress it")
    });
    PlannedLimit {
        name: "space".to_owned(),
        unit: "GiB".to_owned(),
        needed: need.bytes / GIB,
        measured: free as f64 / GIB,
        margin,
        advice,
        source: "free space at the start of the run".to_owned(),
    }
}

/// `change` gets the factor that is missing to the wanted margin.
fn advise(margin: f64, change: impl Fn(String) -> String) -> String {
    if margin >= MARGIN_WANTED { String::new() } else { change(numbers::ratio(MARGIN_WANTED / margin)) }
}

impl LoadPlan {
    /// Whether at least one target carries the load.
    pub fn is_carried(&self) -> bool {
        self.targets.iter().any(|target| target.carries == Some(true))
    }

    /// For a terminal; no trailing newline.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "The experiment has {} frames, {} and {} files.",
            numbers::with_commas(self.frames),
            numbers::bytes(self.bytes as u64),
            numbers::with_commas(self.files)
        );
        for target in &self.targets {
            target.describe(&mut text);
        }
        text
    }
}

impl PlannedTarget {
    fn describe(&self, text: &mut String) {
        let margin = |limit: &PlannedLimit| numbers::ratio(limit.margin);
        let answer = match (self.carries, self.limits.first()) {
            (Some(true), Some(first)) if first.margin < MARGIN_WANTED => {
                format!(
                    "carries the load, but barely: {} limits first, at {} times the need",
                    first.name,
                    margin(first)
                )
            }
            (Some(true), Some(first)) => {
                format!("carries the load: {} limits first, at {} times the need", first.name, margin(first))
            }
            (Some(false), Some(first)) => {
                format!("does not carry the load: {} reaches {} times the need", first.name, margin(first))
            }
            _ => "is not judged: the run has no figure that would tell".to_owned(),
        };
        let _ = write!(text, "\n\n{} {answer}.", self.target);
        for limit in &self.limits {
            let _ = write!(
                text,
                "\n  {:<15} needs {:>10} {}, has {:>10}: {} times the need",
                limit.name,
                numbers::with_commas(limit.needed),
                limit.unit,
                numbers::with_commas(limit.measured),
                margin(limit)
            );
            if !limit.advice.is_empty() {
                let _ = write!(text, "\n    to have half as much again: {}", limit.advice);
            }
        }
        for note in &self.notes {
            let _ = write!(text, "\n  note: {note}");
        }
    }
}
