//! Latencies of one phase: a row for each number of clients and target; dots at the median, the 99th and the 99.9th
//! percentile.

use super::axis::Logarithmic;
use super::{WIDTH, colour, escape};
use crate::report::{BenchReport, PhaseResult, numbers};
use std::fmt::Write;

const LEFT: f64 = 112.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 4.0;
const ROW: f64 = 19.0;
/// Height above each number of clients, for its label.
const HEADING: f64 = 22.0;
const BOTTOM: f64 = 26.0;

pub fn latencies(report: &BenchReport, phase: &str) -> String {
    let (targets, clients) = (report.targets(), report.clients());
    let results: Vec<&PhaseResult> = report.results.iter().filter(|result| result.phase == phase).collect();
    let low = results.iter().map(|result| result.latency_us.p50).fold(f64::MAX, f64::min).min(1e9);
    let high = results.iter().map(|result| result.latency_us.p999).fold(0.0, f64::max);
    let scale = Logarithmic::new(low, high, LEFT, WIDTH - RIGHT);
    let block = ROW * targets.len() as f64 + HEADING;
    let bottom = TOP + block * clients.len() as f64;
    let height = bottom + BOTTOM;

    let title = escape(crate::workloads::mdtest::Phase::title(phase));
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Latencies: {title}\">");
    for tick in scale.ticks() {
        let x = scale.at(tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\"/>\
             <text class=\"tick\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            bottom + 17.0,
            tick_label(tick)
        );
    }
    for (i, count) in clients.iter().enumerate() {
        let top = TOP + block * i as f64;
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"0\" y=\"{:.1}\">{}</text>",
            top + HEADING - 6.0,
            numbers::clients(*count)
        );
        for result in results.iter().filter(|result| result.clients == *count) {
            let target = (result.via.as_str(), result.target.as_str());
            let n = targets.iter().position(|known| *known == target).unwrap_or(0);
            row(report, &scale, result, n, top + HEADING + ROW * (n as f64 + 0.5), &mut svg);
        }
    }
    svg.push_str("</svg>");
    svg
}

fn tick_label(tick: f64) -> String {
    let text = numbers::latency(tick);
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        _ => text,
    }
}

fn row(report: &BenchReport, scale: &Logarithmic, result: &PhaseResult, n: usize, y: f64, svg: &mut String) {
    let label = report.label(&result.via, &result.target);
    let latency = &result.latency_us;
    let [p50, p99, p999] = [latency.p50, latency.p99, latency.p999].map(|value| scale.at(value));
    let class = colour(n);
    let _ = write!(
        svg,
        "<g><title>{} with {}: median {}, 99% within {}, 99.9% within {}, at most {}</title>\
         <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
         <line class=\"range {class}\" x1=\"{p50:.1}\" x2=\"{p999:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
         <circle class=\"{class}\" cx=\"{p50:.1}\" cy=\"{y:.1}\" r=\"5\"/>\
         <circle class=\"mid {class}\" cx=\"{p99:.1}\" cy=\"{y:.1}\" r=\"4\"/>\
         <path class=\"far {class}\" d=\"M{p999:.1} {:.1}v10\"/></g>",
        escape(&label),
        numbers::clients(result.clients),
        numbers::latency(latency.p50),
        numbers::latency(latency.p99),
        numbers::latency(latency.p999),
        numbers::latency(latency.max),
        LEFT - 12.0,
        y + 4.0,
        escape(&shortened(&label)),
        y - 5.0,
    );
}

/// Keeps the end of a long target name, which distinguishes it better than the beginning.
fn shortened(label: &str) -> String {
    const MAX: usize = 14;
    let len = label.chars().count();
    if len <= MAX { label.to_owned() } else { format!("…{}", label.chars().skip(len - MAX + 1).collect::<String>()) }
}
