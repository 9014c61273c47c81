//! Charts as inline SVG, drawn by plotters: one row for each number of clients and target on a logarithmic axis, so that
//! small and large values are equally legible.
//!
//! - [`rates`]: bars of the median, with a whisker from the slowest turn to the fastest and a line at each ceiling.
//! - [`latencies`]: dots at the median and the 99th percentile, a range to the 99.9th.
//!
//! plotters writes colours as attributes. The page's style sheet replaces each colour of [`TARGETS`] and the constants
//! below by its variant for light or dark mode.

use super::{BenchReport, CeilingResult, PhaseResult, numbers};
use crate::workloads::mdtest::Phase;
use plotters::coord::combinators::LogCoord;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// Width of a drawing in its own units, which are pixels until the page scales it.
const WIDTH: u32 = 420;
/// Space for the names of the targets.
const NAMES: u32 = 112;
/// Space for the figures behind the bars.
const FIGURES: u32 = 58;
const ROW: u32 = 20;
const AXIS: u32 = 24;
const FONT: f64 = 12.0;

/// Colours of the targets; further targets reuse them from the start.
pub const TARGETS: [RGBColor; 6] = [
    RGBColor(0x2f, 0x6f, 0xb5),
    RGBColor(0xe0, 0x8a, 0x1e),
    RGBColor(0x2a, 0x9d, 0x7c),
    RGBColor(0xb0, 0x49, 0x8f),
    RGBColor(0x7a, 0x68, 0xc4),
    RGBColor(0x8a, 0x8f, 0x3c),
];
pub const INK: RGBColor = RGBColor(0x1b, 0x1c, 0x1e);
pub const GRID: RGBColor = RGBColor(0xe4, 0xe4, 0xdf);
const CEILING: RGBColor = RGBColor(0xc4, 0x44, 0x2f);

type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<LogCoord<f64>, RangedCoordf64>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// The rates of one phase.
pub fn rates(report: &BenchReport, phase: &str) -> String {
    let rows = rows(report, phase);
    let values = rows.iter().filter_map(|row| row.result).flat_map(|result| {
        let limits = ceilings(report, result).map(|ceiling| ceiling.ops_per_s);
        [result.rate().min, result.rate().max].into_iter().chain(limits).collect::<Vec<_>>()
    });
    let scale = Scale::around(values);
    let title = format!("Rates in {}: {}", report.unit(), Phase::title(phase));
    draw(&rows, &scale, &title, tick_rate, |plot, at, result, target| {
        let rate = result.rate();
        bar(plot, &scale, at, (rate.min, rate.median, rate.max), target)?;
        for ceiling in ceilings(report, result) {
            let x = scale.within(ceiling.ops_per_s);
            let ends = [(x, at - 0.45), (x, at + 0.45)];
            plot.draw_series([PathElement::new(ends, CEILING.stroke_width(2))])?;
        }
        Ok(numbers::short(rate.median))
    })
}

/// The latencies of one phase.
pub fn latencies(report: &BenchReport, phase: &str) -> String {
    let rows = rows(report, phase);
    let values = rows.iter().filter_map(|row| row.result).flat_map(|row| [row.latency_us.p50, row.latency_us.p999]);
    let scale = Scale::around(values);
    let title = format!("Latencies: {}", Phase::title(phase));
    draw(&rows, &scale, &title, tick_latency, |plot, at, result, target| {
        let colour = TARGETS[target % TARGETS.len()];
        let latency = &result.latency_us;
        let [p50, p99, p999] = [latency.p50, latency.p99, latency.p999].map(|value| scale.within(value));
        plot.draw_series([PathElement::new([(p50, at), (p999, at)], colour.stroke_width(2))])?;
        plot.draw_series([PathElement::new([(p999, at - 0.25), (p999, at + 0.25)], colour.stroke_width(2))])?;
        plot.draw_series([Circle::new((p50, at), 5, colour.filled()), Circle::new((p99, at), 3, colour.filled())])?;
        Ok(numbers::latency(latency.p50))
    })
}

/// The ceilings of the result's target, phase and number of clients.
fn ceilings<'a>(report: &'a BenchReport, result: &'a PhaseResult) -> impl Iterator<Item = &'a CeilingResult> {
    report.ceilings.iter().filter(|ceiling| {
        ceiling.bounds(&result.via, &result.target)
            && ceiling.clients == result.clients
            && ceiling.phase.as_ref().is_none_or(|phase| *phase == result.phase)
    })
}

/// One row of a drawing: a heading, or the result of a target.
struct Row<'a> {
    name: String,
    result: Option<&'a PhaseResult>,
    /// The target's place among all targets, which gives its colour.
    target: usize,
}

fn rows<'a>(report: &'a BenchReport, phase: &str) -> Vec<Row<'a>> {
    let targets = report.targets();
    let mut rows = Vec::new();
    for clients in report.clients() {
        rows.push(Row { name: numbers::clients(clients), result: None, target: 0 });
        for result in report.results.iter().filter(|result| result.phase == phase && result.clients == clients) {
            let of = (result.via.as_str(), result.target.as_str());
            let target = targets.iter().position(|known| *known == of).unwrap_or(0);
            rows.push(Row { name: shortened(&report.label(of.0, of.1)), result: Some(result), target });
        }
    }
    rows
}

