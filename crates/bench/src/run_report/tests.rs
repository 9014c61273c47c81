//! Promises of the report: the answer claims only what intervals confirm, each figure is there, hostile texts are
//! escaped, and the page needs nothing but itself.

use super::answer::{Verdict, compare_entries, statements};
use super::published::{COLLECTIONS, Published};
use super::*;
use crate::measure::Percentiles;
use crate::report::tests::well_formed;
use crate::run_file::{RUN_SCHEMA_VERSION, RunStep, TimelinePoint, marks, parameters};
use serde_json::Value;
use std::collections::BTreeMap;

const HOSTILE: &str = "<img src=x onerror=\"alert('1')\">&amp;";

fn entry(target: &str, workload: &str, metric: &str, unit: &str, clients: u64, samples: &[f64]) -> RunEntry {
    RunEntry {
        workload: workload.to_owned(),
        parameters: BTreeMap::from([(parameters::CLIENTS.to_owned(), clients.into())]),
        target: target.to_owned(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        higher_is_better: unit != "s",
        samples: samples.to_vec(),
        latency_us: Some(Percentiles::default()),
        ..RunEntry::default()
    }
}

fn six(base: f64) -> Vec<f64> {
    (0..6).map(|turn| base * (1.0 + 0.01 * f64::from(turn))).collect()
}

/// A run like that of the suite `quick`, with all workloads.
fn run() -> RunFile {
    let mut entries = Vec::new();
    for (target, factor) in [("native", 1.0), ("varve", 3.0)] {
        for clients in [1, 2, 8] {
            for (metric, rate) in [("create", 1000.0), ("stat", 5000.0), ("delete", 2000.0)] {
                let mut empty = entry(target, "mdtest", metric, "ops/s", clients, &six(rate * factor * clients as f64));
                empty.parameters.insert(parameters::FILE_BYTES.to_owned(), 0.into());
                empty.parameters.insert(parameters::LAYOUT.to_owned(), "shared".into());
                entries.push(empty);
            }
            entries.push(entry(target, "stream", "write", "MiB/s", clients, &six(100.0)));
        }
        for bytes in [1024, 65536] {
            let mut sized = entry(target, "mdtest", "create", "ops/s", 8, &six(900.0 * factor));
            sized.parameters.insert(parameters::FILE_BYTES.to_owned(), bytes.into());
            sized.parameters.insert(parameters::LAYOUT.to_owned(), "shared".into());
            entries.push(sized);
        }
        entries.push(entry(target, "tree", "ls-l", "s", 1, &six(0.5)));
        let mut scaled = entry(target, "scale", "create", "ops/s", 4, &[9000.0]);
        scaled.timeline = (0..1000).map(|at| TimelinePoint { seconds: f64::from(at), value: 9000.0 }).collect();
        entries.push(scaled);
    }
    let target =
        |label: &str| RunTarget { label: label.to_owned(), via: format!("path:/{label}"), ..RunTarget::default() };
    RunFile {
        schema_version: RUN_SCHEMA_VERSION,
        command: "bench suite".to_owned(),
        title: "A first look".to_owned(),
        targets: vec![target("native"), target("varve")],
        entries,
        ..RunFile::default()
    }
}

fn merged(run: RunFile) -> MergedRuns {
    MergedRuns::of(vec![("run".to_owned(), run)]).unwrap()
}

#[test]
fn answer_claims_only_what_intervals_confirm() {
    let reference = entry("native", "mdtest", "create", "ops/s", 8, &[100.0, 110.0, 90.0, 100.0, 105.0, 95.0]);
    let verdict = |samples: &[f64]| {
        let other = entry("varve", "mdtest", "create", "ops/s", 8, samples);
        compare_entries(&other, &reference).unwrap().verdict
    };
    assert_eq!(verdict(&[120.0, 121.0, 110.0, 105.0, 108.0, 120.0]), Verdict::Better);
    assert_eq!(verdict(&[80.0, 81.0, 70.0, 65.0, 68.0, 60.0]), Verdict::Worse);
    assert_eq!(verdict(&[120.0, 121.0, 110.0, 105.0, 108.0, 94.0]), Verdict::Noise);
    assert_eq!(verdict(&[200.0; 5]), Verdict::TooFew);
    let slower = entry("varve", "tree", "ls-l", "s", 1, &[2.0; 6]);
    let times = entry("native", "tree", "ls-l", "s", 1, &[1.0; 6]);
    assert_eq!(
        compare_entries(&slower, &times).map(|paired| (paired.ratio, paired.verdict)),
        Some((0.5, Verdict::Worse))
    );
    let zero = entry("varve", "tree", "ls-l", "s", 1, &[0.0; 6]);
    assert_eq!(compare_entries(&zero, &times), None);
}

#[test]
fn answer_is_in_plain_words() {
    let said: Vec<String> = statements(&merged(run())).into_iter().map(|said| said.text).collect();
    assert!(
        said.contains(&"varve creates files 3.00 to 3.00 times as fast as native (8 clients).".to_owned()),
        "{said:?}"
    );
    let noise = said.iter().find(|text| text.contains("writes large files")).unwrap();
    assert!(noise.contains("within the noise"), "{noise}");
    let few = said.iter().find(|text| text.contains("scale create")).unwrap();
    assert!(few.contains("too few"), "{few}");
}

#[test]
fn every_figure_of_the_evaluations_is_chosen() {
    let ids: Vec<String> = figures::choose(&merged(run())).into_iter().map(|figure| figure.id).collect();
    let wanted = [
        "operations",
        "creates-against-clients",
        "small-files-create",
        "small-files-create-bytes",
        "stream-write",
        "tree",
        "scale",
        "scale-create-over-time",
    ];
    assert_eq!(ids, wanted);
}

#[test]
fn discarded_turns_are_left_out_of_figures() {
    let mut discarding = run();
    for entry in &mut discarding.entries {
        entry.samples = vec![1.0, 100.0, 101.0, 102.0, 103.0, 999.0];
        entry.discard = 1;
    }
    let figure = figures::choose(&merged(discarding)).remove(0);
    let point = &figure.series[0].points[0];
    assert_eq!((point.low, point.middle, point.high), (100.0, 101.5, 103.0));
}

#[test]
fn hostile_texts_of_run_files_are_escaped() {
    let mut hostile = run();
    for target in &mut hostile.targets {
        let label = format!("{}{HOSTILE}", target.label);
        hostile.entries.iter_mut().filter(|entry| entry.target == target.label).for_each(|entry| {
            entry.target.clone_from(&label);
            entry.tool = HOSTILE.to_owned();
            entry.marks = vec![HOSTILE.to_owned()];
            entry.parameters.insert(HOSTILE.to_owned(), Value::from(HOSTILE));
        });
        (target.label, target.via, target.filesystem) = (label, HOSTILE.to_owned(), HOSTILE.to_owned());
    }
    let mut named = hostile.entries[0].clone();
    (named.workload, named.metric, named.unit) = (HOSTILE.to_owned(), HOSTILE.to_owned(), HOSTILE.to_owned());
    hostile.entries.push(named);
    hostile.title = HOSTILE.to_owned();
    hostile.warnings = vec![HOSTILE.to_owned()];
    hostile.arguments = vec![HOSTILE.to_owned()];
    hostile.environment.host = HOSTILE.to_owned();
    let step = RunStep {
        name: HOSTILE.to_owned(),
        arguments: vec![HOSTILE.to_owned()],
        duration_s: 1.0,
        failure: HOSTILE.to_owned(),
    };
    hostile.steps = vec![step];
    let runs = MergedRuns::of(vec![(HOSTILE.to_owned(), hostile)]).unwrap();
    let page = render(&runs, &[]);
    well_formed(&page);
    assert!(!page.contains("<img") && page.contains("&lt;img"));
    let csv = csv::files(&runs);
    assert!(csv.iter().all(|(name, _)| name.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))), "{csv:?}");
}

