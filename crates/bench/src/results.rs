//! The results of a workload that ranks run: figures by target, number of clients and parameters, with every sample.

mod run;
#[cfg(test)]
mod tests;
mod text;

use crate::environment::Environment;
use crate::measure::{Latencies, Percentiles, Timeline};
use crate::ranks::PhaseRecord;
use std::collections::{BTreeMap, BTreeSet};

pub use crate::run_file::marks::{
    APPLICATION as MARK_APPLICATION, DRAINED as MARK_DRAINED, PAGE_CACHE as MARK_PAGE_CACHE, PARTIAL as MARK_PARTIAL,
};

/// Parameters of a figure, by name: `size` to `4096`.
pub type Parameters = BTreeMap<String, serde_json::Value>;

#[derive(Clone, Debug)]
pub struct RunResults {
    /// `bench data`, for example.
    pub command: String,
    pub arguments: Vec<String>,
    pub environment: Environment,
    /// `threads`, `processes`, or the launcher's name.
    pub driven_by: String,
    pub results: Vec<Measured>,
    /// Reasons to distrust the figures, a sentence each.
    pub warnings: Vec<String>,
    /// Why the run ended early. All figures that were complete until then are there.
    pub error: Option<String>,
}

/// One figure at one target.
#[derive(Clone, Debug)]
pub struct Measured {
    pub workload: String,
    /// `path:/scratch/me`, for example.
    pub target: String,
    pub clients: usize,
    pub parameters: Parameters,
    /// `create`, for example.
    pub metric: String,
    pub unit: String,
    pub higher_is_better: bool,
    /// One a turn.
    pub samples: Vec<f64>,
    /// Highest and lowest samples that tables leave out, so many of each.
    pub discard: usize,
    /// Of single operations, over all turns.
    pub latency_us: Option<Percentiles>,
    /// When the first and when the last client was done, in seconds, a pair a turn.
    pub first_and_last_done_s: Vec<(f64, f64)>,
    /// Rate over time of the last turn: the end of an interval in seconds, and units a second.
    pub timeline: Vec<(f64, f64)>,
    pub marks: BTreeSet<String>,
    latencies: Latencies,
}

/// One sample of a figure.
#[derive(Clone, Debug)]
pub(crate) struct Figure {
    pub metric: String,
    pub unit: &'static str,
    pub higher_is_better: bool,
    pub value: f64,
    /// The phase whose latencies and rate over time belong to the figure.
    pub phase: Option<String>,
    pub marks: Vec<&'static str>,
}

impl Figure {
    pub(crate) fn rate(metric: impl Into<String>, unit: &'static str, value: f64, phase: &str) -> Figure {
        let phase = Some(phase.to_owned());
        Figure { metric: metric.into(), unit, higher_is_better: true, value, phase, marks: Vec::new() }
    }

    /// A figure without a phase of its own.
    pub(crate) fn plain(metric: &str, unit: &'static str, higher_is_better: bool, value: f64) -> Figure {
        Figure { metric: metric.to_owned(), unit, higher_is_better, value, phase: None, marks: Vec::new() }
    }

    pub(crate) fn marked(mut self, marks: impl IntoIterator<Item = &'static str>) -> Figure {
        self.marks.extend(marks);
        self
    }
}

/// The parameters and the target of a figure.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FigureKey {
    pub workload: &'static str,
    pub target: String,
    pub clients: usize,
    pub parameters: Parameters,
}

impl RunResults {
    pub(crate) fn keep(&mut self, key: &FigureKey, figure: Figure, phases: &[PhaseRecord]) {
        let phase = figure.phase.and_then(|name| phases.iter().find(|phase| phase.phase == name));
        let index =
            self.results.iter().position(|known| known.is(key, &figure.metric, figure.unit)).unwrap_or_else(|| {
                self.results.push(Measured::new(key, figure.metric, figure.unit, figure.higher_is_better));
                self.results.len() - 1
            });
        let measured = &mut self.results[index];
        // A rate over a part of the work would falsify those over the whole work; alone, it is better than nothing.
        let is_partial = figure.marks.contains(&MARK_PARTIAL);
        if is_partial && !measured.samples.is_empty() {
            measured.marks.insert(MARK_PARTIAL.to_owned());
            return;
        }
        measured.samples.push(figure.value);
        measured.marks.extend(figure.marks.iter().map(|mark| (*mark).to_owned()));
        let Some(phase) = phase else { return };
        measured.first_and_last_done_s.push((phase.first_done.as_secs_f64(), phase.last_done.as_secs_f64()));
        measured.timeline = Timeline::rates(&phase.timeline);
        measured.latencies.add(&phase.latencies);
        measured.latency_us = Some(measured.latencies.percentiles());
        if phase.partial {
            measured.marks.insert(MARK_PARTIAL.to_owned());
        }
    }

