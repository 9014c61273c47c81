//! Rates of one phase: a group of bars for each number of clients, and a bar for each target. Whiskers reach from the
//! slowest turn to the fastest. A line above a bar is the ceiling of its target.

use super::axis::linear_ticks;
use super::{WIDTH, colour, escape};
use crate::report::{BenchReport, CeilingResult, PhaseResult, numbers};
use std::fmt::Write;

const HEIGHT: f64 = 250.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 4.0;
const TOP: f64 = 26.0;
const BOTTOM: f64 = 30.0;
/// Maximum width of a bar: few targets should not become blocks.
const BAR_MAX: f64 = 46.0;
/// Narrower bars have no space for their figures. The table below shows them too.
const LABELLED: f64 = 24.0;
const FIGURE_HEIGHT: f64 = 11.0;
/// A ceiling further above the highest bar than this would flatten all bars, so its value is written above the group.
const CEILING_IN_SIGHT: f64 = 2.5;

pub fn rates(report: &BenchReport, phase: &str) -> String {
    let clients = report.clients();
    let results: Vec<&PhaseResult> = report.results.iter().filter(|result| result.phase == phase).collect();
    let highest = results.iter().map(|result| result.rate().max).fold(0.0, f64::max);
    let in_sight = highest * CEILING_IN_SIGHT;
    let bars: Vec<Bar> = results.iter().map(|result| Bar::new(report, result, &clients)).collect();
    let limits = bars.iter().flat_map(|bar| bar.ceilings.iter().map(|ceiling| ceiling.ops_per_s));
    let top = limits.filter(|limit| *limit <= in_sight).fold(highest, f64::max);
    let ticks = linear_ticks(top.max(1.0), 4);
    let plot = Plot { y_max: ticks.last().copied().unwrap_or(1.0) };

    let title = escape(crate::workloads::mdtest::Phase::title(phase));
    let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Rates: {title}\">");
    grid(&plot, &ticks, &mut svg);
    for bar in &bars {
        bar.body(report, &plot, &mut svg);
    }
    // Drawn above all bars, so that no line crosses a figure.
    for bar in &bars {
        bar.limits(&plot, in_sight, &mut svg);
        bar.figure(&plot, in_sight, &mut svg);
    }
    let group = group_width(&clients);
    for (i, count) in clients.iter().enumerate() {
        let middle = LEFT + group * (i as f64 + 0.5);
        let _ = write!(
            svg,
            "<text class=\"label\" x=\"{middle:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - 9.0,
            numbers::clients(*count)
        );
        let of_group = bars.iter().filter(|bar| bar.result.clients == *count).flat_map(|bar| &bar.ceilings);
        let mut above: Vec<String> = of_group
            .filter(|ceiling| ceiling.ops_per_s > in_sight)
            .map(|ceiling| format!("{} {}", escape(&ceiling.name), numbers::short(ceiling.ops_per_s)))
            .collect();
        above.dedup();
        if !above.is_empty() {
            let _ = write!(
                svg,
                "<text class=\"note\" x=\"{middle:.1}\" y=\"11\" text-anchor=\"middle\">↑ {}</text>",
                above.join(", ")
            );
        }
    }
    svg.push_str("</svg>");
    svg
}

fn group_width(clients: &[usize]) -> f64 {
    (WIDTH - LEFT - RIGHT) / clients.len().max(1) as f64
}

