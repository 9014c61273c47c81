//! Two runs of the same suite beside each other, as before and after an upgrade.

#[cfg(test)]
mod tests;

use crate::report::numbers;
use crate::run_file::RunFile;
use crate::run_report::answer::{Verdict, compare_unpaired};
use crate::{Error, Result};
use serde::Serialize;
use std::fmt::Write;

/// The measurements of two runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RunComparison {
    pub measurements: Vec<ComparedMeasurement>,
    pub better: usize,
    pub worse: usize,
    /// Measurements of the run before that the run after lacks.
    pub lost: Vec<String>,
    /// Reasons why the runs may not be comparable.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedMeasurement {
    /// `native: mdtest create (clients=8)`.
    pub name: String,
    pub unit: String,
    pub before: f64,
    pub after: f64,
    /// Above 1 is better than before.
    pub ratio: f64,
    /// `better`, `worse`, `noise` or `too few`.
    pub verdict: &'static str,
}

/// Compares measurements that both runs have. A verdict needs intervals that do not overlap, and a difference above
/// `ignore`.
///
/// # Errors
/// [`Error::Usage`] if the runs have no measurement in common.
pub fn compare(before: &RunFile, after: &RunFile, ignore: f64) -> Result<RunComparison> {
    let mut comparison =
        RunComparison { measurements: Vec::new(), better: 0, worse: 0, lost: Vec::new(), notes: notes(before, after) };
    for entry in &before.entries {
        let name = match entry.conditions() {
            conditions if conditions.is_empty() => format!("{}: {}", entry.target, entry.name()),
            conditions => format!("{}: {} ({conditions})", entry.target, entry.name()),
        };
        let Some(now) = after.entries.iter().find(|now| now.target == entry.target && now.is_like(entry)) else {
            comparison.lost.push(name);
            continue;
        };
        let Some(compared) = compare_unpaired(now, entry) else { continue };
        let is_small = (compared.ratio - 1.0).abs() <= ignore;
        let verdict = match compared.verdict {
            Verdict::Better if !is_small => "better",
            Verdict::Worse if !is_small => "worse",
            Verdict::TooFew => "too few",
            _ => "noise",
        };
        comparison.better += usize::from(verdict == "better");
        comparison.worse += usize::from(verdict == "worse");
        let (before, after) = (entry.median(), now.median());
        let unit = entry.unit.clone();
        comparison.measurements.push(ComparedMeasurement { name, unit, before, after, ratio: compared.ratio, verdict });
    }
    if comparison.measurements.is_empty() {
        let what = "the two runs have no measurement in common: run the same suite with the same target names";
        return Err(Error::Usage(what.to_owned()));
    }
    Ok(comparison)
}

fn notes(before: &RunFile, after: &RunFile) -> Vec<String> {
    let mut notes = Vec::new();
    let machines = (before.environment.machine(), after.environment.machine());
    if machines.0 != machines.1 {
        notes.push(format!("the run before is of another machine: {} and {}", machines.0, machines.1));
    }
    if before.suite != after.suite {
        notes.push(format!("the suites differ: {:?} and {:?}", before.suite, after.suite));
    }
    if before.environment.debug_build != after.environment.debug_build {
        notes.push("one of the runs is of a debug build".to_owned());
    }
    notes
}

impl RunComparison {
    /// A table for a terminal; no trailing newline.
    pub fn to_text(&self) -> String {
        let width = self.measurements.iter().map(|compared| compared.name.chars().count()).max().unwrap_or(0);
        let mut text = format!("{:<width$} {:>12} {:>12} {:>7}\n", "measurement", "before", "after", "ratio");
        for compared in &self.measurements {
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{:<width$} {:>12} {:>12} {:>7}  {}",
                compared.name,
                numbers::with_commas(compared.before),
                numbers::with_commas(compared.after),
                numbers::ratio(compared.ratio),
                compared.verdict
            );
        }
        let same = self.measurements.len() - self.better - self.worse;
        let _ = write!(
            text,
            "\n{} better, {} worse, {same} without a difference beyond the noise. A ratio above 1 is better than before.",
            self.better, self.worse
        );
        for lost in &self.lost {
            let _ = write!(text, "\nnot measured any more: {lost}");
        }
        for note in &self.notes {
            let _ = write!(text, "\nnote: {note}");
        }
        text
    }
}
