//! Draws a figure as SVG with plotters: bars in groups, or lines. The axis of values is linear from 0, or logarithmic
//! if the values differ so much that the small ones could not be read.
//!
//! Series differ in colour and in the shape of their marks, so that a print in black and white can be read. plotters
//! writes colours as attributes; the page's style sheet replaces them by those of the mode.

use super::figures::{Figure, FigureAxis, FigureSeries};
use crate::report::chart::{GRID, INK, TARGETS, escape};
use crate::report::numbers;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const WIDTH: u32 = 560;
const HEIGHT: u32 = 330;
const LEFT: u32 = 64;
const RIGHT: u32 = 16;
const BOTTOM: u32 = 40;
const LEGEND_ROW: u32 = 18;
const FONT: f64 = 12.0;
/// The mean width of a character, for the layout of the legend.
const CHAR_WIDTH: u32 = 7;
/// Longer names are shortened.
const NAME_CHARS_MAX: usize = 44;
/// Values that differ by more than this factor get a logarithmic axis.
const LINEAR_RATIO_MAX: f64 = 40.0;
/// The smallest and largest value that is drawn: a run file may hold any number.
const VALUE_MIN: f64 = 1e-6;
const VALUE_MAX: f64 = 1e15;
/// Bars beyond this number have no figures above them.
const FIGURES_ABOVE_MAX: usize = 24;

type Plot<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
type Drawn = Result<(), DrawingAreaErrorKind<std::io::Error>>;

/// The figure for the page: inline SVG that takes its colours and width from the style sheet.
pub fn inline(figure: &Figure) -> String {
    let svg = draw(figure);
    // The page is HTML, where an inline SVG has no name space.
    let body = svg.find('>').map_or("", |end| &svg[end + 1..]);
    let height = height(figure);
    let label = escape(&format!("{} in {}", figure.title, figure.unit));
    format!("<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{label}\">{body}")
}

fn draw(figure: &Figure) -> String {
    let mut svg = String::new();
    draw_into(&mut svg, figure).expect("drawing into a string cannot fail");
    svg
}

fn height(figure: &Figure) -> u32 {
    HEIGHT + legend(figure).last().map_or(0, |last| last.row + 1) * LEGEND_ROW
}

fn draw_into(svg: &mut String, figure: &Figure) -> Drawn {
    let legend = legend(figure);
    let rows = legend.last().map_or(0, |last| last.row + 1);
    let root = SVGBackend::with_string(svg, (WIDTH, height(figure))).into_drawing_area();
    let text = |anchor| ("sans-serif", FONT).into_text_style(&root).color(&INK).pos(Pos::new(anchor, VPos::Center));
    for entry in &legend {
        let y = (entry.row * LEGEND_ROW + LEGEND_ROW / 2) as i32;
        mark_at_pixel(&root, (entry.x as i32 + 6, y), entry.place, colour(&figure.series[entry.place]))?;
        root.draw(&Text::new(entry.name.clone(), (entry.x as i32 + 16, y), text(HPos::Left)))?;
    }
    let top = rows * LEGEND_ROW;
    let unit_at = (6, top as i32 + 9);
    let better = if figure.higher_is_better { "higher is better" } else { "lower is better" };
    root.draw(&Text::new(format!("{} ({better})", figure.unit), unit_at, text(HPos::Left)))?;
    let scale = ValueScale::of(figure);
    let across = across(figure);
    let mut plot = ChartBuilder::on(&root)
        .margin_top(top + 22)
        .margin_right(RIGHT)
        .margin_left(LEFT)
        .margin_bottom(BOTTOM)
        .build_cartesian_2d(across.0..across.1, scale.low..scale.high)?;
    grid(&mut plot, figure, &scale, across, &text)?;
    match &figure.axis {
        FigureAxis::Groups(groups) => bars(&mut plot, figure, &scale, groups.len(), &text)?,
        _ => lines(&mut plot, figure, &scale)?,
    }
    root.present()
}

/// The ends of the horizontal axis.
fn across(figure: &Figure) -> (f64, f64) {
    match &figure.axis {
        FigureAxis::Groups(names) => (-0.5, names.len().max(1) as f64 - 0.5),
        FigureAxis::Steps { names, .. } => (-0.3, names.len().max(1) as f64 - 0.7),
        FigureAxis::Seconds => {
            let points = figure.series.iter().flat_map(|series| &series.points);
            let last = points.map(|point| clamped(point.x)).fold(VALUE_MIN, f64::max);
            (0.0, last * 1.02)
        }
    }
}