fn grid(plot: &Plot, ticks: &[f64], svg: &mut String) {
    for tick in ticks {
        let (y, class) = (plot.y(*tick), if *tick == 0.0 { "axis" } else { "grid" });
        let _ = write!(
            svg,
            "<line class=\"{class}\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text class=\"tick\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            tick_label(*tick, plot.y_max)
        );
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

/// The label of a tick. All ticks of an axis use the unit of the highest one, so that they can be read together.
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

/// One target with one number of clients, and its ceilings.
struct Bar<'a> {
    result: &'a PhaseResult,
    ceilings: Vec<&'a CeilingResult>,
    target: usize,
    x: f64,
    width: f64,
}

impl<'a> Bar<'a> {
    fn new(report: &'a BenchReport, result: &'a PhaseResult, clients: &[usize]) -> Bar<'a> {
        let targets = report.targets();
        let place = (result.via.as_str(), result.target.as_str());
        let target = targets.iter().position(|known| *known == place).unwrap_or(0);
        let group = group_width(clients);
        let index = clients.iter().position(|count| *count == result.clients).unwrap_or(0);
        let slot = (group * 0.88 / targets.len().max(1) as f64).min(BAR_MAX + 6.0);
        let start = LEFT + group * index as f64 + (group - slot * targets.len() as f64) / 2.0;
        let here = |ceiling: &&CeilingResult| {
            ceiling.bounds(&result.via, &result.target)
                && ceiling.clients == result.clients
                && ceiling.phase.as_ref().is_none_or(|phase| *phase == result.phase)
        };
        Bar {
            result,
            ceilings: report.ceilings.iter().filter(here).collect(),
            target,
            x: start + slot * target as f64 + 2.0,
            width: (slot - 4.0).max(2.0),
        }
    }

    fn middle(&self) -> f64 {
        self.x + self.width / 2.0
    }

    fn body(&self, report: &BenchReport, plot: &Plot, svg: &mut String) {
        let (rate, x, width) = (self.result.rate(), self.x, self.width);
        let (y, base) = (plot.y(rate.median), plot.y(0.0));
        let radius = 3.0_f64.min((base - y).max(0.0)).min(width / 2.0);
        let _ = write!(
            svg,
            "<g><title>{} with {}: {} {} (from {} to {})</title>\
             <path class=\"{}\" d=\"M{x:.1} {base:.1}V{:.1}q0 -{radius:.1} {radius:.1} -{radius:.1}h{:.1}q{radius:.1} 0 \
             {radius:.1} {radius:.1}V{base:.1}z\"/>",
            escape(&report.label(&self.result.via, &self.result.target)),
            numbers::clients(self.result.clients),
            numbers::grouped(rate.median),
            report.unit(),
            numbers::grouped(rate.min),
            numbers::grouped(rate.max),
            colour(self.target),
            y + radius,
            width - 2.0 * radius,
        );
        let (low, high) = (plot.y(rate.min), plot.y(rate.max));
        if low - high >= 1.5 {
            let cap = (width / 5.0).min(5.0);
            let (middle, left) = (self.middle(), self.middle() - cap);
            let _ = write!(
                svg,
                "<path class=\"whisker\" d=\"M{middle:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}h{:.1}M{left:.1} {high:.1}h{:.1}\"/>",
                2.0 * cap,
                2.0 * cap
            );
        }
        svg.push_str("</g>");
    }

    fn limits(&self, plot: &Plot, in_sight: f64, svg: &mut String) {
        for ceiling in self.ceilings.iter().filter(|ceiling| ceiling.ops_per_s <= in_sight) {
            let (name, y) = (escape(&ceiling.name), plot.y(ceiling.ops_per_s));
            let _ = write!(
                svg,
                "<g><title>{name}: {}/s (from {} to {})</title>\
                 <line class=\"ceiling {name}\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/></g>",
                numbers::grouped(ceiling.ops_per_s),
                numbers::grouped(ceiling.min),
                numbers::grouped(ceiling.max),
                self.x - 2.0,
                self.x + self.width + 2.0,
            );
        }
    }

    fn figure(&self, plot: &Plot, in_sight: f64, svg: &mut String) {
        if self.width < LABELLED {
            return;
        }
        let rate = self.result.rate();
        let mut y = plot.y(rate.max) - 5.0;
        let mut limits: Vec<f64> = self.ceilings.iter().map(|ceiling| ceiling.ops_per_s).collect();
        limits.sort_by(f64::total_cmp);
        for limit in limits.into_iter().filter(|limit| *limit <= in_sight).map(|limit| plot.y(limit)) {
            // The figure moves up if a line would cross it.
            if (y - FIGURE_HEIGHT..y + 4.0).contains(&limit) {
                y = limit - 5.0;
            }
        }
        let _ = write!(
            svg,
            "<text class=\"value\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            self.middle(),
            y,
            numbers::short(rate.median).replace(' ', "\u{2009}")
        );
    }
}
