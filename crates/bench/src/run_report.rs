//! The report of run files: an answer in words, figures, tables, and the page and CSV files that show them.
//!
//! [`MergedRuns`] puts several run files side by side. [`answer`] compares the targets with the first one, and claims
//! only differences that an interval confirms. [`figures`] chooses what to draw, [`drawing`] draws it, [`page`] writes
//! the HTML page.

pub mod answer;
pub mod csv;
mod drawing;
pub mod figures;
mod page;
pub mod published;
#[cfg(test)]
mod tests;

pub use page::render;

use crate::run_file::{RunEntry, RunFile, RunTarget};
use crate::{Error, Result};
use answer::PairedResult;

/// A page of more runs cannot be read.
pub const RUNS_MAX: usize = 20;

/// Several run files as one. Targets that occur in several runs carry the name of their run.
pub struct MergedRuns {
    /// The name (of the file) and the run. Its entries have moved into `entries`.
    pub runs: Vec<(String, RunFile)>,
    pub targets: Vec<RunTarget>,
    /// The run of each target.
    run_of: Vec<usize>,
    pub entries: Vec<RunEntry>,
}

impl MergedRuns {
    /// # Errors
    /// [`Error::Usage`] without runs, with too many, or with two of one name.
    pub fn of(mut runs: Vec<(String, RunFile)>) -> Result<MergedRuns> {
        if runs.is_empty() || runs.len() > RUNS_MAX {
            return Err(Error::Usage(format!("a report is of 1 to {RUNS_MAX} run files")));
        }
        let is_twice = |at: usize, name: &str| runs[..at].iter().any(|(other, _)| other == name);
        if let Some((_, (name, _))) = runs.iter().enumerate().find(|(at, (name, _))| is_twice(*at, name)) {
            return Err(Error::Usage(format!("two run files have the name {name}: rename one")));
        }
        let labels: Vec<String> =
            runs.iter().flat_map(|(_, run)| run.targets.iter().map(|target| target.label.clone())).collect();
        let is_ambiguous = |label: &str| labels.iter().filter(|other| *other == label).count() > 1;
        let (mut targets, mut run_of, mut entries) = (Vec::new(), Vec::new(), Vec::new());
        for (at, (name, run)) in runs.iter_mut().enumerate() {
            run.check()?;
            for target in &mut run.targets {
                if is_ambiguous(&target.label) {
                    let label = format!("{name}: {}", target.label);
                    let old = std::mem::replace(&mut target.label, label.clone());
                    run.entries.iter_mut().filter(|entry| entry.target == old).for_each(|entry| {
                        entry.target = label.clone();
                    });
                }
            }
            targets.extend(run.targets.iter().cloned());
            run_of.resize(targets.len(), at);
            entries.append(&mut run.entries);
        }
        Ok(MergedRuns { runs, targets, run_of, entries })
    }

    /// The place of a target among all, which gives its colour.
    pub fn place(&self, label: &str) -> usize {
        self.targets.iter().position(|target| target.label == label).unwrap_or(0)
    }

    /// Compares two entries. Samples of one run are pairs, those of two runs are not.
    pub fn compare(&self, entry: &RunEntry, reference: &RunEntry) -> Option<PairedResult> {
        let run = |label: &str| self.run_of.get(self.place(label));
        match run(&entry.target) == run(&reference.target) {
            true => answer::compare_entries(entry, reference),
            false => answer::compare_unpaired(entry, reference),
        }
    }

    /// The first run with a title gives the title of the report.
    pub fn title(&self) -> &str {
        self.runs.iter().map(|(_, run)| run.title.as_str()).find(|title| !title.is_empty()).unwrap_or("Measurements")
    }
}
