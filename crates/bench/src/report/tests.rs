//! Promises of the report: the JSON's form (issue HOUSE), a complete and self-contained page, mdtest's summary, and
//! regressions by name.

use super::*;
use crate::ceilings::{NULL_FUSE, STORE_FSYNC};
use crate::measure::Latencies;
use crate::target::Via;
use crate::workloads::mdtest::{CeilingSeries, ContenderRole, MdtestConfig, MdtestMeasurement, Phase, PhaseSeries};
use serde_json::Value;
use std::time::Duration;

fn series(clients: usize, phase: Phase, per_second: &[f64]) -> PhaseSeries {
    let mut latencies = Latencies::default();
    (1..=1000).for_each(|i| latencies.record(Duration::from_micros(i)));
    PhaseSeries { clients, phase, per_second: per_second.to_vec(), shortest_s: 1.0, latencies }
}

/// A run with all kinds of targets and ceilings and with fixed figures.
fn sample(repeat: u32, factor: f64) -> BenchReport {
    let config = MdtestConfig {
        via: vec![Via::Library("/stores/v".into()), Via::Mount("/mnt/v".into()), Via::Path("/mnt/<x>&y".into())],
        files: 100_000,
        clients: vec![8],
        repeat,
        arguments: ["varve", "bench", "mdtest", "--via", "path:/mnt/<x>&y", "it's"].map(str::to_owned).to_vec(),
        ..MdtestConfig::default()
    };
    let scaled = |base: f64| (0..repeat).map(|i| base * (1.0 + 0.01 * f64::from(i))).collect::<Vec<f64>>();
    let phases =
        |base: f64| [Phase::Create, Phase::Stat, Phase::Delete].map(|phase| series(8, phase, &scaled(base))).into();
    let contenders = vec![
        (ContenderRole::Target(config.via[0].clone()), phases(60_000.0 * factor)),
        (ContenderRole::Target(config.via[1].clone()), phases(15_000.0)),
        (ContenderRole::Target(config.via[2].clone()), phases(50_000.0)),
        (ContenderRole::Ceiling(NULL_FUSE), phases(20_000.0)),
    ];
    let plain = |name, clients, base| CeilingSeries { name, clients, per_second: scaled(base) };
    let ceilings = vec![
        plain("request-reply/workers-spinning", 8, 90_000.0),
        plain("request-reply/threads-blocking", 8, 150_000.0),
        plain(STORE_FSYNC, 1, 5_000.0),
    ];
    of_mdtest(&config, Environment::default(), MdtestMeasurement { contenders, ceilings })
}

#[test]
fn json_matches_documented_schema() {
    let json: Value = serde_json::from_str(&sample(3, 1.0).to_json().unwrap()).unwrap();
    assert_eq!(json["schema_version"], 1);
    assert_eq!(json["command"], "bench mdtest");
    let first = &json["results"][0];
    assert_eq!((&first["via"], &first["phase"]), (&"library".into(), &"create".into()));
    assert_eq!((&first["clients"], &first["files"]), (&8.into(), &100_000.into()));
    assert_eq!(first["ops_per_s"]["median"], 60_600.0);
    assert_eq!(first["ops_per_s"]["min"], 60_000.0);
    assert_eq!(first["ops_per_s"]["max"], 61_200.0);
    for (name, value) in [("p50", 500.0), ("p99", 990.0), ("p999", 999.0)] {
        let got = first["latency_us"][name].as_f64().unwrap();
        assert!((got - value).abs() <= value * 1e-3, "{name}: {got}");
    }
    let ceilings = json["ceilings"].as_array().unwrap();
    let of = |name: &str| ceilings.iter().find(|ceiling| ceiling["name"] == name).unwrap();
    assert_eq!(of("request-reply")["ops_per_s"], 151_500.0);
    assert_eq!(of("request-reply")["clients"], 8);
    assert!(of("request-reply").get("phase").is_none());
    assert_eq!((&of("null-fuse")["phase"], &of("null-fuse")["ops_per_s"]), (&"create".into(), &20_200.0.into()));
}

