//! The answer in words: each target beside the reference, and only as far as intervals allow.
//!
//! A ratio is oriented so that above 1 is better. It is called a difference if the interval of its median (95 % or
//! more) excludes 1. If the interval includes 1, the difference is within the noise. With fewer than six pairs there is
//! no such interval, and nothing is claimed.

use super::MergedRuns;
use crate::measure::{Interval, median_interval};
use crate::report::numbers;
use crate::run_file::{RunEntry, marks, parameters, units};

/// Ratios between these bounds are given in per cent.
const NEARLY_EQUAL: (f64, f64) = (0.8, 1.25);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Better,
    Worse,
    /// The interval of the ratio includes 1.
    Noise,
    /// There are too few turns for an interval.
    TooFew,
}

/// One metric at a target and at the reference.
#[derive(Clone, Debug, PartialEq)]
pub struct PairedResult {
    /// The median of the ratios; above 1 is better than the reference.
    pub ratio: f64,
    pub interval: Option<Interval>,
    pub verdict: Verdict,
}

/// A statement of the answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    pub verdict: Verdict,
    pub text: String,
}

/// Compares a metric of a target with that of the reference in the same run. `None` if a ratio makes no sense.
pub fn compare_entries(entry: &RunEntry, reference: &RunEntry) -> Option<PairedResult> {
    if entry.samples.len() != reference.samples.len() {
        return compare_unpaired(entry, reference);
    }
    let oriented = orientation(entry, reference)?;
    let ratios: Vec<f64> = entry.samples.iter().zip(&reference.samples).map(|(a, b)| oriented(a / b)).collect();
    let ratio = crate::measure::Spread::of(&ratios)?.median;
    Some(judged(ratio, median_interval(&ratios)))
}

/// Compares metrics of two runs, whose samples are no pairs: the extremes of both intervals bound the ratio.
pub fn compare_unpaired(entry: &RunEntry, reference: &RunEntry) -> Option<PairedResult> {
    let oriented = orientation(entry, reference)?;
    let interval = median_interval(&entry.samples).zip(median_interval(&reference.samples)).map(|(a, b)| {
        let ends = [oriented(a.low / b.high), oriented(a.high / b.low)];
        let confidence = a.confidence + b.confidence - 1.0;
        Interval { low: ends[0].min(ends[1]), high: ends[0].max(ends[1]), confidence }
    });
    Some(judged(oriented(entry.median() / reference.median()), interval))
}

/// Turns a ratio so that above 1 is better. `None` if the samples make no ratio.
fn orientation(entry: &RunEntry, reference: &RunEntry) -> Option<fn(f64) -> f64> {
    let is_positive = |entry: &RunEntry| entry.samples.iter().all(|sample| *sample > 0.0);
    let oriented: fn(f64) -> f64 = if entry.higher_is_better { |ratio| ratio } else { |ratio| 1.0 / ratio };
    (is_positive(entry) && is_positive(reference)).then_some(oriented)
}

fn judged(ratio: f64, interval: Option<Interval>) -> PairedResult {
    let verdict = match &interval {
        None => Verdict::TooFew,
        Some(interval) if interval.low > 1.0 => Verdict::Better,
        Some(interval) if interval.high < 1.0 => Verdict::Worse,
        Some(_) => Verdict::Noise,
    };
    PairedResult { ratio, interval, verdict }
}

/// The statements about each target and metric at the largest number of clients, and the count of all comparisons.
pub fn statements(runs: &MergedRuns) -> Vec<Statement> {
    let Some(reference) = runs.targets.first() else { return Vec::new() };
    let mut said = Vec::new();
    for target in &runs.targets[1..] {
        for (entry, other) in pairs(runs, &target.label, &reference.label) {
            if is_most_demanding(runs, entry)
                && let Some(paired) = runs.compare(entry, other)
            {
                said.push(statement(entry, &reference.label, &paired));
            }
        }
    }
    said
}

/// All metrics that were measured alike at both.
pub fn pairs<'a>(runs: &'a MergedRuns, target: &str, reference: &str) -> Vec<(&'a RunEntry, &'a RunEntry)> {
    let of = |label: &str| runs.entries.iter().filter(|entry| entry.target == label).collect::<Vec<_>>();
    let references = of(reference);
    let pair = |entry: &'a RunEntry| Some((entry, *references.iter().find(|other| other.is_like(entry))?));
    of(target).into_iter().filter_map(pair).collect()
}

/// Whether no entry of the same target and metric has more clients, and, among those, other conditions came first.
fn is_most_demanding(runs: &MergedRuns, entry: &RunEntry) -> bool {
    let same = |other: &&RunEntry| {
        (&other.workload, &other.metric, &other.target, &other.tool)
            == (&entry.workload, &entry.metric, &entry.target, &entry.tool)
    };
    let clients = |entry: &RunEntry| entry.clients().unwrap_or(0.0);
    let most = runs.entries.iter().filter(same).map(clients).fold(0.0, f64::max);
    let first = runs.entries.iter().filter(same).find(|other| clients(other) >= most);
    first.is_some_and(|first| std::ptr::eq(first, entry))
}