#[test]
fn page_needs_nothing_but_itself() {
    let published: Vec<Published> =
        COLLECTIONS.iter().map(|(name, _)| Published::shipped(name).unwrap().unwrap()).collect();
    let page = render(&merged(run()), &published);
    well_formed(&page);
    for forbidden in ["http://", "https://", "//cdn", "src=", "href=", "<script", "@import", "url(", "NaN", "inf"] {
        assert!(!page.contains(forbidden), "{forbidden} in the page");
    }
    assert_eq!(page.matches("<section class=\"card figure\">").count(), 8);
    let places =
        ["better in", "<h2>Targets", "<h2>Figures", "<h2>Published", "<h2>All measurements", "<h2>What was run"];
    let places = places.map(|text| page.find(text).unwrap_or_else(|| panic!("{text} is missing")));
    assert!(places.is_sorted(), "{places:?}");
    assert!(page.contains("IBM Storage Scale") && page.contains("@media print"));
}

#[test]
fn figures_accept_any_number() {
    for value in [0.0, -1.0, 1e-300, f64::MAX, f64::MIN] {
        let mut any = run();
        any.entries.iter_mut().for_each(|entry| entry.samples[0] = value);
        any.entries.iter_mut().flat_map(|entry| &mut entry.timeline).for_each(|point| point.seconds = value);
        well_formed(&render(&merged(any), &[]));
    }
    let mut one = run();
    one.targets.truncate(1);
    one.entries.retain(|entry| entry.target == "native");
    well_formed(&render(&merged(one), &[]));
}

