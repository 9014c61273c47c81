//! Chooses the figures: those of the published evaluations where their workloads were run, and a figure for each other
//! workload.

mod series;

use super::MergedRuns;
use crate::measure::median_interval;
use crate::report::numbers;
use crate::run_file::{RunEntry, parameters, units};
use series::{condensed, lines, series, series_name};
use std::collections::BTreeSet;

/// One figure.
#[derive(Clone, Debug, PartialEq)]
pub struct Figure {
    /// The name of its CSV and PNG files.
    pub id: String,
    pub title: String,
    pub caption: String,
    pub unit: String,
    pub higher_is_better: bool,
    pub axis: FigureAxis,
    pub series: Vec<FigureSeries>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum FigureAxis {
    /// Bars in groups with these names. The `x` of a point is the place of its group.
    Groups(Vec<String>),
    /// Lines over steps with these names, such as numbers of clients. The `x` of a point is the place of its step.
    Steps { label: String, names: Vec<String> },
    /// Lines over seconds.
    Seconds,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FigureSeries {
    pub name: String,
    /// The place of the target, which gives the colour.
    pub colour: usize,
    pub points: Vec<FigurePoint>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FigurePoint {
    pub x: f64,
    /// The interval of the median, or the range of few samples.
    pub low: f64,
    pub middle: f64,
    pub high: f64,
    pub marks: Vec<String>,
}

/// All figures of the runs, in the order of the page.
pub fn choose(runs: &MergedRuns) -> Vec<Figure> {
    let mut figures = Vec::new();
    let mut workloads: Vec<&str> = Vec::new();
    for entry in &runs.entries {
        if !workloads.contains(&entry.workload.as_str()) {
            workloads.push(&entry.workload);
        }
    }
    for workload in workloads {
        let of: Vec<&RunEntry> = runs.entries.iter().filter(|entry| entry.workload == workload).collect();
        match workload {
            "mdtest" => metadata(runs, &of, &mut figures),
            "overall" => overall(runs, &of, &mut figures),
            _ => general(runs, workload, &of, &mut figures),
        }
        over_time(runs, workload, &of, &mut figures);
    }
    let mut ids = BTreeSet::new();
    for figure in &mut figures {
        let plain = figure.id.clone();
        let mut number = 2;
        while !ids.insert(figure.id.clone()) {
            figure.id = format!("{plain}-{number}");
            number += 1;
        }
    }
    figures
}

/// Operations by system, creates against clients, and small files.
fn metadata(runs: &MergedRuns, of: &[&RunEntry], figures: &mut Vec<Figure>) {
    for (layout, place) in [("shared", "in one directory"), ("unique", "in a directory for each client")] {
        let is_empty = |entry: &&&RunEntry| {
            entry.parameters.get(parameters::LAYOUT).is_none_or(|given| given == layout)
                && entry.number(parameters::FILE_BYTES).unwrap_or(0.0) == 0.0
                && !entry.parameters.contains_key("prefill")
        };
        let empty: Vec<&RunEntry> = of.iter().filter(is_empty).copied().collect();
        if !empty.iter().any(|entry| entry.parameters.contains_key(parameters::LAYOUT)) && layout == "unique" {
            continue;
        }
        let most = empty.iter().filter_map(|entry| entry.clients()).fold(0.0, f64::max);
        let at_most: Vec<&RunEntry> =
            empty.iter().filter(|entry| entry.clients().is_none_or(|clients| clients == most)).copied().collect();
        let title = format!("Operations {place}, {}", numbers::clients(most as usize));
        let suffix = if layout == "unique" { "-unique" } else { "" };
        figures.extend(by_metric(runs, &format!("operations{suffix}"), &title, &at_most));
        let creates: Vec<&RunEntry> = empty.iter().filter(|entry| entry.metric == "create").copied().collect();
        let title = format!("Creates against clients, {place}");
        let id = format!("creates-against-clients{suffix}");
        figures.extend(against(runs, &id, &title, parameters::CLIENTS, &creates));
    }
    small_files(runs, of, figures);
}

fn small_files(runs: &MergedRuns, of: &[&RunEntry], figures: &mut Vec<Figure>) {
    for (metric, verb) in [("create", "Creates"), ("read", "Reads")] {
        let sized = |entry: &&&RunEntry| {
            entry.metric == metric
                && entry.number(parameters::FILE_BYTES).is_some()
                && !entry.parameters.contains_key("prefill")
                && entry.parameters.get(parameters::LAYOUT).is_none_or(|layout| layout == "shared")
        };
        let sized: Vec<&RunEntry> = of.iter().filter(sized).copied().collect();
        let clients = values(&sized, parameters::CLIENTS);
        let sizes_with = |clients: f64| values(&with_clients(&sized, clients), parameters::FILE_BYTES).len();
        // Of equals, `max_by_key` takes the last: the most clients.
        let Some(most) = clients.into_iter().max_by_key(|clients| sizes_with(*clients)) else { continue };
        let chosen = with_clients(&sized, most);
        let clients = numbers::clients(most as usize);
        let id = format!("small-files-{metric}");
        let title = format!("{verb} of small files, {clients}");
        figures.extend(against(runs, &id, &title, parameters::FILE_BYTES, &chosen));
        let in_bytes: Vec<RunEntry> = chosen.iter().filter_map(|entry| as_bytes(entry)).collect();
        let title = format!("{verb} of small files in bytes, {clients}");
        let in_bytes: Vec<&RunEntry> = in_bytes.iter().collect();
        figures.extend(against(runs, &format!("{id}-bytes"), &title, parameters::FILE_BYTES, &in_bytes));
    }
}

fn with_clients<'a>(entries: &[&'a RunEntry], clients: f64) -> Vec<&'a RunEntry> {
    entries.iter().filter(|entry| entry.clients() == Some(clients)).copied().collect()
}