#[test]
fn report_round_trips_json_and_old_reports_parse() {
    let report = sample(12, 1.0);
    assert_eq!(BenchReport::from_json(&report.to_json().unwrap()).unwrap(), report);
    let bare = r#"{"schema_version":1,"command":"bench mdtest","results":[{"via":"library","phase":"create","clients":8,
        "files":100000,"ops_per_s":{"median":1.5,"min":1,"max":2},"latency_us":{"p50":1,"p99":2,"p999":3}}],
        "ceilings":[{"name":"request-reply","clients":8,"ops_per_s":3}],"from_the_future":true}"#;
    let bare = BenchReport::from_json(bare).unwrap();
    assert_eq!(bare.results[0].ops_per_s.median, 1.5);
    assert!(bare.to_html().contains("</html>") && bare.to_text().contains("File creation"));
    assert!(matches!(BenchReport::from_json("{"), Err(crate::Error::Report(_))));
}

#[test]
fn ratios_are_to_the_plain_directory_and_to_the_ceilings_above() {
    let report = sample(10, 1.0);
    let create: Vec<(&str, &str, f64)> = report
        .ratios
        .iter()
        .filter(|ratio| ratio.phase == "create")
        .map(|ratio| (ratio.via.as_str(), ratio.to.as_str(), ratio.median))
        .collect();
    let wanted = [
        ("library", "path", 1.2),
        ("library", "request-reply", 0.4),
        ("mount", "path", 0.3),
        ("mount", "null-fuse", 0.75),
    ];
    assert_eq!(create, wanted);
    let interval = report.ratios[0].interval.unwrap();
    assert!((interval.low, interval.high) == (1.2, 1.2) && interval.confidence > 0.95);
    assert!(sample(9, 1.0).ratios.iter().all(|ratio| ratio.interval.is_none()));
}

#[test]
fn regressions_are_reported_by_name() {
    let recorded = sample(3, 1.0);
    let unchanged = compare(&sample(3, 0.91), &recorded);
    assert_eq!((unchanged.fallen, unchanged.common), (vec![], recorded.ratios.len()));
    let fallen = compare(&sample(3, 0.8), &recorded).fallen;
    assert_eq!(fallen.len(), 6, "three phases of the library, to path and to request-reply");
    assert_eq!(fallen[1].name, "library create, 8 clients, to request-reply");
    assert_eq!(fallen[1].to_string(), "library create, 8 clients, to request-reply: 0.320 was 0.400 (20% less)");
    assert_eq!(compare(&recorded, &sample(3, 0.8)).fallen, [], "faster is no regression");
}

/// A ratio that cannot be compared is not counted as one that did not fall.
#[test]
fn compare_lists_uncompared_results() {
    let (now, mut recorded) = (sample(3, 1.0), sample(3, 1.0));
    assert!(now.other_settings(&recorded).is_empty());
    recorded.settings.insert("files".into(), 7.into());
    recorded.settings.insert("repeat".into(), 99.into());
    let mut now = now;
    now.settings.insert("files".into(), 8.into());
    now.settings.insert("repeat".into(), 3.into());
    assert_eq!(now.other_settings(&recorded), ["files"]);
    recorded.ratios.clear();
    assert_eq!(compare(&now, &recorded).common, 0);

    let reports = [("served".to_owned(), sample(3, 1.0))];
    let ratios = Ratios::of(&reports).unwrap();
    let mut before = ratios.ratios.clone();
    before.insert("served: mount create, 2 clients, to path".into(), 1.0);
    before.insert("stream: mount write, 1 client, to path".into(), 1.0);
    assert_eq!(ratios.lost(&reports, &before), ["served: mount create, 2 clients, to path"]);
    let twice = [reports[0].clone(), reports[0].clone()];
    assert!(Ratios::of(&twice).is_err_and(|error| error.to_string().contains("the same name")));
}

