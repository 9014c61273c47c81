//! The workloads that a suite can run, and how each takes its targets.

use super::SuiteTarget;
use crate::run_file::RunFile;
use crate::target::Via;
use crate::workloads::scale::ScaleReport;
use crate::workloads::tree::TreeReport;
use crate::{Error, Result, report::BenchReport};

/// One command of `varve bench`.
#[derive(Debug, PartialEq, Eq)]
pub struct WorkloadRule {
    pub name: &'static str,
    pub targets: TargetWords,
    /// Whether it measures volumes through the library too.
    pub libraries: bool,
    /// Whether it has the option `--repeat`.
    pub repeats: bool,
}

/// How a command takes its targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetWords {
    /// `--via path:DIR --via mount:DIR`.
    Via,
    /// Directories after the options; all in one command.
    Directories,
    /// One plain directory, in which the command makes volumes of its own: a command for each.
    OneDirectory,
}

const fn rule(name: &'static str, targets: TargetWords, libraries: bool, repeats: bool) -> WorkloadRule {
    WorkloadRule { name, targets, libraries, repeats }
}

pub const WORKLOADS: [WorkloadRule; 4] = [
    rule("mdtest", TargetWords::Via, true, true),
    rule("stream", TargetWords::Via, false, true),
    rule("tree", TargetWords::Directories, false, true),
    rule("scale", TargetWords::OneDirectory, false, false),
];

impl WorkloadRule {
    pub(super) fn suits(&self, target: &SuiteTarget) -> bool {
        match (&target.via, self.targets) {
            (Via::Library(_), _) => self.libraries,
            (Via::Mount(_), TargetWords::OneDirectory) => false,
            _ => true,
        }
    }

    pub(super) fn target_words(&self, targets: &[SuiteTarget]) -> Vec<String> {
        match self.targets {
            TargetWords::Via => targets.iter().flat_map(|target| ["--via".into(), target.via.to_string()]).collect(),
            TargetWords::Directories | TargetWords::OneDirectory => {
                ["--".to_owned()].into_iter().chain(targets.iter().map(|target| target.via.place())).collect()
            }
        }
    }

    /// The figures in the output of the command. A workload prints a run file, or a report of its own.
    pub(super) fn read(&self, json: &str, targets: &[SuiteTarget]) -> Result<RunFile> {
        let value: serde_json::Value = serde_json::from_str(json)?;
        if value.get("entries").is_some() {
            return RunFile::from_json(json);
        }
        match self.name {
            "tree" => Ok(RunFile::from(&serde_json::from_value::<TreeReport>(value)?)),
            "scale" => {
                let report: ScaleReport = serde_json::from_value(value)?;
                let target = targets.first().map(|target| target.via.to_string());
                Ok(RunFile::of_scale(&report, &target.unwrap_or_default()))
            }
            "mdtest" | "stream" => Ok(RunFile::from(&BenchReport::from_json(json)?)),
            other => Err(Error::Usage(format!("the output of `bench {other}` is no run file"))),
        }
    }
}