/// The rate of files as a rate of bytes.
fn as_bytes(entry: &RunEntry) -> Option<RunEntry> {
    let bytes = entry.number(parameters::FILE_BYTES).filter(|bytes| *bytes > 0.0)?;
    let samples = entry.samples.iter().map(|rate| rate * bytes / 1048576.0).collect();
    Some(RunEntry { samples, unit: units::MIB_PER_S.to_owned(), ..entry.clone() })
}

/// Write throughput with and without the time of metadata calls, in one figure for each way of sharing a file.
fn overall(runs: &MergedRuns, of: &[&RunEntry], figures: &mut Vec<Figure>) {
    let named = |entry: &&&RunEntry| entry.unit == units::MIB_PER_S && !entry.metric.starts_with("read");
    let throughput: Vec<RunEntry> = of
        .iter()
        .filter(named)
        .map(|entry| {
            let mut entry = (*entry).clone();
            // The parameter names the line.
            entry.parameters.insert("time".to_owned(), entry.metric.replace('_', " ").into());
            entry
        })
        .collect();
    let mut patterns: Vec<String> = throughput.iter().map(pattern).collect();
    patterns.sort();
    patterns.dedup();
    for name in patterns {
        let alike: Vec<&RunEntry> = throughput.iter().filter(|entry| pattern(entry) == name).collect();
        let title = format!("Write throughput with and without metadata calls{name}");
        figures.extend(against(runs, &format!("overall{name}"), &title, parameters::CLIENTS, &alike));
    }
}

fn pattern(entry: &RunEntry) -> String {
    let given = entry.parameters.get("pattern").and_then(|pattern| pattern.as_str());
    given.map_or(String::new(), |pattern| format!(", {pattern}"))
}

/// A figure for each metric against the parameter that varies, or one of all metrics if none does.
fn general(runs: &MergedRuns, workload: &str, of: &[&RunEntry], figures: &mut Vec<Figure>) {
    const VARIED: [&str; 6] = [
        parameters::RATE_HZ,
        parameters::FILE_BYTES,
        parameters::CLIENTS,
        parameters::SERVERS,
        parameters::TRANSFER_BYTES,
        parameters::FILES,
    ];
    let title = match workload {
        "stream" | "checkpoint" => "N-N checkpoint",
        "data" => "Data",
        "images" => "Detector images",
        "small files" => "Small files",
        "tree" => "Programs on small files",
        "scale" => "Several servers",
        other => other,
    };
    let groups = metrics_and_units(of);
    let group = |metric: &str, unit: &str| -> Vec<&RunEntry> {
        of.iter().filter(|entry| entry.metric == metric && entry.unit == unit).copied().collect()
    };
    let is_varied =
        |parameter: &&str| groups.iter().any(|(metric, unit)| values(&group(metric, unit), parameter).len() > 1);
    let Some(varied) = VARIED.into_iter().find(is_varied) else {
        for unit in groups.iter().map(|(_, unit)| *unit).collect::<BTreeSet<_>>() {
            let alike: Vec<&RunEntry> = of.iter().filter(|entry| entry.unit == unit).copied().collect();
            figures.extend(by_metric(runs, workload, title, &alike));
        }
        return;
    };
    for (metric, unit) in &groups {
        let id = format!("{workload}-{metric}");
        let name = metric.replace('_', " ");
        figures.extend(against(runs, &id, &format!("{title}: {name}"), varied, &group(metric, unit)));
    }
}

/// Bars: a group for each metric, a bar for each target.
fn by_metric(runs: &MergedRuns, id: &str, title: &str, of: &[&RunEntry]) -> Option<Figure> {
    let first = of.first()?;
    let of: Vec<&RunEntry> = of.iter().filter(|entry| entry.unit == first.unit).copied().collect();
    let groups: Vec<String> = metrics(&of).into_iter().map(str::to_owned).collect();
    let series = series(runs, &of, |entry: &RunEntry| groups.iter().position(|group| *group == entry.metric));
    Some(Figure {
        id: plain_id(id),
        title: title.to_owned(),
        caption: caption(&of),
        unit: first.unit.clone(),
        higher_is_better: first.higher_is_better,
        axis: FigureAxis::Groups(groups),
        series,
    })
}

