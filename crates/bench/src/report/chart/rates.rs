//! Rates of one phase: a group of bars for each number of clients, a bar a target; whiskers from the slowest turn to
//! the fastest; ceilings as lines across the group.

use super::axis::linear_ticks;
use super::{WIDTH, colour, escape};
use crate::report::{CeilingResult, PhaseResult, Report, numbers};
use std::fmt::Write;

const HEIGHT: f64 = 250.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 8.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 30.0;
/// Widest a bar may be: few targets should not become blocks.
const BAR_MAX: f64 = 46.0;
/// A ceiling further above the highest bar than this would flatten all bars; it is written above the group instead.
const CEILING_IN_SIGHT: f64 = 2.5;

pub fn rates(report: &Report, phase: &str) -> String {
    let clients = report.clients();
    let results: Vec<&PhaseResult> = report.results.iter().filter(|result| result.phase == phase).collect();
    let highest = results.iter().map(|result| result.rate().max).fold(0.0, f64::max);
    let ceilings: Vec<&CeilingResult> = report.ceilings.iter().filter(|ceiling| shown(ceiling, phase)).collect();
    let in_sight = |ceiling: &&&CeilingResult| ceiling.ops_per_s <= highest * CEILING_IN_SIGHT;
    let top = ceilings.iter().filter(in_sight).map(|ceiling| ceiling.ops_per_s).fold(highest, f64::max);
    let ticks = linear_ticks(top.max(1.0), 4);
    let y_max = ticks.last().copied().unwrap_or(1.0);
    let plot = Plot { y_max };

    let title = escape(crate::workloads::mdtest::Phase::title(phase));
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Rates: {title}\">");
    for tick in &ticks {
        let y = plot.y(*tick);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            tick_label(*tick, y_max)
        );
    }
    let group = (WIDTH - LEFT - RIGHT) / clients.len().max(1) as f64;
    for (i, count) in clients.iter().enumerate() {
        let left = LEFT + group * i as f64;
        let of_group: Vec<&&PhaseResult> = results.iter().filter(|result| result.clients == *count).collect();
        bars(report, &plot, &of_group, left, group, &mut svg);
        let here: Vec<&&CeilingResult> = ceilings.iter().filter(|ceiling| ceiling.clients == *count).collect();
        lines(&plot, &here, highest * CEILING_IN_SIGHT, left, group, &mut svg);
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left + group / 2.0,
            HEIGHT - 9.0,
            numbers::clients(*count)
        );
    }
    let base = plot.y(0.0);
    let _ = write!(
        svg,
        "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{base:.1}\" y2=\"{base:.1}\"/></svg>",
        WIDTH - RIGHT
    );
    svg
}

/// The best of the transport's variants stands for all of them.
fn shown(ceiling: &CeilingResult, phase: &str) -> bool {
    match &ceiling.phase {
        Some(of) => of == phase,
        None => ceiling.name == crate::ceilings::REQUEST_REPLY,
    }
}

struct Plot {
    y_max: f64,
}

impl Plot {
    fn y(&self, rate: f64) -> f64 {
        let height = HEIGHT - TOP - BOTTOM;
        TOP + height - (rate / self.y_max).clamp(0.0, 1.0) * height
    }
}

/// All ticks of an axis in the unit of its highest, so that they can be read together.
fn tick_label(tick: f64, max: f64) -> String {
    let (unit, name) = match max {
        m if m >= 1e6 => (1e6, " M"),
        m if m >= 1e3 => (1e3, " k"),
        _ => (1.0, ""),
    };
    if tick == 0.0 {
        return "0".to_owned();
    }
    let text = format!("{:.3}", tick / unit);
    format!("{}{name}", text.trim_end_matches('0').trim_end_matches('.'))
}

fn bars(report: &Report, plot: &Plot, results: &[&&PhaseResult], left: f64, group: f64, svg: &mut String) {
    let targets = report.targets();
    let slot = (group * 0.84 / targets.len().max(1) as f64).min(BAR_MAX + 6.0);
    let width = (slot - 4.0).max(2.0);
    let start = left + (group - slot * targets.len() as f64) / 2.0;
    for result in results {
        let target = (result.via.as_str(), result.target.as_str());
        let n = targets.iter().position(|known| *known == target).unwrap_or(0);
        let rate = result.rate();
        let x = start + slot * n as f64 + 2.0;
        let (y, base, middle) = (plot.y(rate.median), plot.y(0.0), x + width / 2.0);
        let radius = 3.0_f64.min((base - y).max(0.0)).min(width / 2.0);
        let _ = write!(
            svg,
            "<g><title>{} with {}: {} {} (from {} to {})</title>\
             <path class=\"{}\" d=\"M{x:.1} {base:.1}V{:.1}q0 -{radius:.1} {radius:.1} -{radius:.1}h{:.1}q{radius:.1} 0 \
             {radius:.1} {radius:.1}V{base:.1}z\"/>",
            escape(&report.label(&result.via, &result.target)),
            numbers::clients(result.clients),
            numbers::grouped(rate.median),
            report.unit(),
            numbers::grouped(rate.min),
            numbers::grouped(rate.max),
            colour(n),
            y + radius,
            width - 2.0 * radius,
        );
        let (low, high) = (plot.y(rate.min), plot.y(rate.max));
        if low - high >= 1.5 {
            let cap = (width / 5.0).min(5.0);
            let _ = write!(
                svg,
                "<path class=\"whisker\" d=\"M{middle:.1} {low:.1}V{high:.1}M{:.1} {low:.1}h{:.1}M{:.1} {high:.1}h{:.1}\"/>",
                middle - cap,
                2.0 * cap,
                middle - cap,
                2.0 * cap
            );
        }
        if width >= 18.0 {
            let _ = write!(
                svg,
                "<text class=\"value\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                high.min(y) - 5.0,
                numbers::short(rate.median).replace(' ', "\u{2009}")
            );
        }
        svg.push_str("</g>");
    }
}

fn lines(plot: &Plot, ceilings: &[&&CeilingResult], in_sight: f64, left: f64, group: f64, svg: &mut String) {
    let mut above = Vec::new();
    for ceiling in ceilings {
        let name = escape(&ceiling.name);
        if ceiling.ops_per_s > in_sight {
            above.push(format!("{name} {}", numbers::short(ceiling.ops_per_s)));
            continue;
        }
        let (y, from, to) = (plot.y(ceiling.ops_per_s), left + group * 0.04, left + group * 0.96);
        let _ = write!(
            svg,
            "<g><title>{name}: {}/s (from {} to {})</title>\
             <line class=\"ceiling {name}\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/></g>",
            numbers::grouped(ceiling.ops_per_s),
            numbers::grouped(ceiling.min),
            numbers::grouped(ceiling.max),
        );
    }
    if !above.is_empty() {
        let _ = write!(
            svg,
            "<text class=\"note\" x=\"{:.1}\" y=\"11\" text-anchor=\"middle\">↑ {}</text>",
            left + group / 2.0,
            above.join(", ")
        );
    }
}
