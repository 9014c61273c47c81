//! Promises of the run file: it survives JSON, hostile files are refused, and single workloads convert.

use super::*;
use crate::report::{BenchReport, PhaseResult, SCHEMA_VERSION};

fn run() -> RunFile {
    let entry = RunEntry {
        workload: "mdtest".to_owned(),
        parameters: BTreeMap::from([(parameters::CLIENTS.to_owned(), 8.into())]),
        target: "native".to_owned(),
        metric: "create".to_owned(),
        unit: units::OPS_PER_S.to_owned(),
        higher_is_better: true,
        samples: vec![1000.0, 1200.0, 1100.0],
        ..RunEntry::default()
    };
    RunFile {
        schema_version: RUN_SCHEMA_VERSION,
        command: "bench suite".to_owned(),
        targets: vec![RunTarget {
            label: "native".to_owned(),
            via: "path:/scratch".to_owned(),
            ..RunTarget::default()
        }],
        entries: vec![entry],
        ..RunFile::default()
    }
}

#[test]
fn run_file_round_trips_json_and_new_keys_are_ignored() {
    let json = run().to_json().unwrap();
    assert_eq!(RunFile::from_json(&json).unwrap(), run());
    let later = json.replacen('{', "{\"from_the_future\":[1],", 1);
    assert_eq!(RunFile::from_json(&later).unwrap(), run());
    assert_eq!(run().entries[0].median(), 1100.0);
    assert_eq!(run().entries[0].conditions(), "clients=8");
}

#[test]
fn run_file_out_of_limits_is_refused_with_the_reason() {
    let refused = |change: fn(&mut RunFile), reason: &str| {
        let mut bad = run();
        change(&mut bad);
        let error = bad.check().unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    };
    refused(|run| run.schema_version = 7, "version 7");
    refused(|run| run.entries[0].target = "other".to_owned(), "none of its targets");
    refused(|run| run.entries[0].samples.clear(), "no samples");
    refused(|run| run.entries[0].samples[0] = f64::NAN, "no samples");
    refused(|run| run.entries[0].timeline = vec![TimelinePoint::default(); TIMELINE_MAX + 1], "points");
    assert!(RunFile::from_json("{}").is_err());
}

#[test]
fn reports_of_single_workloads_convert() {
    let phase = |phase: &str, mib_per_s: Option<Spread>| PhaseResult {
        via: "path".to_owned(),
        phase: phase.to_owned(),
        clients: 2,
        files: 100,
        ops_per_s: Spread::of(&[5.0, 7.0]).unwrap(),
        latency_us: Percentiles::default(),
        target: "/x".to_owned(),
        mib_per_s,
    };
    let mut report = BenchReport {
        schema_version: SCHEMA_VERSION,
        command: "bench mdtest".to_owned(),
        results: vec![phase("create", None)],
        ceilings: Vec::new(),
        ratios: Vec::new(),
        settings: BTreeMap::from([("write_bytes".to_owned(), 4096.into())]),
        environment: Environment::default(),
        warnings: Vec::new(),
        arguments: Vec::new(),
    };
    let converted = RunFile::from(&report);
    converted.check().unwrap();
    let entry = &converted.entries[0];
    assert_eq!((entry.workload.as_str(), entry.target.as_str(), entry.unit.as_str()), ("mdtest", "path:/x", "ops/s"));
    assert_eq!((entry.clients(), entry.number(parameters::FILE_BYTES)), (Some(2.0), Some(4096.0)));

    report.command = "bench stream".to_owned();
    report.results = vec![phase("read", Spread::of(&[9.0]))];
    report.warnings = vec!["The kernel's caches were not dropped before reading; reads are of memory.".to_owned()];
    let converted = RunFile::from(&report);
    assert_eq!(converted.entries[0].samples, [9.0]);
    assert!(converted.entries[0].is_marked(marks::PAGE_CACHE));
}
