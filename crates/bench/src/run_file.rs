//! The run file: the one form in which workloads, suites and imports of other programs hand over their figures, and
//! the input of `varve report` and `varve plan`.
//!
//! A [`RunEntry`] holds the samples of one *metric* of one *workload* with one set of *parameters* at one *target*.
//! The `i`-th samples of all targets of one metric come from the same turn, so that two of them form a pair. Parameters
//! have the same names in all workloads ([`parameters`]), because figures and assertions select entries by them.
//!
//! A run file may come from anybody. [`RunFile::from_json`] checks its limits; the report escapes its texts.

mod convert;
#[cfg(test)]
mod tests;

use crate::environment::Environment;
use crate::measure::{Percentiles, Spread};
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Raised when a key changes its meaning or is removed; new keys do not raise it.
pub const RUN_SCHEMA_VERSION: u32 = 1;

/// A suite of an afternoon writes a few MiB. A larger file is not a run file.
pub const RUN_FILE_BYTES_MAX: u64 = 64 << 20;
/// Some thousand make a page that nobody reads.
pub const ENTRIES_MAX: usize = 20_000;
/// Points of one timeline; a chart shows no more.
pub const TIMELINE_MAX: usize = 100_000;

/// Names of parameters that figures and assertions know. A workload may add others.
pub mod parameters {
    /// Clients (threads, processes or ranks) of all hosts together: a number.
    pub const CLIENTS: &str = "clients";
    /// Files (or directories) of all clients together: a number.
    pub const FILES: &str = "files";
    /// Bytes of each file: a number.
    pub const FILE_BYTES: &str = "file_bytes";
    /// Bytes of one read or write call: a number.
    pub const TRANSFER_BYTES: &str = "transfer_bytes";
    /// `shared` (all clients in one directory or file) or `unique`.
    pub const LAYOUT: &str = "layout";
    /// Frames or images a second: a number.
    pub const RATE_HZ: &str = "rate_hz";
    /// Servers of a volume: a number.
    pub const SERVERS: &str = "servers";
}

/// Marks of entries: reasons to read a figure with care. A workload may add others, as short English phrases.
pub mod marks {
    /// The bytes may never have left the page cache.
    pub const PAGE_CACHE: &str = "page cache";
    /// The measurement ended early: an error, a signal, a rank that was killed.
    pub const PARTIAL: &str = "partial";
    /// As the application sees it; the store need not have the data yet.
    pub const APPLICATION: &str = "application";
    /// Until the store has the data.
    pub const DRAINED: &str = "drained";
    /// A pass was so short that its start and its end count.
    pub const SHORT: &str = "short passes";
    /// Measured with a debug build.
    pub const DEBUG_BUILD: &str = "debug build";
}

/// Units of metrics.
pub mod units {
    pub const OPS_PER_S: &str = "ops/s";
    pub const MIB_PER_S: &str = "MiB/s";
    pub const SECONDS: &str = "s";
    pub const MILLISECONDS: &str = "ms";
    pub const FRAMES: &str = "frames";
    pub const FRAMES_PER_S: &str = "frames/s";
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunFile {
    pub schema_version: u32,
    /// `bench suite`, `bench mdtest`, `report import`, ….
    pub command: String,
    /// The suite's name; empty for a single workload.
    #[serde(default)]
    pub suite: String,
    /// One sentence about the run, for the head of the report.
    #[serde(default)]
    pub title: String,
    /// The command line.
    #[serde(default)]
    pub arguments: Vec<String>,
    #[serde(default)]
    pub environment: Environment,
    pub targets: Vec<RunTarget>,
    pub entries: Vec<RunEntry>,
    /// The commands of a suite, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<RunStep>,
    /// Reasons to distrust the figures, a sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// A file system that was measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunTarget {
    /// The name in entries: `native`, or the same as `via` where the user gave no name.
    pub label: String,
    /// The target on the command line: `path:/scratch/x`, `mount:/mnt/v`, `library:/scratch/volume`.
    #[serde(default)]
    pub via: String,
    /// The type of the file system beneath: `xfs`, `nfs4`, `fuse.varve`.
    #[serde(default)]
    pub filesystem: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub free_bytes: Option<u64>,
}

/// One command of a suite.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunStep {
    pub name: String,
    /// The command line of the step.
    #[serde(default)]
    pub arguments: Vec<String>,
    #[serde(default)]
    pub duration_s: f64,
    /// Why it has no figures or only a part of them; empty if it succeeded.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub failure: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunEntry {
    /// `mdtest`, `stream`, `checkpoint`, `tree`, ….
    pub workload: String,
    #[serde(default)]
    pub parameters: BTreeMap<String, Value>,
    /// A label of [`RunFile::targets`].
    pub target: String,
    /// `create`, `stat`, `write`, `lateness`, ….
    pub metric: String,
    /// One of [`units`], or another.
    pub unit: String,
    pub higher_is_better: bool,
    /// One value a turn.
    pub samples: Vec<f64>,
    /// Highest and lowest samples that figures leave out, so many of each. Comparisons use all samples.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub discard: usize,
    /// [`marks`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<String>,
    /// The metric over the time of one turn.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<TimelinePoint>,
    /// Latencies of single operations, all turns together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Percentiles>,
    /// The program that measured, if it was not Varve: `fio-3.33`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tool: String,
}