    /// The run ended before all turns of these parameters: their figures at all targets have fewer samples than asked for.
    pub(crate) fn mark_partial(&mut self, workload: &str, clients: usize, parameters: &Parameters) {
        let of_key = self.results.iter_mut().filter(|known| {
            (known.workload.as_str(), known.clients, &known.parameters) == (workload, clients, parameters)
        });
        of_key.for_each(|known| {
            known.marks.insert(MARK_PARTIAL.to_owned());
        });
    }

    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        let warning = warning.into();
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// One line, for `--json`: a run file.
    ///
    /// # Errors
    /// If a figure cannot be written as JSON.
    pub fn to_json(&self) -> crate::Result<String> {
        run::to_json(self)
    }

    /// A line for each sample: workload, target, clients, parameters, metric, unit, turn, value, marks.
    pub fn to_csv(&self) -> String {
        let mut csv = "workload,target,clients,parameters,metric,unit,turn,value,marks\n".to_owned();
        for measured in &self.results {
            for (turn, value) in measured.samples.iter().enumerate() {
                let fields = [
                    measured.workload.clone(),
                    measured.target.clone(),
                    measured.clients.to_string(),
                    measured.parameters_text(),
                    measured.metric.clone(),
                    measured.unit.clone(),
                    turn.to_string(),
                    value.to_string(),
                    measured.marks.iter().cloned().collect::<Vec<_>>().join("; "),
                ];
                csv.push_str(&fields.map(|field| csv_field(&field)).join(","));
                csv.push('\n');
            }
        }
        csv
    }

    /// Tables for a terminal; no trailing newline.
    pub fn to_text(&self) -> String {
        text::render(self)
    }
}

impl Measured {
    fn new(key: &FigureKey, metric: String, unit: &str, higher_is_better: bool) -> Measured {
        Measured {
            workload: key.workload.to_owned(),
            target: key.target.clone(),
            clients: key.clients,
            parameters: key.parameters.clone(),
            metric,
            unit: unit.to_owned(),
            higher_is_better,
            samples: Vec::new(),
            discard: 0,
            latency_us: None,
            first_and_last_done_s: Vec::new(),
            timeline: Vec::new(),
            marks: BTreeSet::new(),
            latencies: Latencies::default(),
        }
    }

    fn is(&self, key: &FigureKey, metric: &str, unit: &str) -> bool {
        self.metric == metric
            && self.unit == unit
            && self.clients == key.clients
            && self.target == key.target
            && self.workload == key.workload
            && self.parameters == key.parameters
    }

    /// The samples without the discarded ones, in their order. Too few stay as they are.
    pub fn kept_samples(&self) -> Vec<f64> {
        if self.samples.len() <= 2 * self.discard {
            return self.samples.clone();
        }
        let mut order: Vec<usize> = (0..self.samples.len()).collect();
        order.sort_by(|a, b| self.samples[*a].total_cmp(&self.samples[*b]));
        let mut kept = order[self.discard..self.samples.len() - self.discard].to_vec();
        kept.sort_unstable();
        kept.into_iter().map(|index| self.samples[index]).collect()
    }

    /// `rate=10 streams=1`
    pub(crate) fn parameters_text(&self) -> String {
        let words = self.parameters.iter().map(|(name, value)| match value {
            serde_json::Value::String(text) => format!("{name}={text}"),
            other => format!("{name}={other}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }
}

/// RFC 4180. A field that begins with a formula's sign gets an apostrophe, because spreadsheets would run it.
fn csv_field(text: &str) -> String {
    let is_number = text.parse::<f64>().is_ok();
    let text = if !is_number && text.starts_with(['=', '+', '-', '@']) { format!("'{text}") } else { text.to_owned() };
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
}
