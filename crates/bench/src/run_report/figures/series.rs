//! Turns entries into the series of a figure.

use super::{FigurePoint, FigureSeries};
use crate::measure::{Spread, median_interval};
use crate::run_file::{RunEntry, TimelinePoint, parameters};
use crate::run_report::MergedRuns;
use serde_json::Value;
use std::collections::BTreeSet;

/// Lines of one figure; more cannot be told apart.
const SERIES_MAX: usize = 8;
/// Points of one line; a figure is not wider.
const POINTS_MAX: usize = 400;

/// A line for each target, and for each combination of the other parameters that vary, if they are few. Otherwise only
/// the entries with the most clients are drawn.
pub(super) fn lines(runs: &MergedRuns, of: &[&RunEntry], parameter: &str, steps: &[f64]) -> Vec<FigureSeries> {
    let place = |entry: &RunEntry| {
        let value = entry.number(parameter)?;
        steps.iter().position(|step| *step == value)
    };
    let names: BTreeSet<&String> = of.iter().flat_map(|entry| entry.parameters.keys()).collect();
    let is_varied = |name: &&&String| {
        let first = of.first().map(|entry| entry.parameters.get(**name));
        name.as_str() != parameter
            && name.as_str() != parameters::FILES
            && of.iter().any(|entry| Some(entry.parameters.get(**name)) != first)
    };
    let varied: Vec<&String> = names.iter().filter(is_varied).copied().collect();
    let suffix = |entry: &RunEntry| {
        let words = varied.iter().filter_map(|name| entry.parameters.get(*name).map(|value| (name.as_str(), value)));
        words.map(|(name, value)| described(name, value)).collect::<Vec<_>>().join(", ")
    };
    let all = series_named(runs, of, place, |entry| match suffix(entry) {
        suffix if suffix.is_empty() => series_name(entry),
        suffix => format!("{}, {suffix}", series_name(entry)),
    });
    if all.len() <= SERIES_MAX.max(runs.targets.len()) {
        return all;
    }
    let most = of.iter().filter_map(|entry| entry.clients()).fold(0.0, f64::max);
    let chosen: Vec<&RunEntry> =
        of.iter().filter(|entry| parameter == parameters::CLIENTS || entry.clients() == Some(most)).copied().collect();
    series(runs, &chosen, place)
}

/// `4 streams`, `pattern n-n`.
fn described(name: &str, value: &Value) -> String {
    match value {
        Value::String(text) if name == "time" => text.clone(),
        Value::String(text) => format!("{name} {text}"),
        number if ["clients", "streams", "servers"].contains(&name) => format!("{number} {name}"),
        other => format!("{} {other}", name.replace('_', " ")),
    }
}

/// A series for each target and program, with the first entry at each place.
pub(super) fn series(
    runs: &MergedRuns,
    of: &[&RunEntry],
    place: impl Fn(&RunEntry) -> Option<usize>,
) -> Vec<FigureSeries> {
    series_named(runs, of, place, series_name)
}

fn series_named(
    runs: &MergedRuns,
    of: &[&RunEntry],
    place: impl Fn(&RunEntry) -> Option<usize>,
    name_of: impl Fn(&RunEntry) -> String,
) -> Vec<FigureSeries> {
    let mut all: Vec<FigureSeries> = Vec::new();
    for entry in of {
        let Some(x) = place(entry) else { continue };
        let name = name_of(entry);
        let point = point(entry, x as f64);
        match all.iter_mut().find(|series| series.name == name) {
            Some(series) if series.points.iter().any(|known| known.x == point.x) => {}
            Some(series) => series.points.push(point),
            None => all.push(FigureSeries { name, colour: runs.place(&entry.target), points: vec![point] }),
        }
    }
    for series in &mut all {
        series.points.sort_by(|a, b| a.x.total_cmp(&b.x));
    }
    all
}

pub(super) fn series_name(entry: &RunEntry) -> String {
    if entry.tool.is_empty() { entry.target.clone() } else { format!("{} ({})", entry.target, entry.tool) }
}

/// The median and its interval. With few samples, the range of all of them. With discarded samples, the mean and the
/// range of the rest.
fn point(entry: &RunEntry, x: f64) -> FigurePoint {
    let kept = entry.kept_samples();
    let spread = Spread::of(&kept).unwrap_or_default();
    let (low, middle, high) = match median_interval(&kept) {
        _ if entry.discard > 0 => (spread.min, spread.mean, spread.max),
        Some(interval) => (interval.low, spread.median, interval.high),
        None => (spread.min, spread.median, spread.max),
    };
    FigurePoint { x, low, middle, high, marks: entry.marks.clone() }
}

/// A timeline with at most [`POINTS_MAX`] points.
pub(super) fn condensed(entry: &RunEntry) -> Vec<FigurePoint> {
    let step = entry.timeline.len().div_ceil(POINTS_MAX).max(1);
    let point = |part: &[TimelinePoint]| {
        let middle = part.iter().map(|point| point.value).sum::<f64>() / part.len() as f64;
        let x = part.last().map_or(0.0, |point| point.seconds);
        FigurePoint { x, low: middle, middle, high: middle, marks: entry.marks.clone() }
    };
    entry.timeline.chunks(step).map(point).collect()
}
