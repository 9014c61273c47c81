//! The report: seconds of each program in each directory, and the ratio to the first directory.

use super::{Samples, TreeConfig, TreeProgram};
use crate::environment::Environment;
use crate::measure::{Interval, Spread, paired_ratios};
use serde::{Deserialize, Serialize};
use std::fmt::Write;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeReport {
    pub arguments: Vec<String>,
    pub environment: Environment,
    pub names: u64,
    pub files: u64,
    pub repeat: u32,
    /// Programs that are not installed, and therefore not measured.
    pub missing: Vec<String>,
    pub results: Vec<TreeResult>,
}

/// One program.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeResult {
    pub workload: String,
    /// The command line of the program.
    pub command: String,
    pub via: Vec<TreeSample>,
}

/// One program in one directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TreeSample {
    pub directory: String,
    pub seconds: Spread,
    /// Seconds here divided by those in the first directory, by turns: above 1 is slower.
    pub ratio: Spread,
    /// Of the ratio's median, from 10 turns on.
    pub interval: Option<Interval>,
}

impl TreeReport {
    pub(super) fn of(
        config: &TreeConfig,
        environment: Environment,
        programs: &[TreeProgram],
        missing: &[TreeProgram],
        samples: &Samples,
    ) -> TreeReport {
        let results = programs.iter().zip(samples).map(|(program, samples)| TreeResult {
            workload: program.name().to_owned(),
            command: program.command_line(),
            via: config
                .directories
                .iter()
                .zip(samples)
                .map(|(directory, these)| {
                    // Every turn takes some time, so no reference is 0.
                    let (ratio, interval) = paired_ratios(these, &samples[0]).unwrap_or_default();
                    let seconds = Spread::of(these).unwrap_or_default();
                    TreeSample { directory: directory.display().to_string(), seconds, ratio, interval }
                })
                .collect(),
        });
        TreeReport {
            arguments: config.arguments.clone(),
            environment,
            names: config.names,
            files: config.files,
            repeat: config.repeat,
            missing: missing.iter().map(|program| program.name().to_owned()).collect(),
            results: results.collect(),
        }
    }

    /// # Errors
    /// If a figure cannot be written as JSON.
    pub fn to_json(&self) -> crate::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// A table with a line for each program and directory.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{} names in one directory, {} files in a tree, {} turns after one that is not counted; {}",
            self.names,
            self.files,
            self.repeat,
            self.environment.machine()
        );
        let _ = writeln!(text, "{:<12} {:>10} {:>8}  {:<17} directory", "program", "seconds", "ratio", "interval");
        for result in &self.results {
            for sample in &result.via {
                let interval = sample.interval.map_or("-".to_owned(), |at| format!("{:.2} to {:.2}", at.low, at.high));
                let _ = writeln!(
                    text,
                    "{:<12} {:>10.4} {:>8.2}  {interval:<17} {}",
                    result.workload, sample.seconds.median, sample.ratio.median, sample.directory
                );
            }
        }
        for missing in &self.missing {
            let _ = writeln!(text, "note: {missing} is not measured, because its program is not installed");
        }
        for warning in self.environment.warnings() {
            let _ = writeln!(text, "warning: {warning}");
        }
        text.truncate(text.trim_end().len());
        text
    }
}