#[test]
fn close_ratios_of_few_pairs_are_warned_about() {
    let said = |report: &BenchReport| {
        report.warnings.iter().any(|warning| warning.contains("of even with fewer than 10 pairs"))
    };
    assert!(said(&sample(3, 0.9)) && !said(&sample(10, 0.9)) && !said(&sample(3, 4.0)));
}

#[test]
fn text_shows_mdtest_summary_side_by_side() {
    let text = sample(3, 1.0).to_text();
    assert!(text.contains("SUMMARY rate in operations/s: (of 3 iterations), 8 clients"), "{text}");
    let creation = text.lines().position(|line| line.contains("File creation")).unwrap();
    let words = |offset: usize| text.lines().nth(creation + offset).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(0)[2..5], ["library", "61200.000", "60000.000"]);
    assert_eq!(words(0)[words(0).len() - 2..], ["1.20", "0.40"]);
    assert_eq!((words(1)[0], words(2)[0], words(3)[0]), ("mount", "path", "null-fuse"));
    assert!(text.lines().all(|line| line.trim_end() == line));
}

#[test]
fn page_is_self_contained() {
    let page = sample(12, 1.0).to_html();
    well_formed(&page);
    for forbidden in ["http://", "https://", "//cdn", "src=", "href=", "<script", "@import", "url(", "NaN", "inf"] {
        assert!(!page.contains(forbidden), "{forbidden} in the page");
    }
    assert_eq!(page.matches("<svg viewBox=\"0 0 420").count(), 6, "rates and latencies of three phases");
    assert!(page.contains("&lt;x&gt;&amp;y") && !page.contains("<x>"));
    assert!(page.contains("'it'\\''s'"), "the command line can be typed again");
    assert!(page.contains("name=\"viewport\""), "a small screen shows it in its own width");
    well_formed(&BenchReport { results: Vec::new(), ..sample(1, 1.0) }.to_html());
}

#[test]
fn page_shows_answer_then_plots_then_details() {
    let page = sample(3, 1.0).to_html();
    let places = ["1.2 times as fast", "<h2>Rates", "<h2>Latencies", "<h2>Details", "<h2>Figures", "<h2>Environment"];
    let places = places.map(|text| page.find(text).unwrap_or_else(|| panic!("{text} is missing")));
    assert!(places.is_sorted(), "{places:?}");
}