/// A logarithmic axis over whole decades.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Values outside these bounds are drawn at the bound: a report read from a file may hold any number.
    const MIN: f64 = 1e-3;
    const MAX: f64 = 1e12;

    fn around(values: impl Iterator<Item = f64>) -> Scale {
        let clamped = values.filter(|value| value.is_finite()).map(|value| value.clamp(Scale::MIN, Scale::MAX));
        let (low, high) =
            clamped.fold((Scale::MAX, Scale::MIN), |(low, high), value| (low.min(value), high.max(value)));
        if low > high {
            return Scale::around([1.0, 10.0].into_iter());
        }
        // The shortest bar keeps a visible length, and rounding does not cut off the ticks at the ends.
        let (low, high) = ((low / 1.5).log10().floor(), (high * 1.05).log10().ceil());
        Scale { low: 10_f64.powf(low) * 0.999, high: 10_f64.powf(high) * 1.001 }
    }

    fn within(&self, value: f64) -> f64 {
        if value.is_finite() { value.clamp(self.low, self.high) } else { self.low }
    }
}

/// Draws one row's result at a height and returns the figure to write behind it.
type DrawRow<'f> =
    dyn FnMut(&mut Plot, f64, &PhaseResult, usize) -> Result<String, DrawingAreaErrorKind<std::io::Error>> + 'f;

fn draw(
    rows: &[Row],
    scale: &Scale,
    title: &str,
    tick: fn(f64) -> String,
    mut row: impl FnMut(&mut Plot, f64, &PhaseResult, usize) -> Result<String, DrawingAreaErrorKind<std::io::Error>>,
) -> String {
    let height = ROW * rows.len() as u32 + AXIS + 4;
    let mut svg = String::new();
    draw_into(&mut svg, height, rows, scale, tick, &mut row).expect("drawing into a string cannot fail");
    // The page is HTML, where an inline SVG has no name space and takes its size from the style sheet.
    let body = svg.find('>').map_or("", |end| &svg[end + 1..]);
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">{body}", escape(title))
}

fn draw_into(
    svg: &mut String,
    height: u32,
    rows: &[Row],
    scale: &Scale,
    tick: fn(f64) -> String,
    draw_row: &mut DrawRow,
) -> Drawn {
    let root = SVGBackend::with_string(svg, (WIDTH, height)).into_drawing_area();
    let mut plot = ChartBuilder::on(&root)
        .margin_top(4)
        .margin_right(FIGURES)
        .set_label_area_size(LabelAreaPosition::Left, NAMES)
        .set_label_area_size(LabelAreaPosition::Bottom, AXIS)
        .build_cartesian_2d((scale.low..scale.high).log_scale(), rows.len().max(1) as f64..0.0)?;
    plot.configure_mesh()
        .disable_y_mesh()
        .disable_y_axis()
        .x_labels(4)
        .x_label_formatter(&|value| tick(*value))
        .label_style(("sans-serif", FONT).into_font().color(&INK))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GRID)
        .draw()?;
    let text = |anchor| ("sans-serif", FONT).into_text_style(&root).color(&INK).pos(Pos::new(anchor, VPos::Center));
    for (index, row) in rows.iter().enumerate() {
        let at = index as f64 + 0.5;
        let name = EmptyElement::at((scale.low, at));
        let Some(result) = row.result else {
            let shift = (8 - NAMES as i32, 0);
            plot.draw_series([name + Text::new(row.name.clone(), shift, text(HPos::Left))])?;
            continue;
        };
        plot.draw_series([name + Text::new(row.name.clone(), (-8, 0), text(HPos::Right))])?;
        let figure = draw_row(&mut plot, at, result, row.target)?;
        let end = EmptyElement::at((scale.high, at));
        plot.draw_series([end + Text::new(figure, (FIGURES as i32 - 4, 0), text(HPos::Right))])?;
    }
    root.present()
}

fn bar(plot: &mut Plot, scale: &Scale, at: f64, (min, median, max): (f64, f64, f64), target: usize) -> Drawn {
    let [min, median, max] = [min, median, max].map(|value| scale.within(value));
    let colour = TARGETS[target % TARGETS.len()];
    plot.draw_series([Rectangle::new([(scale.low, at - 0.36), (median, at + 0.36)], colour.filled())])?;
    plot.draw_series([PathElement::new([(min, at), (max, at)], INK.stroke_width(1))])?;
    Ok(())
}

fn tick_rate(tick: f64) -> String {
    without_zeros(numbers::short(tick))
}

fn tick_latency(tick: f64) -> String {
    without_zeros(numbers::latency(tick))
}

/// `10.0 k` becomes `10 k`.
fn without_zeros(text: String) -> String {
    match text.split_once(' ') {
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        None if text.contains('.') => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        _ => text,
    }
}

/// Keeps the end of a long target name, which distinguishes it better than the beginning.
fn shortened(label: &str) -> String {
    const MAX: usize = 14;
    let len = label.chars().count();
    if len <= MAX { label.to_owned() } else { format!("…{}", label.chars().skip(len - MAX + 1).collect::<String>()) }
}

/// Text for HTML and for attributes in double quotes.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            _ => escaped.push(character),
        }
    }
    escaped
}

/// The CSS class of the `n`-th target in the legend.
pub fn colour(n: usize) -> String {
    format!("t{}", n % TARGETS.len())
}
