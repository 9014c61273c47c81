//! Builds the report from the measurement: rates, ratios within a turn, and warnings.

use super::{BenchReport, CeilingResult, PhaseResult, Ratio, SCHEMA_VERSION, numbers};
use crate::ceilings::{EMPTY_DIRECTORY, REQUEST_REPLY};
use crate::environment::Environment;
use crate::measure::{PAIRS_FOR_INTERVAL, Spread, paired_ratios};
use crate::target::Via;
use crate::workloads::mdtest::{CeilingSeries, ContenderRole, MdtestConfig, MdtestMeasurement, PhaseSeries};
use crate::workloads::stream::{StreamConfig, StreamSeries};
use serde_json::json;

/// Ratios nearer to 1 than this are noise on most machines unless there are many pairs.
const NOISE: f64 = 0.20;
/// A shorter pass consists mostly of its start and its end.
const SHORT_PASS_S: f64 = 0.1;

pub fn of_mdtest(config: &MdtestConfig, environment: Environment, measured: MdtestMeasurement) -> BenchReport {
    let mut results = Vec::new();
    let mut ceilings = Vec::new();
    let mut short = 0;
    for (role, all) in &measured.contenders {
        for series in all {
            match role {
                ContenderRole::Target(via) => {
                    short += usize::from(series.shortest_s < SHORT_PASS_S);
                    results.extend(phase_result(via, config.files, series));
                }
                ContenderRole::Ceiling(name) => ceilings.extend(phase_ceiling(name, series)),
                ContenderRole::Empty(via) => {
                    let target = Some(format!("{}:{}", via.kind(), via.place()));
                    let empty = phase_ceiling(EMPTY_DIRECTORY, series);
                    ceilings.extend(empty.map(|empty| CeilingResult { target, ..empty }));
                }
            }
        }
    }
    let plain: Vec<CeilingResult> = measured.ceilings.iter().filter_map(plain_ceiling).collect();
    ceilings.extend(best_request_reply(&plain));
    ceilings.extend(plain);
    let settings = [
        ("files", json!(config.files)),
        ("clients", json!(config.clients)),
        ("repeat", json!(config.repeat)),
        ("unique_dirs", json!(config.unique_dirs)),
        ("directories", json!(config.directories)),
        ("write_bytes", json!(config.write_bytes)),
        ("prefill", json!(config.prefill)),
        ("warm_up", json!(config.warm_up)),
        ("seed", json!(config.seed)),
    ];
    let mut report = BenchReport {
        schema_version: SCHEMA_VERSION,
        command: "bench mdtest".to_owned(),
        results,
        ceilings,
        ratios: Vec::new(),
        settings: settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        environment,
        warnings: Vec::new(),
        arguments: config.arguments.clone(),
    };
    report.ratios = ratios(&report);
    report.warnings = warnings(&report);
    if short > 0 {
        report.warnings.push(format!(
            "{short} measurements have passes shorter than {:.0} ms; use more --files.",
            SHORT_PASS_S * 1e3
        ));
    }
    report
}

pub fn of_stream(
    config: &StreamConfig,
    environment: Environment,
    series: Vec<StreamSeries>,
    notes: Vec<String>,
) -> BenchReport {
    let result = |series: &StreamSeries| {
        let mib_per_s = rounded(Spread::of(&series.mib_per_s)?);
        let blocks: Vec<f64> =
            series.mib_per_s.iter().map(|rate| rate * 1048576.0 / config.block_bytes as f64).collect();
        Some(PhaseResult {
            via: series.via.kind().to_owned(),
            target: series.via.place(),
            phase: series.phase.to_owned(),
            clients: series.clients,
            files: series.clients as u64,
            ops_per_s: rounded(Spread::of(&blocks)?),
            latency_us: series.latencies.percentiles(),
            mib_per_s: Some(mib_per_s),
        })
    };
    let settings = [
        ("bytes", json!(config.bytes)),
        ("block_bytes", json!(config.block_bytes)),
        ("clients", json!(config.clients)),
        ("repeat", json!(config.repeat)),
    ];
    let mut report = BenchReport {
        schema_version: SCHEMA_VERSION,
        command: "bench stream".to_owned(),
        results: series.iter().filter_map(result).collect(),
        ceilings: Vec::new(),
        ratios: Vec::new(),
        settings: settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
        environment,
        warnings: Vec::new(),
        arguments: config.arguments.clone(),
    };
    report.ratios = ratios(&report);
    report.warnings = warnings(&report);
    report.warnings.extend(notes);
    report
}

/// Rounds rates to a tenth: the measurement is no finer.
fn rounded(spread: Spread) -> Spread {
    let round = |x: f64| (x * 10.0).round() / 10.0;
    Spread {
        median: round(spread.median),
        min: round(spread.min),
        max: round(spread.max),
        mean: round(spread.mean),
        stddev: round(spread.stddev),
        samples: spread.samples.into_iter().map(round).collect(),
    }
}