fn clamped(value: f64) -> f64 {
    if value.is_finite() { value.clamp(0.0, VALUE_MAX) } else { 0.0 }
}

/// The vertical axis. Coordinates are the values themselves, or their logarithms.
struct ValueScale {
    logarithmic: bool,
    low: f64,
    high: f64,
    /// Coordinate and text.
    ticks: Vec<(f64, String)>,
}

impl ValueScale {
    fn of(figure: &Figure) -> ValueScale {
        let points = figure.series.iter().flat_map(|series| &series.points);
        let ends = points.flat_map(|point| [point.low, point.middle, point.high]).map(clamped);
        let values: Vec<f64> = ends.filter(|value| *value > 0.0).map(|value| value.max(VALUE_MIN)).collect();
        let high = values.iter().copied().fold(0.0, f64::max);
        let low = values.iter().copied().fold(f64::MAX, f64::min);
        if values.is_empty() {
            return ValueScale::linear(1.0, &figure.unit);
        }
        // A timeline comes to 0 at its end, which is no reason to hide its shape.
        if high / low <= LINEAR_RATIO_MAX || figure.axis == FigureAxis::Seconds {
            ValueScale::linear(high * 1.1, &figure.unit)
        } else {
            ValueScale::logarithmic(low, high, &figure.unit)
        }
    }

    fn linear(high: f64, unit: &str) -> ValueScale {
        let rough = high / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|of| of * power).find(|step| *step >= rough).unwrap_or(rough);
        let count = (high / step).floor() as u32;
        let ticks = (0..=count).map(|n| (f64::from(n) * step, tick(f64::from(n) * step, unit))).collect();
        ValueScale { logarithmic: false, low: 0.0, high, ticks }
    }

    fn logarithmic(low: f64, high: f64, unit: &str) -> ValueScale {
        // The shortest bar keeps a visible length.
        let (low, high) = ((low / 2.0).log10().floor(), (high * 1.3).log10());
        let decades = low as i32..=high.floor() as i32;
        let ticks = decades.map(|power| (f64::from(power), tick(10_f64.powi(power), unit))).collect();
        ValueScale { logarithmic: true, low, high, ticks }
    }

    fn at(&self, value: f64) -> f64 {
        let value = clamped(value);
        let at = if self.logarithmic { value.max(VALUE_MIN).log10() } else { value };
        at.clamp(self.low, self.high)
    }
}

/// The text of a value: seconds as times, others with k, M or G.
fn tick(value: f64, unit: &str) -> String {
    let text = match unit {
        "s" => numbers::latency(value * 1e6),
        "ms" => numbers::latency(value * 1e3),
        _ => numbers::short(value),
    };
    match text.split_once(' ') {
        _ if value == 0.0 => "0".to_owned(),
        Some((number, unit)) if number.contains('.') => {
            format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
        }
        None if text.contains('.') => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        _ => text,
    }
}

type StyleOf<'f> = dyn Fn(HPos) -> TextStyle<'f> + 'f;

fn grid(plot: &mut Plot, figure: &Figure, scale: &ValueScale, across: (f64, f64), text: &StyleOf) -> Drawn {
    for (at, name) in &scale.ticks {
        plot.draw_series([PathElement::new([(across.0, *at), (across.1, *at)], GRID.stroke_width(1))])?;
        let end = EmptyElement::at((across.0, *at));
        plot.draw_series([end + Text::new(name.clone(), (-8, 0), text(HPos::Right))])?;
    }
    let below = |x: f64| EmptyElement::at((x, scale.low));
    let label = match &figure.axis {
        FigureAxis::Groups(names) => {
            step_names(plot, names, scale, text)?;
            String::new()
        }
        FigureAxis::Steps { label, names } => {
            step_names(plot, names, scale, text)?;
            label.clone()
        }
        FigureAxis::Seconds => {
            for part in 0..=4 {
                let x = across.1 / 1.02 * f64::from(part) / 4.0;
                let name = format!("{} s", numbers::with_commas(x));
                plot.draw_series([below(x) + Text::new(name, (0, 12), text(HPos::Center))])?;
            }
            "time".to_owned()
        }
    };
    let middle = (across.0 + across.1) / 2.0;
    plot.draw_series([below(middle) + Text::new(label, (0, 30), text(HPos::Center))])?;
    Ok(())
}

