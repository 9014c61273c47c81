//! The text form: mdtest's summary, a block for each number of clients, the targets side by side under each operation.

use super::{BenchReport, PhaseResult, numbers};
use crate::workloads::mdtest::Phase;
use std::fmt::Write;

pub fn render(report: &BenchReport) -> String {
    let mut text = String::new();
    head(report, &mut text);
    for clients in report.clients() {
        summary(report, clients, &mut text);
    }
    if !report.ratios.is_empty() {
        legend(report, &mut text);
    }
    for warning in &report.warnings {
        line(&mut text, format!("warning: {warning}"));
    }
    text.truncate(text.trim_end().len());
    text
}

/// Explains the columns after the latencies.
fn legend(report: &BenchReport, text: &mut String) {
    line(text, "");
    line(
        text,
        "/ X: the rate over X's. It is the median of what each turn gave, not the quotient of the medians shown.",
    );
    if report.ceilings.iter().any(|ceiling| ceiling.name == "request-reply") {
        line(text, "request-reply, the transport with nothing behind it, is the best of its variants below it.");
    }
}

fn line(text: &mut String, line: impl AsRef<str>) {
    text.push_str(line.as_ref().trim_end());
    text.push('\n');
}

fn head(report: &BenchReport, text: &mut String) {
    let environment = &report.environment;
    line(text, format!("varve {} {}, {}", environment.varve_version, report.command, environment.date));
    line(
        text,
        format!("{}, {}, {}", environment.machine(), numbers::bytes(environment.memory_bytes), environment.kernel),
    );
    line(text, workload(report));
    for target in &environment.targets {
        let (via, place) = (&target.via, &target.target);
        line(text, format!("  {via}:{place} on {} {} ({})", target.filesystem, target.source, target.mount_options));
    }
}

/// Describes the workload in one sentence.
pub fn workload(report: &BenchReport) -> String {
    let number = |name: &str| report.settings.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
    let is = |name: &str| report.settings.get(name).and_then(serde_json::Value::as_bool).unwrap_or(false);
    let turns = if number("repeat") == 1 { "one turn".to_owned() } else { format!("{} turns", number("repeat")) };
    if report.command == "bench stream" {
        let (bytes, block) = (numbers::bytes(number("bytes")), numbers::bytes(number("block_bytes")));
        return format!("{bytes} a client in blocks of {block}, fsynced at the end, {turns}");
    }
    let what = if is("directories") { "directories" } else { "files" };
    let place = if is("unique_dirs") { "a directory a client" } else { "one shared directory" };
    let size = match number("write_bytes") {
        0 => String::new(),
        bytes => format!(" of {}", numbers::bytes(bytes)),
    };
    let prefill = match number("prefill") {
        0 => String::new(),
        files => format!(" that holds {files} others"),
    };
    format!("{} {what}{size} in {place}{prefill}, {turns}", number("files"))
}

fn summary(report: &BenchReport, clients: usize, text: &mut String) {
    let references = report.references();
    let iterations = report.settings.get("repeat").and_then(serde_json::Value::as_u64).unwrap_or(1);
    line(text, "");
    let plural = if iterations == 1 { "" } else { "s" };
    let (unit, clients_text) = (report.unit(), numbers::clients(clients));
    line(text, format!("SUMMARY rate in {unit}: (of {iterations} iteration{plural}), {clients_text}"));
    let via_width = report.targets().iter().map(|(via, place)| report.label(via, place).chars().count()).max();
    let via_width = via_width.unwrap_or(0).max(7).max(report.ceilings.iter().map(|c| c.name.len()).max().unwrap_or(0));
    let mut header = format!("   {:<19} {:<via_width$}", "Operation", "Via");
    for column in ["Max", "Min", "Mean", "Std Dev", "Median"] {
        let _ = write!(header, " {column:>12}");
    }
    for column in ["p50 µs", "p99 µs", "p99.9 µs"] {
        let _ = write!(header, " {column:>9}");
    }
    for reference in &references {
        let _ = write!(header, " {:>width$}", format!("/ {reference}"), width = reference.len() + 2);
    }
    line(text, &header);
    line(text, format!("   {}", "-".repeat(header.chars().count() - 3)));
    for phase in report.phases() {
        let mut title = Phase::title(phase);
        for result in report.results.iter().filter(|result| result.phase == phase && result.clients == clients) {
            let label = report.label(&result.via, &result.target);
            let mut row = format!("   {title:<19} {label:<via_width$}");
            columns(report, result, &references, &mut row);
            line(text, row);
            title = "";
        }
        for ceiling in report.ceilings.iter().filter(|c| c.phase.as_deref() == Some(phase) && c.clients == clients) {
            let row = format!("   {title:<19} {:<via_width$}", ceiling.name);
            let (mean, stddev) = ("", "");
            let median = ceiling.ops_per_s;
            line(
                text,
                format!("{row} {:>12.3} {:>12.3} {mean:>12} {stddev:>12} {median:>12.3}", ceiling.max, ceiling.min),
            );
            title = "";
        }
    }
    let mut title = "Ceilings";
    for ceiling in report.ceilings.iter().filter(|c| c.phase.is_none() && c.clients == clients) {
        let (name, median, none) = (&ceiling.name, ceiling.ops_per_s, "");
        line(
            text,
            format!(
                "   {title:<19} {name:<via_width$} {:>12.3} {:>12.3} {none:>12} {none:>12} {median:>12.3}",
                ceiling.max, ceiling.min
            ),
        );
        title = "";
    }
    intervals(report, clients, text);
}

fn columns(report: &BenchReport, result: &PhaseResult, references: &[&str], row: &mut String) {
    let rate = result.rate();
    for value in [rate.max, rate.min, rate.mean, rate.stddev, rate.median] {
        let _ = write!(row, " {value:>12.3}");
    }
    let latency = &result.latency_us;
    for value in [latency.p50, latency.p99, latency.p999] {
        let _ = write!(row, " {value:>9.1}");
    }
    for reference in references {
        let cell = report.ratio(result, reference).map_or(String::new(), |ratio| numbers::ratio(ratio.median));
        let _ = write!(row, " {cell:>width$}", width = reference.len() + 2);
    }
}

/// Printed only with enough pairs.
fn intervals(report: &BenchReport, clients: usize, text: &mut String) {
    for ratio in report.ratios.iter().filter(|ratio| ratio.clients == clients) {
        if let Some(interval) = &ratio.interval {
            let label = report.label(&ratio.via, &ratio.target);
            line(
                text,
                format!(
                    "   {label} {} / {}: {:.3}, between {:.3} and {:.3} ({:.1}% confidence, {} pairs)",
                    ratio.phase,
                    ratio.to,
                    ratio.median,
                    interval.low,
                    interval.high,
                    interval.confidence * 100.0,
                    ratio.pairs
                ),
            );
        }
    }
}
