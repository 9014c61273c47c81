//! elbencho's result files: CSV (`--csvfile`) and JSON (`--jsonfile`, a document for each phase).
//!
//! elbencho gives each rate when the first worker has finished and when the last one has. The last one counts here: it
//! includes all the work.

use super::{Read, entry, set};
use crate::run_file::{RunEntry, parameters, units};
use serde_json::Value;

const MIB: f64 = 1048576.0;

/// One phase, from either form.
#[derive(Default)]
struct ElbenchoPhase {
    name: String,
    version: String,
    hosts: Option<u64>,
    threads: Option<u64>,
    file_bytes: Option<u64>,
    block_bytes: Option<u64>,
    entries_per_s: Option<f64>,
    mib_per_s: Option<f64>,
}

pub(super) fn read(text: &str) -> Read<Vec<RunEntry>> {
    let phases = if text.trim_start().starts_with('{') { json(text)? } else { csv(text)? };
    let mut entries = Vec::new();
    for phase in phases {
        for found in phase.entries() {
            super::collect(&mut entries, found);
        }
    }
    if entries.is_empty() { Err("it has no phase with a rate".to_owned()) } else { Ok(entries) }
}

impl ElbenchoPhase {
    fn entries(&self) -> Vec<RunEntry> {
        // Names in files and directories: those of `bench mdtest` where the work is the same.
        let (metric, of_entries) = match self.name.as_str() {
            "MKDIRS" => ("mkdir", "mkdir"),
            "RMDIRS" => ("rmdir", "rmdir"),
            "STAT" | "STATFILES" => ("stat", "stat"),
            "RMFILES" => ("delete", "delete"),
            "WRITE" => ("write", "create"),
            "READ" => ("read", "read files"),
            _ => return Vec::new(),
        };
        let tool = if self.version.is_empty() { "elbencho".to_owned() } else { format!("elbencho-{}", self.version) };
        let positive = |rate: Option<f64>| rate.filter(|rate| *rate > 0.0);
        let bytes = positive(self.mib_per_s).map(|rate| (metric, units::MIB_PER_S, rate));
        let names = positive(self.entries_per_s).map(|rate| (of_entries, units::OPS_PER_S, rate));
        let clients = self.threads.map(|threads| threads * self.hosts.unwrap_or(1).max(1));
        let found = [bytes, names].into_iter().flatten().map(|(metric, unit, rate)| {
            let mut entry = entry("elbencho", metric, unit, &tool, vec![rate]);
            set(&mut entry, parameters::CLIENTS, clients);
            set(&mut entry, parameters::FILE_BYTES, self.file_bytes);
            set(&mut entry, parameters::TRANSFER_BYTES, self.block_bytes);
            entry
        });
        found.collect()
    }
}

/// A header, and a line for each phase. elbencho keeps commas out of its cells, and appends runs to one file.
fn csv(text: &str) -> Read<Vec<ElbenchoPhase>> {
    let mut phases = Vec::new();
    let mut header: Vec<&str> = Vec::new();
    for line in text.lines().filter(|line| !line.trim().is_empty()) {
        let cells: Vec<&str> = line.split(',').map(|cell| cell.trim().trim_matches('"')).collect();
        if cells.contains(&"operation") {
            header = cells;
            continue;
        }
        let cell = |name: &str| {
            let at = header.iter().position(|column| *column == name)?;
            cells.get(at).copied().filter(|cell| !cell.is_empty())
        };
        phases.push(ElbenchoPhase {
            name: cell("operation").ok_or("it has no column `operation`")?.to_owned(),
            version: cell("version").unwrap_or_default().to_owned(),
            hosts: cell("hosts").and_then(|cell| cell.parse().ok()),
            threads: cell("threads").and_then(|cell| cell.parse().ok()),
            file_bytes: cell("file size").and_then(|cell| cell.parse().ok()),
            block_bytes: cell("block size").and_then(|cell| cell.parse().ok()),
            entries_per_s: cell("entries/s [last]").and_then(|cell| cell.parse().ok()),
            mib_per_s: cell("MiB/s [last]").and_then(|cell| cell.parse().ok()),
        });
    }
    Ok(phases)
}

fn json(text: &str) -> Read<Vec<ElbenchoPhase>> {
    let mut phases = Vec::new();
    for document in serde_json::Deserializer::from_str(text).into_iter::<Value>() {
        let document = document.map_err(|error| error.to_string())?;
        let (config, done) = (&document["config"], &document["last_done"]);
        let count = |value: &Value| number(value).map(|number| number as u64);
        phases.push(ElbenchoPhase {
            name: document["phase_type"].as_str().ok_or("a document has no `phase_type`")?.to_owned(),
            version: config["version"].as_str().unwrap_or_default().to_owned(),
            hosts: count(&config["hosts"]),
            threads: count(&config["threads"]),
            file_bytes: count(&config["file_size"]),
            block_bytes: count(&config["block_size"]),
            entries_per_s: number(&done["entries/s"]),
            mib_per_s: number(&done["bytes/s"]).map(|bytes| bytes / MIB),
        });
    }
    Ok(phases)
}

/// elbencho writes numbers as strings.
fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}