#[test]
fn targets_of_several_runs_carry_their_run_and_are_no_pairs() {
    let runs = MergedRuns::of(vec![("before".to_owned(), run()), ("after".to_owned(), run())]).unwrap();
    let labels: Vec<&str> = runs.targets.iter().map(|target| target.label.as_str()).collect();
    assert_eq!(labels, ["before: native", "before: varve", "after: native", "after: varve"]);
    let of = |label: &str| runs.entries.iter().find(|entry| entry.target == label).unwrap();
    let within = runs.compare(of("before: varve"), of("before: native")).unwrap().interval.unwrap();
    let across = runs.compare(of("after: varve"), of("before: native")).unwrap().interval.unwrap();
    assert!(within.high - within.low < 1e-9 && across.high - across.low > 0.1);
    assert!(MergedRuns::of(vec![("a".to_owned(), run()), ("a".to_owned(), run())]).is_err());
    assert!(MergedRuns::of(Vec::new()).is_err());
}

#[test]
fn csv_cells_are_quoted_and_are_no_formulas() {
    let mut formula = run();
    formula.entries[0].marks = vec!["=1+1".to_owned(), "a,\"b\"".to_owned()];
    formula.entries[0].tool = "@SUM(A1)".to_owned();
    let files = csv::files(&merged(formula));
    let (name, all) = &files[0];
    assert_eq!((name.as_str(), all.lines().count()), ("all.csv", 1 + run().entries.len()));
    let first = all.lines().nth(1).unwrap();
    assert!(first.contains("'@SUM(A1)") && first.contains("\"'=1+1; a,\"\"b\"\"\""), "{first}");
}

#[test]
fn marked_figures_say_so_in_the_answer() {
    let mut cached = run();
    cached
        .entries
        .iter_mut()
        .for_each(|entry| entry.marks = vec![marks::PAGE_CACHE.to_owned(), marks::PARTIAL.to_owned()]);
    let said = statements(&merged(cached));
    assert!(said.iter().all(|said| said.text.ends_with("; perhaps only in the page cache; measured in part.")));
}