/// Lines: a step for each value of the parameter, a line for each target. Bars if there is only one value.
fn against(runs: &MergedRuns, id: &str, title: &str, parameter: &str, of: &[&RunEntry]) -> Option<Figure> {
    let first = of.first()?;
    let steps = values(of, parameter);
    if steps.len() < 2 {
        return None;
    }
    let series = lines(runs, of, parameter, &steps);
    let name = |value: &f64| match parameter {
        parameters::FILE_BYTES | parameters::TRANSFER_BYTES => numbers::bytes(*value as u64),
        _ => value.to_string(),
    };
    Some(Figure {
        id: plain_id(id),
        title: title.to_owned(),
        caption: caption(of),
        unit: first.unit.clone(),
        higher_is_better: first.higher_is_better,
        axis: FigureAxis::Steps {
            label: match parameter {
                parameters::FILE_BYTES => "size of a file".to_owned(),
                parameters::TRANSFER_BYTES => "bytes of one call".to_owned(),
                parameters::RATE_HZ => "frames a second".to_owned(),
                other => other.replace('_', " "),
            },
            names: steps.iter().map(name).collect(),
        },
        series,
    })
}

/// The rate over the time of one turn: a line for each entry that has it.
fn over_time(runs: &MergedRuns, workload: &str, of: &[&RunEntry], figures: &mut Vec<Figure>) {
    for metric in metrics(of) {
        let is_timed = |entry: &&&RunEntry| entry.metric == metric && !entry.timeline.is_empty();
        let timed: Vec<&RunEntry> = of.iter().filter(is_timed).copied().collect();
        let Some(first) = timed.first() else { continue };
        let line = |(at, entry): (usize, &&RunEntry)| FigureSeries {
            name: match entry.number(parameters::SERVERS) {
                Some(1.0) => format!("{}, 1 server", entry.target),
                Some(servers) => format!("{}, {servers} servers", entry.target),
                None => series_name(entry),
            },
            colour: if timed.len() > runs.targets.len() { at } else { runs.place(&entry.target) },
            points: condensed(entry),
        };
        figures.push(Figure {
            id: plain_id(&format!("{workload}-{metric}-over-time")),
            title: format!("{} over time", title_of(workload, metric)),
            caption: "The rate in each interval of one turn.".to_owned(),
            unit: first.unit.clone(),
            higher_is_better: first.higher_is_better,
            axis: FigureAxis::Seconds,
            series: timed.iter().enumerate().map(line).collect(),
        });
    }
}

fn title_of(workload: &str, metric: &str) -> String {
    match (workload, metric) {
        ("scale" | "mdtest", "create") => "Creates".to_owned(),
        _ => format!("{workload} {metric}"),
    }
}

/// Conditions that all entries share, and the meaning of the thin lines.
fn caption(of: &[&RunEntry]) -> String {
    let mut shared = of.first().map(|first| first.parameters.clone()).unwrap_or_default();
    shared.retain(|name, value| of.iter().all(|entry| entry.parameters.get(name) == Some(value)));
    let with_shared = RunEntry { parameters: shared, ..RunEntry::default() };
    let conditions = with_shared.conditions();
    let discards = of.iter().map(|entry| entry.discard).max().unwrap_or(0);
    let few = of.iter().any(|entry| median_interval(&entry.samples).is_none());
    let range = match (discards, few) {
        (0, false) => "Thin lines are 95 % intervals of the medians.".to_owned(),
        (0, true) => "Thin lines go from the slowest turn to the fastest: too few turns for intervals.".to_owned(),
        (discards, _) => format!("Means and ranges without the {discards} highest and {discards} lowest turns."),
    };
    if conditions.is_empty() { range } else { format!("{conditions}. {range}") }
}

fn metrics<'a>(of: &[&'a RunEntry]) -> Vec<&'a str> {
    let mut metrics = Vec::new();
    for entry in of {
        if !metrics.contains(&entry.metric.as_str()) {
            metrics.push(entry.metric.as_str());
        }
    }
    metrics
}

fn metrics_and_units<'a>(of: &[&'a RunEntry]) -> Vec<(&'a str, &'a str)> {
    let mut groups = Vec::new();
    for entry in of {
        let group = (entry.metric.as_str(), entry.unit.as_str());
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    groups
}

/// The values of a parameter in order, each once.
fn values(of: &[&RunEntry], parameter: &str) -> Vec<f64> {
    let mut values: Vec<f64> = of.iter().filter_map(|entry| entry.number(parameter)).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    values
}

/// A file name: letters, digits and dashes.
fn plain_id(id: &str) -> String {
    const CHARS_MAX: usize = 60;
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    id.chars().take(CHARS_MAX).map(plain).collect()
}