fn phase_result(via: &Via, files: u64, series: &PhaseSeries) -> Option<PhaseResult> {
    Some(PhaseResult {
        via: via.kind().to_owned(),
        target: via.place(),
        phase: series.phase.name().to_owned(),
        clients: series.clients,
        files,
        ops_per_s: rounded(Spread::of(&series.per_second)?),
        latency_us: series.latencies.percentiles(),
        mib_per_s: None,
    })
}

fn phase_ceiling(name: &str, series: &PhaseSeries) -> Option<CeilingResult> {
    let latency_us = Some(series.latencies.percentiles());
    let phase = Some(series.phase.name().to_owned());
    Some(CeilingResult { phase, latency_us, ..ceiling(name, series.clients, &series.per_second)? })
}

fn plain_ceiling(series: &CeilingSeries) -> Option<CeilingResult> {
    ceiling(series.name, series.clients, &series.per_second)
}

/// The variant with the best median for each number of clients.
fn best_request_reply(plain: &[CeilingResult]) -> Vec<CeilingResult> {
    let mut best: Vec<CeilingResult> = Vec::new();
    for variant in plain.iter().filter(|ceiling| is_variant(&ceiling.name)) {
        let variant = CeilingResult { name: REQUEST_REPLY.to_owned(), ..variant.clone() };
        match best.iter_mut().find(|known| known.clients == variant.clients) {
            Some(known) if known.ops_per_s >= variant.ops_per_s => {}
            Some(known) => *known = variant,
            None => best.push(variant),
        }
    }
    best
}

fn is_variant(name: &str) -> bool {
    name.strip_prefix(REQUEST_REPLY).is_some_and(|rest| rest.starts_with('/'))
}

fn ceiling(name: &str, clients: usize, per_second: &[f64]) -> Option<CeilingResult> {
    let Spread { median, min, max, samples, .. } = rounded(Spread::of(per_second)?);
    Some(CeilingResult {
        name: name.to_owned(),
        target: None,
        phase: None,
        clients,
        ops_per_s: median,
        min,
        max,
        samples,
        latency_us: None,
    })
}

/// The ratios of every target to the first plain directory, and to each ceiling that bounds the target.
fn ratios(report: &BenchReport) -> Vec<Ratio> {
    let reference = report.results.iter().find(|result| result.via == "path").map(|result| result.target.clone());
    let mut ratios = Vec::new();
    for result in &report.results {
        let same = |other: &&PhaseResult| other.phase == result.phase && other.clients == result.clients;
        let is_reference = result.via == "path" && Some(&result.target) == reference.as_ref();
        let plain =
            report.results.iter().filter(same).find(|o| o.via == "path" && Some(&o.target) == reference.as_ref());
        if let Some(plain) = plain.filter(|_| !is_reference) {
            ratios.extend(ratio(result, "path", &plain.rate().samples));
        }
        for ceiling in &report.ceilings {
            let phase = ceiling.phase.as_ref().is_none_or(|phase| *phase == result.phase);
            if ceiling.bounds(&result.via, &result.target) && phase && ceiling.clients == result.clients {
                ratios.extend(ratio(result, &ceiling.name, &ceiling.samples));
            }
        }
    }
    ratios
}

fn ratio(result: &PhaseResult, to: &str, those: &[f64]) -> Option<Ratio> {
    let round = |x: f64| (x * 1e4).round() / 1e4;
    let (spread, interval) = paired_ratios(&result.rate().samples, those)?;
    Some(Ratio {
        via: result.via.clone(),
        target: result.target.clone(),
        phase: result.phase.clone(),
        clients: result.clients,
        to: to.to_owned(),
        median: round(spread.median),
        min: round(spread.min),
        max: round(spread.max),
        pairs: spread.samples.len(),
        interval: interval.map(|interval| crate::measure::Interval {
            low: round(interval.low),
            high: round(interval.high),
            confidence: round(interval.confidence),
        }),
    })
}

fn warnings(report: &BenchReport) -> Vec<String> {
    let mut warnings = report.environment.warnings();
    if report.targets().len() == 1 && report.ceilings.is_empty() {
        warnings.push("Only one target was measured, next to nothing; rates alone mean little.".to_owned());
    }
    let near = |ratio: &&Ratio| (ratio.median - 1.0).abs() < NOISE && ratio.pairs < PAIRS_FOR_INTERVAL;
    let near: Vec<&Ratio> = report.ratios.iter().filter(near).collect();
    if let [first, ..] = near.as_slice() {
        warnings.push(format!(
            "{} within {:.0}% of even with fewer than {PAIRS_FOR_INTERVAL} pairs (as {} {} with {} to {}: {}), \
             which may be noise; --repeat {PAIRS_FOR_INTERVAL} gives intervals.",
            if near.len() == 1 { "One ratio is".to_owned() } else { format!("{} ratios are", near.len()) },
            NOISE * 100.0,
            report.label(&first.via, &first.target),
            first.phase,
            numbers::clients(first.clients),
            first.to,
            numbers::ratio(first.median),
        ));
    }
    warnings
}