#[test]
fn small_and_large_bars_are_both_legible() {
    let mut report = sample(3, 1.0);
    report.results[0].ops_per_s = crate::measure::Spread::of(&[2_000_000.0]).unwrap();
    let widths: Vec<f64> = chart::rates(&report, "create")
        .lines()
        .filter(|line| line.starts_with("<rect") && !line.contains("fill=\"none\""))
        .map(|line| line.split("width=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
        .collect();
    assert!(widths.len() == 3 && widths.iter().all(|width| *width >= 10.0), "{widths:?}");
}

#[test]
fn charts_accept_any_number_in_a_saved_report() {
    for value in [0.0, -1.0, 1e-300, f64::MAX, f64::INFINITY, f64::NAN] {
        let mut report = sample(1, 1.0);
        let rate = &mut report.results[0].ops_per_s;
        (rate.min, rate.median, rate.max) = (value, value, value);
        report.results[0].latency_us.p999 = value;
        well_formed(&report.to_html());
    }
}

#[test]
fn brief_text_answers_in_eighty_columns() {
    let text = sample(3, 1.0).to_brief_text();
    assert!(text.starts_with("Operations a second with 8 clients, compared with the plain directory\n"), "{text}");
    assert!(text.contains("create  50,500     60,600 (1.2 times as fast)  15,200 (3.3 times slower)"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let mut nothing = sample(1, 1.0);
    nothing.results.clear();
    assert_eq!(nothing.to_brief_text(), "");
}

/// Checks that every tag is closed in order and every attribute is quoted, as an XML parser requires.
pub(crate) fn well_formed(page: &str) {
    let mut open = Vec::new();
    let mut rest = page.strip_prefix("<!DOCTYPE html>").unwrap();
    while let Some(start) = rest.find('<') {
        assert!(!rest[..start].contains('>'), "stray '>' in {:?}", &rest[..start]);
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        assert!(!tag.contains('<') && tag.matches('"').count().is_multiple_of(2), "{tag:?}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "</{name}>");
        } else if !tag.ends_with('/') {
            open.push(tag.split_whitespace().next().unwrap());
        }
    }
    assert!(open.is_empty(), "never closed: {open:?}");
}

#[test]
fn numbers_are_rounded_for_display() {
    for (value, text) in [(0.0, "0"), (7.0, "7.00"), (999.6, "1.00 k"), (45_312.0, "45.3 k"), (1_105_000.0, "1.10 M")] {
        assert_eq!(numbers::short(value), text);
    }
    assert_eq!(numbers::grouped(1_234_567.8), "1\u{202f}234\u{202f}568");
    assert_eq!((numbers::latency(12.34), numbers::latency(1500.0)), ("12.3 µs".into(), "1.50 ms".into()));
    assert_eq!((numbers::bytes(3901), numbers::bytes(1 << 30)), ("3.81 KiB".into(), "1.00 GiB".into()));
}

/// Promise: the ratios of several runs are recorded by name and machine, and a ratio that fell by more than a tenth is
/// reported. Without recorded ratios of the machine, the comparison names the machine it uses instead.
#[test]
fn ratios_of_several_runs_are_recorded_and_compared() {
    let on = |machine: &str, factor| {
        let named = |name: &str, factor| {
            let mut report = sample(3, factor);
            (report.environment.cpus, report.environment.cpu_model) = (2, machine.to_owned());
            (name.to_owned(), report)
        };
        vec![named("served", 1.0), named("embedded", factor)]
    };
    let ratios = |machine, factor| Ratios::of(&on(machine, factor)).unwrap();
    let mut recorded = Recorded::default();
    assert_eq!(recorded.of("2 × A"), None);
    [("B", 2.0), ("A", 9.0), ("A", 1.0)]
        .iter()
        .for_each(|(machine, factor)| recorded.record(&ratios(machine, *factor)));
    let recorded: Recorded = serde_json::from_str(&serde_json::to_string(&recorded).unwrap()).unwrap();
    let of = |machine| recorded.of(machine).unwrap().0;
    assert_eq!((of("2 × A"), of("2 × B"), of("2 × C")), ("2 × A", "2 × B", "2 × A"));
    let fallen = |machine, factor| {
        let now = ratios(machine, factor);
        let compared = now.beside(recorded.of(&now.machine).unwrap().1).into_iter();
        compared.filter(|ratio| ratio.fell).map(|ratio| ratio.name).collect::<Vec<_>>()
    };
    assert_eq!((fallen("A", 0.95), fallen("B", 1.9)), (Vec::new(), Vec::new()));
    for fallen in [fallen("A", 0.8), fallen("B", 1.0)] {
        assert!(fallen.contains(&"embedded: library create, 8 clients, to path".to_owned()));
        assert!(fallen.iter().all(|name| name.starts_with("embedded: library ")), "{fallen:?}");
    }
    let mut mixed = [on("A", 1.0), on("B", 1.0)].concat();
    mixed.iter_mut().enumerate().for_each(|(number, (name, _))| *name += &number.to_string());
    let mixed = Ratios::of(&mixed).unwrap_err().to_string();
    assert!(mixed.contains("2 × A, 2 × B"), "{mixed}");
    let page = render_all(&on("A", 1.0), "ratio <1>");
    assert!(page.contains("ratio &lt;1&gt;") && page.contains("<h1>embedded</h1>") && page.ends_with("</html>\n"));
}
