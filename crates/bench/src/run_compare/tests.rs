//! Promises of the comparison: only what the intervals confirm, and nothing that was lost goes unnoticed.

use super::*;
use crate::run_file::{RUN_SCHEMA_VERSION, RunEntry, RunTarget};

fn run(metrics: &[(&str, f64)]) -> RunFile {
    let entry = |(metric, base): &(&str, f64)| RunEntry {
        workload: "mdtest".to_owned(),
        target: "native".to_owned(),
        metric: (*metric).to_owned(),
        unit: "ops/s".to_owned(),
        higher_is_better: true,
        samples: (0..8).map(|turn| base + f64::from(turn)).collect(),
        ..RunEntry::default()
    };
    RunFile {
        schema_version: RUN_SCHEMA_VERSION,
        targets: vec![RunTarget { label: "native".to_owned(), ..RunTarget::default() }],
        entries: metrics.iter().map(entry).collect(),
        ..RunFile::default()
    }
}

#[test]
fn comparison_counts_only_confirmed_differences() {
    let before = run(&[("create", 1000.0), ("stat", 1000.0), ("delete", 1000.0), ("read", 1000.0), ("rename", 1.0)]);
    let after = run(&[("create", 1500.0), ("stat", 500.0), ("delete", 1004.0), ("read", 1040.0)]);
    let comparison = compare(&before, &after, 0.05).unwrap();
    let verdicts: Vec<&str> = comparison.measurements.iter().map(|compared| compared.verdict).collect();
    assert_eq!(verdicts, ["better", "worse", "noise", "noise"]);
    assert_eq!((comparison.better, comparison.worse), (1, 1));
    assert_eq!(comparison.lost, ["native: mdtest rename"]);
    assert!(comparison.to_text().contains("1 better, 1 worse, 2 without"), "{}", comparison.to_text());
    assert!(compare(&before, &run(&[("other", 1.0)]), 0.05).is_err());
}
