//! The page: one self-contained HTML file without network access or scripts.

use super::answer::Answer;
use super::chart::{self, colour, escape};
use super::{BenchReport, CeilingResult, PhaseResult, numbers, text};
use crate::environment::Environment;
use crate::workloads::mdtest::Phase;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

pub fn render(report: &BenchReport) -> String {
    let mut page = begun(&format!("Varve {}", report.command));
    section(report, &mut page);
    ended(report, &mut page);
    page
}

/// Several reports on one page, each under its name, after the ratios of all of them.
pub fn render_all(reports: &[(String, BenchReport)], ratios: &str) -> String {
    let mut page = begun("Varve bench");
    let _ = writeln!(page, "<h1>Ratios</h1>\n<pre><code>{}</code></pre>", escape(ratios));
    for (name, report) in reports {
        let _ = writeln!(page, "<h1>{}</h1>", escape(name));
        section(report, &mut page);
    }
    if let Some((_, last)) = reports.last() {
        ended(last, &mut page);
    }
    page
}

fn begun(title: &str) -> String {
    begun_with(title, "")
}

/// The head of a page, with rules after those that all pages share.
pub fn begun_with(title: &str, style: &str) -> String {
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>{}</title>\n\
         <style>\n{STYLE}{style}</style>\n</head>\n<body>\n<main>\n",
        escape(title)
    )
}

/// The answer, then the plots, then the details.
fn section(report: &BenchReport, page: &mut String) {
    answer(report, page);
    machine(report, page);
    legend(report, page);
    rates(report, page);
    latencies(report, page);
    details(report, page);
    table(report, page);
    ceilings(report, page);
    method(report, page);
    environment(report, page);
}

fn ended(report: &BenchReport, page: &mut String) {
    let _ = write!(
        page,
        "<footer>Varve {}, report format {}</footer>\n</main>\n</body>\n</html>\n",
        escape(&report.environment.varve_version),
        report.schema_version
    );
}

fn machine(report: &BenchReport, page: &mut String) {
    let environment = &report.environment;
    let _ = writeln!(
        page,
        "<p class=\"soft\">{} · {} · {} of memory · {}</p>",
        escape(&environment.date.replace('T', " ").replace('Z', " UTC")),
        escape(&environment.machine()),
        numbers::bytes(environment.memory_bytes),
        escape(&environment.kernel)
    );
}

/// Each operation's rate, and how many times as fast as the plain directory it is.
fn answer(report: &BenchReport, page: &mut String) {
    let _ = write!(
        page,
        "<h1>{}</h1>\n<p>{}.</p>\n",
        escape(&format!("varve {}", report.command)),
        escape(&text::workload(report))
    );
    let Some(answer) = Answer::of(report) else { return };
    let _ = write!(
        page,
        "<p>{}.</p>\n<div class=\"table answer\"><table>\n<thead><tr><th class=\"name\">Operation</th>",
        escape(&answer.title(report))
    );
    for way in &answer.ways {
        let _ = write!(page, "<th>{}</th>", escape(way));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for row in &answer.rows {
        let _ = write!(page, "<tr class=\"first\"><td class=\"name\">{}</td>", escape(&capital(row.operation)));
        for cell in &row.cells {
            let ratio = cell.ratio.map_or(String::new(), |ratio| {
                format!("<br/><span class=\"soft\">{}</span>", escape(&numbers::times_as_fast(ratio)))
            });
            let _ = write!(page, "<td><b>{}</b>{ratio}</td>", numbers::with_commas(cell.rate));
        }
        page.push_str("</tr>\n");
    }
    page.push_str("</tbody></table></div>\n");
}

fn details(report: &BenchReport, page: &mut String) {
    page.push_str("<h2>Details</h2>\n");
    if !report.arguments.is_empty() {
        let _ = writeln!(page, "<pre><code>{}</code></pre>", escape(&command_line(&report.arguments)));
    }
    if !report.warnings.is_empty() {
        page.push_str("<ul class=\"warnings\">\n");
        for warning in &report.warnings {
            let _ = writeln!(page, "<li>{}</li>", escape(warning));
        }
        page.push_str("</ul>\n");
    }
}

/// The command line in a form that can be typed again.
pub fn command_line(arguments: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@%".contains(c);
    let quoted = |argument: &String| {
        if !argument.is_empty() && argument.chars().all(plain) {
            argument.clone()
        } else {
            format!("'{}'", argument.replace('\'', "'\\''"))
        }
    };
    arguments.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn legend(report: &BenchReport, page: &mut String) {
    page.push_str("<ul class=\"legend\">\n");
    for (n, (via, place)) in report.targets().into_iter().enumerate() {
        let _ = writeln!(
            page,
            "<li><svg viewBox=\"0 0 18 12\"><rect class=\"{}\" width=\"18\" height=\"12\" rx=\"2\"/></svg>\
             <span>{via} <code class=\"soft\">{}</code></span></li>",
            colour(n),
            escape(place)
        );
    }
    let is_shown =
        |ceiling: &CeilingResult| report.results.iter().any(|result| ceiling.bounds(&result.via, &result.target));
    if report.ceilings.iter().any(is_shown) {
        page.push_str(
            "<li><svg viewBox=\"0 0 18 12\"><rect class=\"ceiling\" x=\"8\" width=\"2\" height=\"12\"/></svg>\
             <span>ceiling</span></li>\n",
        );
    }
    page.push_str("</ul>\n");
}

fn rates(report: &BenchReport, page: &mut String) {
    let _ = write!(
        page,
        "<h2>Rates</h2>\n<p class=\"soft\">{} on a logarithmic axis. A bar is the median of the turns; the thin line \
         across its end goes from the slowest turn to the fastest. A red line is a ceiling of that target.</p>\n{}",
        capital(report.unit()),
        cards(report)
    );
    for phase in report.phases() {
        let title = escape(&capital(Phase::title(phase)));
        let _ = writeln!(page, "<section class=\"card\"><h3>{title}</h3>{}</section>", chart::rates(report, phase));
    }
    page.push_str("</div>\n");
}

fn latencies(report: &BenchReport, page: &mut String) {
    page.push_str(
        "<h2>Latencies</h2>\n<p class=\"soft\">Of single operations, all turns together, on a logarithmic axis. The large dot \
         and the figure are the median, the small dot is the 99th percentile, the end of the line the 99.9th.</p>\n",
    );
    page.push_str(cards(report));
    for phase in report.phases() {
        let title = escape(&capital(Phase::title(phase)));
        let _ = writeln!(page, "<section class=\"card\"><h3>{title}</h3>{}</section>", chart::latencies(report, phase));
    }
    page.push_str("</div>\n");
}

/// Three columns if the page is wide enough; two and four phases are laid out in pairs.
fn cards(report: &BenchReport) -> &'static str {
    if report.phases().len().is_multiple_of(2) { "<div class=\"cards pairs\">\n" } else { "<div class=\"cards\">\n" }
}

fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}

