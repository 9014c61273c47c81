//! mdtest's summary table.

use crate::measure::Spread;
use crate::results::{MARK_PARTIAL, RunResults};
use std::fmt::Write;

/// Metrics in mdtest's order, with its titles.
const ROWS: [(&str, &str); 11] = [
    ("dir_create", "Directory creation"),
    ("dir_stat", "Directory stat"),
    ("dir_rename", "Directory rename"),
    ("dir_remove", "Directory removal"),
    ("create", "File creation"),
    ("stat", "File stat"),
    ("read", "File read"),
    ("rename", "File rename"),
    ("remove", "File removal"),
    ("tree_create", "Tree creation"),
    ("tree_remove", "Tree removal"),
];

/// A table for each target and number of clients; no trailing newline. Drained rates follow in a second table.
pub fn summary(results: &RunResults) -> String {
    let mut text = String::new();
    let mut groups: Vec<(&str, usize)> = Vec::new();
    for measured in &results.results {
        if !groups.contains(&(measured.target.as_str(), measured.clients)) {
            groups.push((measured.target.as_str(), measured.clients));
        }
    }
    for (target, clients) in groups {
        let of = |metric: &str| {
            let found = results
                .results
                .iter()
                .find(|measured| measured.target == target && measured.clients == clients && measured.metric == metric);
            found.and_then(|found| {
                Some((Spread::of(&found.samples)?, found.samples.len(), found.marks.contains(MARK_PARTIAL)))
            })
        };
        let iterations = ROWS.iter().filter_map(|(metric, _)| of(metric)).map(|found| found.1).max().unwrap_or(0);
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{target}, {clients} tasks\n\nSUMMARY rate: (of {iterations} iterations)");
        let _ = writeln!(text, "   Operation                     Max            Min           Mean        Std Dev");
        let _ = writeln!(text, "   ---------                     ---            ---           ----        -------");
        for (metric, title) in ROWS {
            let Some((rates, _, is_partial)) = of(metric) else { continue };
            let mark = if is_partial { "   partial" } else { "" };
            let _ = writeln!(
                text,
                "   {title:<18} {:>14.3} {:>14.3} {:>14.3} {:>14.3}{mark}",
                rates.max, rates.min, rates.mean, rates.stddev
            );
        }
        for (metric, title) in ROWS {
            let metric = format!("{metric}_drained");
            if let Some((rates, ..)) = of(&metric) {
                let _ = writeln!(text, "   {title}, fully drained: {:.3}", rates.mean);
            }
        }
        text.push('\n');
    }
    for warning in results.warnings.iter().cloned().chain(results.environment.warnings()) {
        let _ = writeln!(text, "warning: {warning}");
    }
    if let Some(error) = &results.error {
        let _ = writeln!(text, "The run ended early; figures above are those until then: {error}");
    }
    text.truncate(text.trim_end().len());
    text
}
