//! The page: one HTML file without scripts, links or network access. The answer comes first, then the figures, then all
//! figures as a table, then what was run and where.

use super::answer::{self, Verdict};
use super::published::Published;
use super::{MergedRuns, drawing, figures};
use crate::measure::median_interval;
use crate::report::chart::escape;
use crate::report::numbers;
use crate::report::page::{begun_with, command_line, environment_rows};
use crate::run_file::{RunEntry, RunFile};
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// Statements of the answer; the table has the rest.
const STATEMENTS_MAX: usize = 40;
/// Rows of the table. A run of more has them all in its CSV file.
const ROWS_MAX: usize = 4_000;

/// The whole page.
pub fn render(runs: &MergedRuns, published: &[Published]) -> String {
    let mut page = begun_with(&format!("Varve report: {}", runs.title()), STYLE);
    let _ = writeln!(page, "<h1>{}</h1>", escape(runs.title()));
    said(runs, &mut page);
    warnings(runs, &mut page);
    targets(runs, &mut page);
    drawn(runs, &mut page);
    for published in published {
        published.section(runs, &mut page);
    }
    table(runs, &mut page);
    for (name, run) in &runs.runs {
        what_was_run(name, run, &mut page);
    }
    method(&mut page);
    let version = runs.runs.first().map_or("", |(_, run)| run.environment.varve_version.as_str());
    let _ = write!(page, "<footer>Varve {}</footer>\n</main>\n</body>\n</html>\n", escape(version));
    page
}

/// The answer in words.
fn said(runs: &MergedRuns, page: &mut String) {
    let statements = answer::statements(runs);
    if statements.is_empty() {
        page.push_str("<ul class=\"said\">\n");
        for text in answer::alone(runs).into_iter().take(STATEMENTS_MAX) {
            let _ = writeln!(page, "<li>{}</li>", escape(&text));
        }
        page.push_str("</ul>\n");
        return;
    }
    let _ = writeln!(page, "<p class=\"count\">{}</p>\n<ul class=\"said\">", escape(&counted(runs)));
    let order = [Verdict::Better, Verdict::Worse, Verdict::Noise, Verdict::TooFew];
    let sorted = order.into_iter().flat_map(|verdict| statements.iter().filter(move |said| said.verdict == verdict));
    for statement in sorted.take(STATEMENTS_MAX) {
        let _ = writeln!(page, "<li class=\"{}\">{}</li>", class(statement.verdict), escape(&statement.text));
    }
    page.push_str("</ul>\n");
}

/// One sentence for each target: how many comparisons went which way.
fn counted(runs: &MergedRuns) -> String {
    let Some((reference, others)) = runs.targets.split_first() else { return String::new() };
    let mut text = String::new();
    for target in others {
        let verdicts: Vec<Verdict> = answer::pairs(runs, &target.label, &reference.label)
            .into_iter()
            .filter_map(|(entry, other)| runs.compare(entry, other).map(|paired| paired.verdict))
            .collect();
        let count = |verdict| verdicts.iter().filter(|other| **other == verdict).count();
        let _ = write!(
            text,
            "{} beside {}: better in {} of {} comparisons, worse in {}, no difference beyond the noise in {}",
            target.label,
            reference.label,
            count(Verdict::Better),
            verdicts.len(),
            count(Verdict::Worse),
            count(Verdict::Noise)
        );
        let few = count(Verdict::TooFew);
        let few = if few == 0 { String::new() } else { format!(", too few turns to tell in {few}") };
        let _ = write!(text, "{few}. ");
    }
    text.trim_end().to_owned()
}

fn class(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Noise => "noise",
        Verdict::TooFew => "few",
    }
}

fn warnings(runs: &MergedRuns, page: &mut String) {
    let mut all = Vec::new();
    for (name, run) in &runs.runs {
        let failed = run.steps.iter().filter(|step| !step.failure.is_empty());
        let failed =
            failed.map(|step| format!("Step “{}” has no figures, or only a part: {}", step.name, step.failure));
        for warning in failed.chain(run.warnings.iter().cloned()) {
            let warning = if runs.runs.len() > 1 { format!("{name}: {warning}") } else { warning };
            if !all.contains(&warning) {
                all.push(warning);
            }
        }
    }
    if all.is_empty() {
        return;
    }
    page.push_str("<ul class=\"warnings\">\n");
    for warning in all {
        let _ = writeln!(page, "<li>{}</li>", escape(&warning));
    }
    page.push_str("</ul>\n");
}