fn table(report: &BenchReport, page: &mut String) {
    let references = report.references();
    let _ = write!(
        page,
        "<h2>Figures</h2>\n<p class=\"soft\">Rates in {}. A ratio is the median of the ratios of neighbours, with its \
         interval where there are ten pairs or more.</p>\n<div class=\"table\"><table>\n<thead><tr><th class=\"name\">\
         Operation</th><th>Clients</th><th class=\"name\">Via</th><th>Median</th><th>Min</th><th>Max</th><th>p50</th>\
         <th>p99</th><th>p99.9</th><th>Max</th>",
        report.unit()
    );
    for reference in &references {
        let _ = write!(page, "<th>/ {}</th>", escape(reference));
    }
    page.push_str("</tr></thead>\n<tbody>\n");
    for phase in report.phases() {
        for clients in report.clients() {
            let here = |result: &&PhaseResult| result.phase == phase && result.clients == clients;
            for (i, result) in report.results.iter().filter(here).enumerate() {
                row(report, result, &references, i == 0, page);
            }
            let here = |c: &&CeilingResult| c.phase.as_deref() == Some(phase) && c.clients == clients;
            for ceiling in report.ceilings.iter().filter(here) {
                limit(ceiling, references.len(), page);
            }
        }
    }
    page.push_str("</tbody></table></div>\n");
}

fn row(report: &BenchReport, result: &PhaseResult, references: &[&str], first: bool, page: &mut String) {
    let (rate, latency) = (result.rate(), &result.latency_us);
    let _ = write!(
        page,
        "<tr{}><td class=\"name\">{}</td><td>{}</td><td class=\"name\">{}</td><td class=\"main\">{}</td><td>{}</td><td>{}</td>\
         <td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
        if first { " class=\"first\"" } else { "" },
        if first { escape(Phase::title(&result.phase)) } else { String::new() },
        if first { result.clients.to_string() } else { String::new() },
        escape(&report.label(&result.via, &result.target)),
        numbers::grouped(rate.median),
        numbers::grouped(rate.min),
        numbers::grouped(rate.max),
        numbers::latency(latency.p50),
        numbers::latency(latency.p99),
        numbers::latency(latency.p999),
        numbers::latency(latency.max),
    );
    for reference in references {
        let cell = report.ratio(result, reference).map_or(String::new(), |ratio| {
            let interval = ratio.interval.map_or(String::new(), |interval| {
                format!(" <small>{}–{}</small>", numbers::ratio(interval.low), numbers::ratio(interval.high))
            });
            format!("{}{interval}", numbers::ratio(ratio.median))
        });
        let _ = write!(page, "<td>{cell}</td>");
    }
    page.push_str("</tr>\n");
}

