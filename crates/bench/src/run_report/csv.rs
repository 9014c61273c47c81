//! Figures and entries as CSV (RFC 4180), for spreadsheets and other programs.

use super::MergedRuns;
use super::figures::{self, Figure, FigureAxis};
use crate::measure::median_interval;

/// The files beside the page: the name and the content of each.
pub fn files(runs: &MergedRuns) -> Vec<(String, String)> {
    let figures = figures::choose(runs).into_iter().map(|figure| (format!("{}.csv", figure.id), of_figure(&figure)));
    [("all.csv".to_owned(), of_entries(runs))].into_iter().chain(figures).collect()
}

/// The points of a figure, a line each.
fn of_figure(figure: &Figure) -> String {
    let x_name = match &figure.axis {
        FigureAxis::Groups(_) => "operation",
        FigureAxis::Steps { label, .. } => label,
        FigureAxis::Seconds => "seconds",
    };
    let mut csv = line(&["series", x_name, "low", "middle", "high", "unit", "marks"].map(str::to_owned));
    for series in &figure.series {
        for point in &series.points {
            let x = match &figure.axis {
                FigureAxis::Groups(names) | FigureAxis::Steps { names, .. } => {
                    names.get(point.x as usize).cloned().unwrap_or_default()
                }
                FigureAxis::Seconds => point.x.to_string(),
            };
            let numbers = [point.low, point.middle, point.high].map(|value| value.to_string());
            let [low, middle, high] = numbers;
            let marks = point.marks.join("; ");
            csv += &line(&[series.name.clone(), x, low, middle, high, figure.unit.clone(), marks]);
        }
    }
    csv
}

/// All entries, a line each.
fn of_entries(runs: &MergedRuns) -> String {
    let names = [
        "target",
        "workload",
        "metric",
        "parameters",
        "tool",
        "unit",
        "higher_is_better",
        "turns",
        "median",
        "min",
        "max",
        "interval_low",
        "interval_high",
        "p50_us",
        "p99_us",
        "p999_us",
        "marks",
        "samples",
    ];
    let mut csv = line(&names.map(str::to_owned));
    for entry in &runs.entries {
        let spread = entry.spread();
        let interval = median_interval(&entry.samples);
        let optional = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
        let samples: Vec<String> = entry.samples.iter().map(f64::to_string).collect();
        let latency = entry.latency_us;
        csv += &line(&[
            entry.target.clone(),
            entry.workload.clone(),
            entry.metric.clone(),
            entry.conditions(),
            entry.tool.clone(),
            entry.unit.clone(),
            entry.higher_is_better.to_string(),
            entry.samples.len().to_string(),
            spread.median.to_string(),
            spread.min.to_string(),
            spread.max.to_string(),
            optional(interval.map(|interval| interval.low)),
            optional(interval.map(|interval| interval.high)),
            optional(latency.map(|latency| latency.p50)),
            optional(latency.map(|latency| latency.p99)),
            optional(latency.map(|latency| latency.p999)),
            entry.marks.join("; "),
            samples.join(" "),
        ]);
    }
    csv
}

fn line(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
    format!("{}\r\n", cells.join(","))
}

/// A cell. Spreadsheets execute text that begins like a formula, so such text gets an apostrophe.
fn quoted(cell: &str) -> String {
    let is_formula = cell.starts_with(['=', '+', '-', '@', '\t', '\r']) && cell.parse::<f64>().is_err();
    let cell = if is_formula { format!("'{cell}") } else { cell.to_owned() };
    if cell.contains(['"', ',', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell }
}
