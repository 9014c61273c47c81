//! Promises of the plan: margins from the dependable end of the figures, what limits first, and what is not known.

use super::*;
use crate::run_file::RUN_SCHEMA_VERSION;

fn run(write: &[f64], create: &[f64], free_bytes: Option<u64>) -> RunFile {
    let entry = |metric: &str, unit: &str, samples: &[f64]| RunEntry {
        workload: "stream".to_owned(),
        target: "native".to_owned(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        higher_is_better: true,
        samples: samples.to_vec(),
        ..RunEntry::default()
    };
    let write = (!write.is_empty()).then(|| entry("write", units::MIB_PER_S, write));
    RunFile {
        schema_version: RUN_SCHEMA_VERSION,
        targets: vec![RunTarget { label: "native".to_owned(), free_bytes, ..RunTarget::default() }],
        entries: write.into_iter().chain([entry("create", units::OPS_PER_S, create)]).collect(),
        ..RunFile::default()
    }
}

fn request(detector: &str, files: PlannedFiles) -> PlanRequest {
    PlanRequest { detectors: vec![detector.parse().unwrap()], hours: 24.0, files, compress_ratio: 1.0 }
}

#[test]
fn plan_names_the_margin_and_what_limits_first() {
    // 1024 × 1024 × 2 bytes are 2 MiB; at 100 Hz 200 MiB/s, and 16.5 TiB a day.
    let request = request("1024x1024xu16@100", PlannedFiles::PerFrame);
    let plan = plan(&request, &run(&[500.0, 400.0], &[1000.0], Some(100 << 40))).unwrap();
    let target = &plan.targets[0];
    let margins: Vec<(&str, f64)> = target.limits.iter().map(|limit| (limit.name.as_str(), limit.margin)).collect();
    assert_eq!(margins[0], ("bytes a second", 2.0), "the lowest of two turns counts");
    assert_eq!(margins[2], ("file creation", 10.0));
    assert_eq!((target.carries, plan.files), (Some(true), 8_640_000.0));
    assert!(target.limits[0].advice.is_empty());
    assert!(
        plan.to_text().contains("carries the load: bytes a second limits first, at 2.00 times"),
        "{}",
        plan.to_text()
    );
}

#[test]
fn plan_says_what_would_have_to_change() {
    let request = request("1024x1024xu16@100", PlannedFiles::Count(1));
    let plan = plan(&request, &run(&[100.0], &[1000.0], Some(1 << 40))).unwrap();
    let text = plan.to_text();
    assert!(!plan.is_carried() && text.contains("does not carry the load: space"), "{text}");
    assert!(text.contains("3.00 times the write throughput"), "{text}");
    assert!(text.contains("33.3 frames a second instead of 100"), "{text}");
}

#[test]
fn plan_without_a_figure_claims_nothing() {
    let request = request("eiger16m@1", PlannedFiles::Count(1));
    let plan = plan(&request, &run(&[], &[1000.0], None)).unwrap();
    assert_eq!(plan.targets[0].carries, None);
    assert_eq!(plan.targets[0].notes.len(), 2);
    assert!(!plan.is_carried());
}

#[test]
fn loads_that_make_no_sense_are_refused() {
    for bad in ["eiger16m", "eiger16m@", "eiger16m@-1", "eiger16m@inf", "eiger16m@nan", "telescope@1"] {
        assert!(bad.parse::<DetectorLoad>().is_err(), "{bad}");
    }
    assert!("0".parse::<PlannedFiles>().is_err());
    assert_eq!("per-frame".parse::<PlannedFiles>().unwrap(), PlannedFiles::PerFrame);
    let mut request = request("eiger16m@1", PlannedFiles::PerFrame);
    request.hours = 0.0;
    assert!(plan(&request, &run(&[1.0], &[1.0], None)).is_err());
}