fn limit(ceiling: &CeilingResult, references: usize, page: &mut String) {
    let latency = ceiling.latency_us.unwrap_or_default();
    let _ = writeln!(
        page,
        "<tr class=\"limit\"><td></td><td></td><td class=\"name\">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>\
         <td>{}</td><td>{}</td><td>{}</td>{}</tr>",
        escape(&ceiling.name),
        numbers::grouped(ceiling.ops_per_s),
        numbers::grouped(ceiling.min),
        numbers::grouped(ceiling.max),
        numbers::latency(latency.p50),
        numbers::latency(latency.p99),
        numbers::latency(latency.p999),
        numbers::latency(latency.max),
        "<td></td>".repeat(references)
    );
}

/// Ceilings without phases: the transport's variants, the store's fsyncs.
fn ceilings(report: &BenchReport, page: &mut String) {
    if report.ceilings.iter().all(|ceiling| ceiling.phase.is_some()) {
        return;
    }
    page.push_str(
        "<h2>Ceilings</h2>\n<p class=\"soft\">Measured in the same turns. The request-reply rate is the best of its variants: \
         frames as long as a create's and its answer's over Unix sockets, with nobody doing anything in between.</p>\n\
         <div class=\"table\"><table>\n<thead><tr><th class=\"name\">Ceiling</th><th>Clients</th><th>Median</th><th>Min</th>\
         <th>Max</th></tr></thead>\n<tbody>\n",
    );
    for ceiling in report.ceilings.iter().filter(|ceiling| ceiling.phase.is_none()) {
        let _ = writeln!(
            page,
            "<tr><td class=\"name\">{}</td><td>{}</td><td class=\"main\">{}</td><td>{}</td><td>{}</td></tr>",
            escape(&ceiling.name),
            ceiling.clients,
            numbers::grouped(ceiling.ops_per_s),
            numbers::grouped(ceiling.min),
            numbers::grouped(ceiling.max)
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn method(report: &BenchReport, page: &mut String) {
    let warmed = report.settings.get("warm_up").and_then(serde_json::Value::as_bool).unwrap_or(false);
    let workload = if report.command == "bench stream" {
        "Each client writes one file and fsyncs it, then all caches are dropped as far as possible, then each client reads its \
         file. A latency is that of one block."
    } else {
        "Each client creates its share of the files in order, then stats and deletes those of another client in random order; \
         a single client works on its own. Clients are threads with a connection of their own, which is open before the clock \
         starts. A latency goes from one operation's end to the next one's."
    };
    let warm_up = if warmed { " One turn with a tenth of the files came before the first that counts." } else { "" };
    let _ = write!(
        page,
        "<h2>Method</h2>\n<p class=\"soft\">A turn measures every target and every ceiling, one after the other; ratios are of \
         neighbours in one turn. {workload} A phase begins for all clients together; its rate is the number of operations over \
         the time from the first client's beginning to the last one's end.{warm_up}</p>\n"
    );
}

fn environment(report: &BenchReport, page: &mut String) {
    let mut rows = environment_rows(&report.environment);
    rows.extend(report.settings.iter().map(|(name, value)| (name.replace('_', " "), value.to_string())));
    page.push_str("<h2>Environment</h2>\n<div class=\"table\"><table>\n<tbody>\n");
    for (name, value) in rows {
        let (name, value) = (escape(&name), escape(&value));
        let _ = writeln!(page, "<tr><td class=\"name soft\">{name}</td><td class=\"name wrap\">{value}</td></tr>");
    }
    page.push_str("</tbody></table></div>\n");
}

/// The facts about the machine and its file systems: names and values.
pub fn environment_rows(environment: &Environment) -> Vec<(String, String)> {
    let mut rows = Vec::new();
    let mut line = |name: &str, value: String| rows.push((name.to_owned(), value));
    let build = if environment.debug_build { " (debug build)" } else { "" };
    line("Varve", format!("{}{build}", environment.varve_version));
    line("Begun", format!("{}, took {:.1} s", environment.date, environment.duration_s));
    line("Host", format!("{}, {}", environment.host, environment.kernel));
    line("Processors", environment.machine());
    line("Memory", numbers::bytes(environment.memory_bytes));
    let (load, stolen) = (environment.load_before * 100.0, environment.stolen * 100.0);
    line("Other load", format!("{load:.0}% of the processors just before, {stolen:.1}% stolen by the hypervisor"));
    for target in &environment.targets {
        let journal = match target.journal {
            Some(true) => ", with journal",
            Some(false) => ", without journal",
            None => "",
        };
        line(
            &format!("{}:{}", target.via, target.target),
            format!(
                "{}{journal} on {}, mounted at {} ({})",
                target.filesystem, target.source, target.mount_point, target.mount_options
            ),
        );
    }
    rows
}
