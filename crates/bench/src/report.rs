//! The report of a run as data ([`BenchReport`], which is also the JSON), as a text table, as a page, and compared with
//! a recorded one.

mod answer;
mod build;
pub(crate) mod chart;
mod compare;
pub(crate) mod numbers;
pub(crate) mod page;
#[cfg(test)]
pub(crate) mod tests;
mod text;

pub use build::{of_mdtest, of_stream};
pub use compare::{ComparedRatio, Comparison, REGRESSION, Ratios, Recorded, Regression, compare};
pub use page::render_all;

use crate::Result;
use crate::ceilings::{EMPTY_DIRECTORY, NULL_FUSE, REQUEST_REPLY, STORE};
use crate::environment::Environment;
use crate::measure::{Interval, Percentiles, Spread};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Raised when a key changes its meaning or is removed; new keys do not raise it.
pub const SCHEMA_VERSION: u32 = 1;

/// All results of a run. Its JSON is stable for later commands and other programs: `schema_version`, `command`,
/// `results` and `ceilings` keep their form, other keys are only ever added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    pub schema_version: u32,
    /// `bench mdtest` or `bench stream`.
    pub command: String,
    pub results: Vec<PhaseResult>,
    #[serde(default)]
    pub ceilings: Vec<CeilingResult>,
    #[serde(default)]
    pub ratios: Vec<Ratio>,
    /// The settings of the run, by name.
    #[serde(default)]
    pub settings: BTreeMap<String, serde_json::Value>,
    #[serde(default)]
    pub environment: Environment,
    /// Reasons to distrust the figures, a sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The command line.
    #[serde(default)]
    pub arguments: Vec<String>,
}

/// One phase at one target with one number of clients.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseResult {
    /// `library`, `mount` or `path`.
    pub via: String,
    pub phase: String,
    pub clients: usize,
    /// Files of all clients together.
    pub files: u64,
    pub ops_per_s: Spread,
    pub latency_us: Percentiles,
    /// The store or directory.
    #[serde(default)]
    pub target: String,
    /// Bytes per second; only for streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mib_per_s: Option<Spread>,
}

/// An upper bound that was measured in the same turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CeilingResult {
    pub name: String,
    /// The one target that it applies to, as `library:/scratch/me/volume`; `None`: all targets of its kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// The phase, for ceilings that run the same phases as targets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    pub clients: usize,
    /// The median.
    pub ops_per_s: f64,
    #[serde(default)]
    pub min: f64,
    #[serde(default)]
    pub max: f64,
    #[serde(default)]
    pub samples: Vec<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_us: Option<Percentiles>,
}

/// A target's rate divided by that of its reference in the same turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    pub via: String,
    #[serde(default)]
    pub target: String,
    pub phase: String,
    pub clients: usize,
    /// `path`, or the name of a ceiling.
    pub to: String,
    /// The median of the pairs' ratios.
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub pairs: usize,
    /// Present with ten pairs or more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<Interval>,
}

impl CeilingResult {
    /// Whether it bounds this target. The transport bounds the library, the null file system bounds mounts, the store
    /// bounds everything layered on it, and an empty directory bounds the prefilled directory of the same target. The
    /// variants of the transport are only informative.
    pub fn bounds(&self, via: &str, target: &str) -> bool {
        match self.name.as_str() {
            REQUEST_REPLY => via == "library",
            NULL_FUSE => via == "mount",
            STORE => via != "path",
            EMPTY_DIRECTORY => self.target.as_deref() == Some(&format!("{via}:{target}")),
            _ => false,
        }
    }
}

impl PhaseResult {
    /// The rate that the report shows: MiB a second for streams, else operations a second.
    pub fn rate(&self) -> &Spread {
        self.mib_per_s.as_ref().unwrap_or(&self.ops_per_s)
    }
}

impl BenchReport {
    pub fn from_json(text: &str) -> Result<BenchReport> {
        Ok(serde_json::from_str(text)?)
    }

    /// One line, for `--json`.
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string(self)?)
    }

    /// A self-contained HTML page.
    pub fn to_html(&self) -> String {
        page::render(self)
    }

    /// Rates with the largest number of clients and their ratios to the plain directory, for a terminal of 80 columns;
    /// no trailing newline.
    pub fn to_brief_text(&self) -> String {
        answer::Answer::of(self).map_or_else(String::new, |answer| answer.to_text(self))
    }

    /// mdtest's summary, with the targets side by side; no trailing newline.
    pub fn to_text(&self) -> String {
        text::render(self)
    }

    /// The name of a target within this report: its kind, with its place if the kind alone is ambiguous.
    pub fn label(&self, via: &str, target: &str) -> String {
        let others = self.results.iter().any(|result| result.via == via && result.target != target);
        if others { format!("{via}:{target}") } else { via.to_owned() }
    }

    /// Targets in order, each once.
    fn targets(&self) -> Vec<(&str, &str)> {
        let mut targets = Vec::new();
        for result in &self.results {
            let target = (result.via.as_str(), result.target.as_str());
            if !targets.contains(&target) {
                targets.push(target);
            }
        }
        targets
    }

    fn phases(&self) -> Vec<&str> {
        let mut phases = Vec::new();
        for result in &self.results {
            if !phases.contains(&result.phase.as_str()) {
                phases.push(result.phase.as_str());
            }
        }
        phases
    }

    fn clients(&self) -> Vec<usize> {
        let mut clients: Vec<usize> = self.results.iter().map(|result| result.clients).collect();
        clients.sort_unstable();
        clients.dedup();
        clients
    }

    /// The references of the ratios, in order, each once.
    fn references(&self) -> Vec<&str> {
        let mut references = Vec::new();
        for ratio in &self.ratios {
            if !references.contains(&ratio.to.as_str()) {
                references.push(ratio.to.as_str());
            }
        }
        references
    }

    fn ratio(&self, result: &PhaseResult, to: &str) -> Option<&Ratio> {
        self.ratios.iter().find(|ratio| {
            ratio.to == to
                && ratio.via == result.via
                && ratio.target == result.target
                && ratio.phase == result.phase
                && ratio.clients == result.clients
        })
    }

    fn unit(&self) -> &'static str {
        if self.results.iter().any(|result| result.mib_per_s.is_some()) { "MiB/s" } else { "operations/s" }
    }
}