fn step_names(plot: &mut Plot, names: &[String], scale: &ValueScale, text: &StyleOf) -> Drawn {
    // Names that would overlap are shortened, and some of many are left out.
    let width = (WIDTH - LEFT - RIGHT) / (names.len().max(1) as u32);
    let every = (CHAR_WIDTH * 3).div_ceil(width.max(1)).max(1) as usize;
    let chars = ((width * every as u32) / CHAR_WIDTH).max(3) as usize;
    for (at, name) in names.iter().enumerate().step_by(every) {
        let end = EmptyElement::at((at as f64, scale.low));
        plot.draw_series([end + Text::new(shortened(name, chars), (0, 12), text(HPos::Center))])?;
    }
    Ok(())
}

fn bars(plot: &mut Plot, figure: &Figure, scale: &ValueScale, groups: usize, text: &StyleOf) -> Drawn {
    let count = figure.series.len().max(1);
    let width = 0.8 / count as f64;
    let is_labelled = groups * count <= FIGURES_ABOVE_MAX;
    for (place, series) in figure.series.iter().enumerate() {
        let colour = colour(series);
        for point in &series.points {
            let left = point.x - 0.4 + width * place as f64;
            let (low, middle, high) = (scale.at(point.low), scale.at(point.middle), scale.at(point.high));
            let corners = [(left + width * 0.06, scale.low), (left + width * 0.94, middle)];
            plot.draw_series([Rectangle::new(corners, colour.filled())])?;
            let centre = left + width / 2.0;
            plot.draw_series([PathElement::new([(centre, low), (centre, high)], INK.stroke_width(1))])?;
            if is_labelled {
                let above = EmptyElement::at((centre, high));
                let figure = tick(point.middle, &figure.unit).replace(' ', "\u{202f}");
                plot.draw_series([above + Text::new(figure, (0, -8), text(HPos::Center))])?;
            }
        }
    }
    Ok(())
}

fn lines(plot: &mut Plot, figure: &Figure, scale: &ValueScale) -> Drawn {
    let has_marks = figure.axis != FigureAxis::Seconds;
    for (place, series) in figure.series.iter().enumerate() {
        let colour = colour(series);
        let points: Vec<(f64, f64)> =
            series.points.iter().map(|point| (clamped(point.x), scale.at(point.middle))).collect();
        plot.draw_series([PathElement::new(points.clone(), colour.stroke_width(2))])?;
        if !has_marks {
            continue;
        }
        for point in &series.points {
            let ends = [(point.x, scale.at(point.low)), (point.x, scale.at(point.high))];
            plot.draw_series([PathElement::new(ends, colour.stroke_width(1))])?;
        }
        for at in points {
            let pixel = plot.backend_coord(&at);
            mark_at_pixel(plot.plotting_area(), pixel, place, colour)?;
        }
    }
    Ok(())
}

/// A mark whose shape depends on the place of the series: disc, square, triangle, cross.
fn mark_at_pixel<C: CoordTranslate>(
    area: &DrawingArea<SVGBackend, C>,
    at: (i32, i32),
    place: usize,
    colour: RGBColor,
) -> Drawn {
    let area = area.strip_coord_spec();
    let (left, top) = area.get_base_pixel();
    let (x, y) = (at.0 - left, at.1 - top);
    match place % 4 {
        0 => area.draw(&Circle::new((x, y), 4, colour.filled())),
        1 => area.draw(&Rectangle::new([(x - 4, y - 4), (x + 4, y + 4)], colour.filled())),
        2 => area.draw(&TriangleMarker::new((x, y), 5, colour.filled())),
        _ => area.draw(&Cross::new((x, y), 4, colour.stroke_width(2))),
    }
}

fn colour(series: &FigureSeries) -> RGBColor {
    TARGETS[series.colour % TARGETS.len()]
}

/// A name of the legend and its place in it.
struct LegendName {
    name: String,
    /// The place of the series.
    place: usize,
    x: u32,
    row: u32,
}

fn legend(figure: &Figure) -> Vec<LegendName> {
    let (mut x, mut row) = (10, 0);
    let mut names = Vec::new();
    for (place, series) in figure.series.iter().enumerate() {
        let name = shortened(&series.name, NAME_CHARS_MAX);
        let width = 30 + name.chars().count() as u32 * CHAR_WIDTH;
        if x > 10 && x + width > WIDTH {
            (x, row) = (10, row + 1);
        }
        names.push(LegendName { name, place, x, row });
        x += width;
    }
    names
}

/// Keeps the end, which distinguishes names better than the beginning.
fn shortened(name: &str, chars_max: usize) -> String {
    let len = name.chars().count();
    if len <= chars_max {
        return name.to_owned();
    }
    format!("…{}", name.chars().skip(len + 1 - chars_max).collect::<String>())
}
