//! Reports of single workloads as run files.

use super::{RUN_SCHEMA_VERSION, RunEntry, RunFile, RunTarget, TimelinePoint, marks, parameters, units};
use crate::environment::Environment;
use crate::report::{BenchReport, PhaseResult};
use crate::workloads::scale::ScaleReport;
use crate::workloads::tree::TreeReport;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The note of `bench stream` where reads may be of memory begins like this.
const CACHES_NOTE: &str = "The kernel's caches";

impl From<&BenchReport> for RunFile {
    fn from(report: &BenchReport) -> RunFile {
        let mut run = begun(&report.command, &report.arguments, &report.environment);
        run.warnings = report.warnings.clone();
        let workload = report.command.trim_start_matches("bench ");
        let cached = report.warnings.iter().any(|warning| warning.starts_with(CACHES_NOTE));
        for result in &report.results {
            let label = format!("{}:{}", result.via, result.target);
            run.add_target(&label, &report.environment);
            let streamed = result.mib_per_s.is_some();
            let mut marked = Vec::new();
            // A stream's write ends with its fsync; a reread is of memory by intent.
            match result.phase.as_str() {
                "write" if streamed => marked.push(marks::DRAINED),
                "read" if streamed && cached => marked.push(marks::PAGE_CACHE),
                "reread" => marked.push(marks::PAGE_CACHE),
                _ => {}
            }
            run.entries.push(RunEntry {
                workload: workload.to_owned(),
                parameters: phase_parameters(report, result),
                target: label,
                metric: result.phase.clone(),
                unit: if streamed { units::MIB_PER_S } else { units::OPS_PER_S }.to_owned(),
                higher_is_better: true,
                samples: samples(&result.rate().samples, result.rate().median),
                latency_us: Some(result.latency_us),
                marks: run.all_marks(&marked),
                ..RunEntry::default()
            });
        }
        run
    }
}

fn phase_parameters(report: &BenchReport, result: &PhaseResult) -> BTreeMap<String, Value> {
    let mut of = BTreeMap::from([(parameters::CLIENTS.to_owned(), json!(result.clients))]);
    let setting = |name: &str| report.settings.get(name).cloned();
    if result.mib_per_s.is_some() {
        let bytes = setting("bytes").map(|value| (parameters::FILE_BYTES, value));
        let block = setting("block_bytes").map(|value| (parameters::TRANSFER_BYTES, value));
        of.extend([bytes, block].into_iter().flatten().map(|(name, value)| (name.to_owned(), value)));
        return of;
    }
    of.insert(parameters::FILES.to_owned(), json!(result.files));
    let unique = setting("unique_dirs") == Some(Value::Bool(true));
    of.insert(parameters::LAYOUT.to_owned(), json!(if unique { "unique" } else { "shared" }));
    if setting("directories") != Some(Value::Bool(true)) {
        let bytes = setting("write_bytes").unwrap_or_else(|| json!(0));
        of.insert(parameters::FILE_BYTES.to_owned(), bytes);
    }
    if let Some(prefill) = setting("prefill").filter(|count| *count != json!(0)) {
        of.insert("prefill".to_owned(), prefill);
    }
    of
}

impl From<&TreeReport> for RunFile {
    fn from(report: &TreeReport) -> RunFile {
        let mut run = begun("bench tree", &report.arguments, &report.environment);
        run.warnings = report.environment.warnings();
        for result in &report.results {
            for sample in &result.via {
                let label = format!("path:{}", sample.directory);
                run.add_target(&label, &report.environment);
                let names = result.command.split(' ').any(|word| word == "names");
                let files = if names { report.names } else { report.files };
                run.entries.push(RunEntry {
                    workload: "tree".to_owned(),
                    parameters: BTreeMap::from([(parameters::FILES.to_owned(), json!(files))]),
                    target: label,
                    metric: result.workload.clone(),
                    unit: units::SECONDS.to_owned(),
                    higher_is_better: false,
                    samples: samples(&sample.seconds.samples, sample.seconds.median),
                    marks: run.all_marks(&[]),
                    ..RunEntry::default()
                });
            }
        }
        run
    }
}

impl RunFile {
    /// The figures of volumes with several servers in one directory, which is the target.
    pub fn of_scale(report: &ScaleReport, label: &str) -> RunFile {
        let mut run = begun(&report.command, &report.arguments, &Environment::default());
        run.add_target(label, &Environment::default());
        for result in &report.results {
            let timeline = result.timeline.iter().map(|&(seconds, value)| TimelinePoint { seconds, value });
            run.entries.push(RunEntry {
                workload: "scale".to_owned(),
                parameters: BTreeMap::from([
                    (parameters::SERVERS.to_owned(), json!(result.servers)),
                    (parameters::CLIENTS.to_owned(), json!(result.servers)),
                    (parameters::FILES.to_owned(), json!(result.files)),
                ]),
                target: label.to_owned(),
                metric: "create".to_owned(),
                unit: units::OPS_PER_S.to_owned(),
                higher_is_better: true,
                samples: vec![result.ops_per_s],
                timeline: timeline.collect(),
                marks: run.all_marks(&[]),
                ..RunEntry::default()
            });
        }
        run
    }

    fn add_target(&mut self, label: &str, environment: &Environment) {
        if self.targets.iter().any(|target| target.label == label) {
            return;
        }
        let place = |via: &str, target: &str| format!("{via}:{target}") == label;
        let known = environment.targets.iter().find(|known| place(&known.via, &known.target));
        let filesystem = known.map_or(String::new(), |known| known.filesystem.clone());
        self.targets.push(RunTarget { label: label.to_owned(), via: label.to_owned(), filesystem, free_bytes: None });
    }

    fn all_marks(&self, marked: &[&str]) -> Vec<String> {
        let debug = (self.environment.debug_build || cfg!(debug_assertions)).then_some(marks::DEBUG_BUILD);
        marked.iter().copied().chain(debug).map(str::to_owned).collect()
    }
}

fn begun(command: &str, arguments: &[String], environment: &Environment) -> RunFile {
    RunFile {
        schema_version: RUN_SCHEMA_VERSION,
        command: command.to_owned(),
        arguments: arguments.to_vec(),
        environment: environment.clone(),
        ..RunFile::default()
    }
}

/// Reports of older programs have no samples.
fn samples(samples: &[f64], median: f64) -> Vec<f64> {
    if samples.is_empty() { vec![median] } else { samples.to_vec() }
}
