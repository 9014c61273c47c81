//! The results as a run file, which `varve report` reads.

use super::{Measured, RunResults};
use crate::run_file::{RUN_SCHEMA_VERSION, RunEntry, RunFile, RunStep, RunTarget, TimelinePoint, marks, parameters};
use serde_json::{Value, json};

impl From<&RunResults> for RunFile {
    fn from(results: &RunResults) -> RunFile {
        let mut run = RunFile {
            schema_version: RUN_SCHEMA_VERSION,
            command: results.command.clone(),
            arguments: results.arguments.clone(),
            environment: results.environment.clone(),
            warnings: results.warnings.iter().cloned().chain(results.environment.warnings()).collect(),
            steps: vec![RunStep {
                name: results.command.clone(),
                arguments: results.arguments.clone(),
                duration_s: results.environment.duration_s,
                failure: results.error.clone().unwrap_or_default(),
            }],
            ..RunFile::default()
        };
        for known in &results.environment.targets {
            let label = format!("{}:{}", known.via, known.target);
            let filesystem = known.filesystem.clone();
            run.targets.push(RunTarget { label: label.clone(), via: label, filesystem, free_bytes: None });
        }
        run.entries = results.results.iter().map(|measured| entry(measured, results)).collect();
        run
    }
}

fn entry(measured: &Measured, results: &RunResults) -> RunEntry {
    let mut of = measured.parameters.clone();
    of.insert(parameters::CLIENTS.to_owned(), json!(measured.clients));
    let debug = results.environment.debug_build.then(|| marks::DEBUG_BUILD.to_owned());
    RunEntry {
        workload: measured.workload.clone(),
        parameters: of,
        target: measured.target.clone(),
        metric: measured.metric.clone(),
        unit: measured.unit.clone(),
        higher_is_better: measured.higher_is_better,
        samples: measured.samples.clone(),
        discard: measured.discard,
        marks: measured.marks.iter().cloned().chain(debug).collect(),
        timeline: measured
            .timeline
            .iter()
            .map(|(seconds, value)| TimelinePoint { seconds: *seconds, value: *value })
            .collect(),
        latency_us: measured.latency_us,
        ..RunEntry::default()
    }
}

/// The run file's JSON, with what only these results have: who drove the run, when the first and the last client was done,
/// and why the run ended early. Readers of run files ignore these keys.
pub(super) fn to_json(results: &RunResults) -> crate::Result<String> {
    let mut value = serde_json::to_value(RunFile::from(results))?;
    value["driven_by"] = json!(results.driven_by);
    if let Some(error) = &results.error {
        value["error"] = json!(error);
    }
    if let Some(Value::Array(entries)) = value.get_mut("entries") {
        for (entry, measured) in entries.iter_mut().zip(&results.results) {
            if !measured.first_and_last_done_s.is_empty() {
                entry["first_and_last_done_s"] = json!(measured.first_and_last_done_s);
            }
        }
    }
    Ok(value.to_string())
}