/// The mean of the metric from the previous point to this one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimelinePoint {
    /// From the start of the turn.
    pub seconds: f64,
    pub value: f64,
}

impl RunFile {
    /// # Errors
    /// [`Error::Report`] for text that is no run file, [`Error::Usage`] for a version, size or number beyond the limits.
    pub fn from_json(text: &str) -> Result<RunFile> {
        let run: RunFile = serde_json::from_str(text)?;
        run.check()?;
        Ok(run)
    }

    /// One line, for `--json`.
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    pub fn check(&self) -> Result<()> {
        let fail = |text: String| Err(Error::Usage(text));
        if self.schema_version != RUN_SCHEMA_VERSION {
            let version = self.schema_version;
            return fail(format!("run file of version {version}: this program reads version {RUN_SCHEMA_VERSION}"));
        }
        if self.entries.len() > ENTRIES_MAX {
            return fail(format!("a run file has at most {ENTRIES_MAX} entries; this one has {}", self.entries.len()));
        }
        for entry in &self.entries {
            if !self.targets.iter().any(|target| target.label == entry.target) {
                return fail(format!("the run file has figures of {:?}, which is none of its targets", entry.target));
            }
            if entry.samples.is_empty() || !entry.samples.iter().all(|sample| sample.is_finite()) {
                return fail(format!(
                    "{} at {} has no samples, or some that are no numbers",
                    entry.name(),
                    entry.target
                ));
            }
            if entry.timeline.len() > TIMELINE_MAX {
                return fail(format!("{} at {} has more than {TIMELINE_MAX} points", entry.name(), entry.target));
            }
        }
        Ok(())
    }
}

impl RunEntry {
    /// `mdtest create`.
    pub fn name(&self) -> String {
        format!("{} {}", self.workload, self.metric)
    }

    /// All zero without samples, which [`RunFile::check`] excludes.
    pub fn spread(&self) -> Spread {
        Spread::of(&self.samples).unwrap_or_default()
    }

    pub fn median(&self) -> f64 {
        self.spread().median
    }

    /// The samples without the discarded ones. All of them if too few would remain.
    pub fn kept_samples(&self) -> Vec<f64> {
        let mut sorted = self.samples.clone();
        if self.discard == 0 || sorted.len() <= self.discard.saturating_mul(2) {
            return sorted;
        }
        sorted.sort_by(f64::total_cmp);
        sorted[self.discard..sorted.len() - self.discard].to_vec()
    }

    /// A numeric parameter.
    pub fn number(&self, parameter: &str) -> Option<f64> {
        self.parameters.get(parameter).and_then(Value::as_f64)
    }

    pub fn clients(&self) -> Option<f64> {
        self.number(parameters::CLIENTS)
    }

    pub fn is_marked(&self, mark: &str) -> bool {
        self.marks.iter().any(|marked| marked == mark)
    }

    /// Whether both measure the same thing, at one target or at two.
    pub fn is_like(&self, other: &RunEntry) -> bool {
        (&self.workload, &self.metric, &self.unit, &self.parameters, &self.tool)
            == (&other.workload, &other.metric, &other.unit, &other.parameters, &other.tool)
    }

    /// `clients=8, file_bytes=4096`; empty without parameters.
    pub fn conditions(&self) -> String {
        let one = |(name, value): (&String, &Value)| match value {
            Value::String(text) => format!("{name}={text}"),
            other => format!("{name}={other}"),
        };
        self.parameters.iter().map(one).collect::<Vec<_>>().join(", ")
    }
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}