fn targets(runs: &MergedRuns, page: &mut String) {
    page.push_str(
        "<h2>Targets</h2>\n<div class=\"table\"><table>\n<thead><tr><th class=\"name\">Name</th><th class=\"name\">Target</th>\
         <th class=\"name\">File system</th><th>Free space</th></tr></thead>\n<tbody>\n",
    );
    for target in &runs.targets {
        let free = target.free_bytes.map_or(String::new(), numbers::bytes);
        let _ = writeln!(
            page,
            "<tr><td class=\"name\">{}</td><td class=\"name wrap\"><code>{}</code></td><td class=\"name\">{}</td><td>{free}</td></tr>",
            escape(&target.label),
            escape(&target.via),
            escape(&target.filesystem)
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn drawn(runs: &MergedRuns, page: &mut String) {
    let figures = figures::choose(runs);
    if figures.is_empty() {
        return;
    }
    page.push_str("<h2>Figures</h2>\n<div class=\"cards wide\">\n");
    for figure in &figures {
        let _ = writeln!(
            page,
            "<section class=\"card figure\"><h3>{}</h3>{}<p class=\"soft wrap\">{}</p></section>",
            escape(&figure.title),
            drawing::inline(figure),
            escape(&figure.caption)
        );
    }
    page.push_str("</div>\n");
}

fn table(runs: &MergedRuns, page: &mut String) {
    let reference = runs.targets.first().map_or("", |target| target.label.as_str());
    let _ = write!(
        page,
        "<h2>All measurements</h2>\n<p class=\"soft\">The interval of the median has 95 % confidence or more; without one, the \
         range of all turns is in brackets. The ratio is to {}, oriented so that above 1 is better.</p>\n<div class=\"table\">\
         <table>\n<thead><tr><th class=\"name\">Measurement</th><th class=\"name\">Conditions</th><th class=\"name\">Target</th>\
         <th>Median</th><th>Interval</th><th>Turns</th><th>p50</th><th>p99</th><th>p99.9</th><th>Ratio</th>\
         <th class=\"name\">Marks</th></tr></thead>\n<tbody>\n",
        escape(reference)
    );
    let mut last = String::new();
    for entry in runs.entries.iter().take(ROWS_MAX) {
        let name = entry.name();
        let first = if name == last { "" } else { " class=\"first\"" };
        row(runs, entry, reference, first, page);
        last = name;
    }
    page.push_str("</tbody></table></div>\n");
    if runs.entries.len() > ROWS_MAX {
        let _ = writeln!(page, "<p class=\"soft\">The first {ROWS_MAX} of {}.</p>", runs.entries.len());
    }
}

fn row(runs: &MergedRuns, entry: &RunEntry, reference: &str, first: &str, page: &mut String) {
    let spread = entry.spread();
    let range = match median_interval(&entry.samples) {
        Some(interval) => format!("{} – {}", short(interval.low), short(interval.high)),
        None => format!("({} – {})", short(spread.min), short(spread.max)),
    };
    let latency = |of: fn(&crate::measure::Percentiles) -> f64| {
        entry.latency_us.as_ref().map_or(String::new(), |latency| numbers::latency(of(latency)))
    };
    let other = runs.entries.iter().find(|other| other.target == reference && other.is_like(entry));
    let paired = other.filter(|_| entry.target != reference).and_then(|other| runs.compare(entry, other));
    let (verdict, ratio) = paired.map_or(("", String::new()), |paired| {
        let interval = paired.interval.map_or(String::new(), |interval| {
            format!(" <small>{}–{}</small>", numbers::ratio(interval.low), numbers::ratio(interval.high))
        });
        (class(paired.verdict), format!("{}{interval}", numbers::ratio(paired.ratio)))
    });
    let tool = if entry.tool.is_empty() { String::new() } else { format!(" ({})", entry.tool) };
    let _ = writeln!(
        page,
        "<tr{first}><td class=\"name\">{}</td><td class=\"name wrap soft\">{}</td><td class=\"name\">{}</td>\
         <td class=\"main\">{}</td><td>{range}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td class=\"ratio {verdict}\">{ratio}</td><td class=\"name wrap\">{}</td></tr>",
        escape(&format!("{}{tool}", entry.name())),
        escape(&entry.conditions()),
        escape(&entry.target),
        escape(&answer::with_unit(spread.median, &entry.unit)),
        entry.samples.len(),
        latency(|latency| latency.p50),
        latency(|latency| latency.p99),
        latency(|latency| latency.p999),
        escape(&entry.marks.join(", "))
    );
}

/// Three digits, for values of any unit.
fn short(value: f64) -> String {
    if value.is_finite() { numbers::with_commas(value) } else { String::from("–") }
}

fn what_was_run(name: &str, run: &RunFile, page: &mut String) {
    let _ = writeln!(page, "<h2>What was run: {}</h2>", escape(name));
    if !run.arguments.is_empty() {
        let _ = writeln!(page, "<pre><code>{}</code></pre>", escape(&command_line(&run.arguments)));
    }
    if !run.steps.is_empty() {
        page.push_str("<div class=\"table\"><table>\n<tbody>\n");
        for step in &run.steps {
            let _ = writeln!(
                page,
                "<tr><td class=\"name wrap\">{}</td><td class=\"name wrap\"><code>{}</code></td><td>{:.1} s</td></tr>",
                escape(&step.name),
                escape(&command_line(&step.arguments)),
                step.duration_s
            );
        }
        page.push_str("</tbody></table></div>\n");
    }
    if run.environment.host.is_empty() {
        return;
    }
    page.push_str("<h3>Environment</h3>\n<div class=\"table\"><table>\n<tbody>\n");
    for (name, value) in environment_rows(&run.environment) {
        let (name, value) = (escape(&name), escape(&value));
        let _ = writeln!(page, "<tr><td class=\"name soft\">{name}</td><td class=\"name wrap\">{value}</td></tr>");
    }
    page.push_str("</tbody></table></div>\n");
}

fn method(page: &mut String) {
    page.push_str(
        "<h2>How to read this</h2>\n<p class=\"soft wrap\">Each workload measures all targets in turns, one after the other, so \
         that the samples of one turn form a pair. A difference is stated only if the interval of the median of the pairs' \
         ratios, by the sign test with 95 % confidence or more, excludes 1. That takes six turns or more. Marks are reasons to \
         read a figure with care: “page cache” means that the bytes may never have left memory, “partial” that the measurement \
         ended early.</p>\n",
    );
}
