//! The results as tables for a terminal.

use super::{Measured, RunResults};
use crate::measure::{Spread, paired_ratios};
use std::fmt::Write;

pub(super) fn render(results: &RunResults) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}; clients are {}", results.environment.machine(), results.driven_by);
    let mut groups: Vec<(&str, usize, String)> = Vec::new();
    for measured in &results.results {
        let group = (measured.workload.as_str(), measured.clients, measured.parameters_text());
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let first_target = results.results.first().map_or("", |measured| measured.target.as_str());
    for (workload, clients, parameters) in &groups {
        let _ = writeln!(
            text,
            "\n{workload}, {clients} {}  {parameters}",
            if *clients == 1 { "client" } else { "clients" }
        );
        let _ = writeln!(
            text,
            "  {:<26} {:>12} {:>12} {:>12} {:>9} {:>9} {:>7}  target",
            "figure", "median", "min", "max", "p50 us", "p99 us", "ratio"
        );
        let of_group = results.results.iter().filter(|measured| {
            measured.workload == *workload && measured.clients == *clients && measured.parameters_text() == *parameters
        });
        for measured in of_group {
            let first = results.results.iter().find(|other| {
                other.target == first_target
                    && (&other.metric, &other.unit) == (&measured.metric, &measured.unit)
                    && other.workload == measured.workload
                    && other.clients == measured.clients
                    && other.parameters == measured.parameters
            });
            line(&mut text, measured, first);
        }
    }
    for warning in results.warnings.iter().cloned().chain(results.environment.warnings()) {
        let _ = writeln!(text, "warning: {warning}");
    }
    if let Some(error) = &results.error {
        let _ = writeln!(text, "\nThe run ended early; figures above are those until then: {error}");
    }
    text.truncate(text.trim_end().len());
    text
}

fn line(text: &mut String, measured: &Measured, first: Option<&Measured>) {
    let spread = Spread::of(&measured.kept_samples()).unwrap_or_default();
    let (p50, p99) =
        measured.latency_us.map_or_else(Default::default, |at| (format!("{:.0}", at.p50), format!("{:.0}", at.p99)));
    let ratio = first
        .filter(|first| first.target != measured.target)
        .and_then(|first| paired_ratios(&measured.samples, &first.samples))
        .map_or(String::new(), |(ratio, interval)| match interval {
            // A difference within the noise is none.
            Some(interval) if interval.low <= 1.0 && interval.high >= 1.0 => "same".to_owned(),
            _ => format!("{:.2}", ratio.median),
        });
    let marks: String = measured.marks.iter().map(|mark| format!("  [{mark}]")).collect();
    let _ = writeln!(
        text,
        "  {:<26} {:>12.2} {:>12.2} {:>12.2} {p50:>9} {p99:>9} {ratio:>7}  {}{marks}",
        format!("{} ({})", measured.metric, measured.unit),
        spread.median,
        spread.min,
        spread.max,
        measured.target
    );
}