fn statement(entry: &RunEntry, reference: &str, paired: &PairedResult) -> Statement {
    let what = activity(entry);
    let target = &entry.target;
    let conditions = brief_conditions(entry);
    let text = match (paired.verdict, paired.interval) {
        (Verdict::Better | Verdict::Worse, Some(interval)) => {
            format!("{target} {what} {}{conditions}", difference(&interval, reference))
        }
        (Verdict::Noise, Some(interval)) => format!(
            "{target} {what} as {reference} does, within the noise ({} to {} times as fast){conditions}",
            numbers::ratio(interval.low),
            numbers::ratio(interval.high)
        ),
        _ => format!(
            "{target} {what}: {} turns are too few to compare it with {reference}{conditions}",
            entry.samples.len()
        ),
    };
    let cached = if entry.is_marked(marks::PAGE_CACHE) { "; perhaps only in the page cache" } else { "" };
    let partial = if entry.is_marked(marks::PARTIAL) { "; measured in part" } else { "" };
    Statement { verdict: paired.verdict, text: format!("{text}{cached}{partial}.") }
}

/// `3.1 to 3.6 times as fast as native`, or `4 % to 9 % faster than native`.
fn difference(interval: &Interval, reference: &str) -> String {
    let (low, high) = (interval.low, interval.high);
    let near = low > NEARLY_EQUAL.0 && high < NEARLY_EQUAL.1;
    let percent = |ratio: f64| format!("{:.0} %", (ratio - 1.0).abs() * 100.0);
    match (low > 1.0, near) {
        (true, true) => format!("{} to {} faster than {reference}", percent(low), percent(high)),
        (true, false) => {
            format!("{} to {} times as fast as {reference}", numbers::ratio(low), numbers::ratio(high))
        }
        (false, true) => format!("{} to {} slower than {reference}", percent(high), percent(low)),
        (false, false) => {
            format!("at {} to {} times the speed of {reference}", numbers::ratio(low), numbers::ratio(high))
        }
    }
}

/// The verb of a metric: what the target does.
fn activity(entry: &RunEntry) -> String {
    let tool = if entry.tool.is_empty() { String::new() } else { format!(" (by {})", entry.tool) };
    let what = match (entry.workload.as_str(), entry.metric.as_str()) {
        ("mdtest", "create") => "creates files".to_owned(),
        ("mdtest", "stat") => "looks up files (stat)".to_owned(),
        ("mdtest", "read") => "reads small files".to_owned(),
        ("mdtest", "delete") => "removes files".to_owned(),
        ("mdtest", "mkdir") => "creates directories".to_owned(),
        ("mdtest", "rmdir") => "removes directories".to_owned(),
        ("stream" | "checkpoint", "write") => "writes large files".to_owned(),
        ("stream" | "checkpoint", "read") => "reads large files".to_owned(),
        ("stream" | "checkpoint", "reread") => "reads large files again".to_owned(),
        ("tree", program) => format!("runs {program}"),
        (workload, metric) => format!("does {workload} {metric}"),
    };
    format!("{what}{tool}")
}

fn brief_conditions(entry: &RunEntry) -> String {
    let mut said = Vec::new();
    if let Some(clients) = entry.clients() {
        said.push(numbers::clients(clients as usize));
    }
    if let Some(bytes) = entry.number(parameters::FILE_BYTES).filter(|bytes| *bytes > 0.0) {
        said.push(format!("files of {}", numbers::bytes(bytes as u64)));
    }
    if entry.parameters.get(parameters::LAYOUT).is_some_and(|layout| layout == "unique") {
        said.push("a directory each".to_owned());
    }
    if said.is_empty() { String::new() } else { format!(" ({})", said.join(", ")) }
}

/// The rates of a run that has nothing to compare.
pub fn alone(runs: &MergedRuns) -> Vec<String> {
    let shown = runs.entries.iter().filter(|entry| is_most_demanding(runs, entry));
    shown
        .map(|entry| {
            let value = with_unit(entry.median(), &entry.unit);
            format!("{} {}: {value}{}.", entry.target, activity(entry), brief_conditions(entry))
        })
        .collect()
}

/// `45.3 k/s`, `1.23 s`, `812 MiB/s`.
pub fn with_unit(value: f64, unit: &str) -> String {
    match unit {
        units::OPS_PER_S => format!("{} ops/s", numbers::with_commas(value)),
        units::SECONDS => numbers::latency(value * 1e6),
        units::MILLISECONDS => numbers::latency(value * 1e3),
        other => format!("{} {other}", numbers::with_commas(value)),
    }
}
