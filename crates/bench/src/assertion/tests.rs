//! Promises of assertions: the arithmetic, the choice of the figure, and clear errors.

use super::*;
use crate::run_file::{RUN_SCHEMA_VERSION, RunEntry, RunTarget};
use std::collections::BTreeMap;

fn run() -> RunFile {
    let entry = |target: &str, metric: &str, clients: u64, unit: &str, samples: &[f64]| RunEntry {
        workload: "mdtest".to_owned(),
        parameters: BTreeMap::from([("clients".to_owned(), clients.into())]),
        target: target.to_owned(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        higher_is_better: true,
        samples: samples.to_vec(),
        ..RunEntry::default()
    };
    let six = |base: f64| [0.0, 1.0, 2.0, 3.0, 4.0, 5.0].map(|n| base + n);
    let target = |label: &str| RunTarget { label: label.to_owned(), ..RunTarget::default() };
    RunFile {
        schema_version: RUN_SCHEMA_VERSION,
        targets: vec![target("native"), target("varve")],
        entries: vec![
            entry("native", "create", 1, "ops/s", &six(900.0)),
            entry("native", "create", 8, "ops/s", &six(1000.0)),
            entry("varve", "create", 8, "ops/s", &six(4000.0)),
            entry("varve", "create", 1, "ops/s", &six(700.0)),
            entry("varve", "write", 1, "MiB/s", &[10.0]),
            entry("varve", "ls-l", 1, "s", &[0.5]),
        ],
        ..RunFile::default()
    }
}

fn check(text: &str) -> Result<Vec<CheckedComparison>> {
    text.parse::<Assertion>()?.check(&run(), None)
}

#[test]
fn assertion_compares_medians_and_knows_when_it_is_certain() {
    let checked = check("create.ops > 3.5 * native.create.ops").unwrap();
    assert_eq!(checked[0].text, "create.ops > 3.5 * native.create.ops");
    assert_eq!((checked[0].left, checked[0].right), (4002.5, 3508.75));
    assert_eq!((checked[0].holds, checked[0].certain), (true, Some(true)));
    let close = &check("create.ops > 3.992 * native.create.ops").unwrap()[0];
    assert_eq!((close.holds, close.certain), (true, Some(false)));
    let few = &check("varve.write.mib >= 10 and (1 + 2) * 2 - -1 <= 7").unwrap();
    assert_eq!((few[0].holds, few[0].certain), (true, None));
    assert_eq!((few[1].left, few[1].right, few[1].holds), (7.0, 7.0, true));
    assert!(!check("varve.ls-l.s < 0.4").unwrap()[0].holds);
}

#[test]
fn conditions_and_targets_choose_the_figure() {
    let left = |text: &str| check(text).unwrap()[0].left;
    assert_eq!(left("varve.create[clients=1].ops > 0"), 702.5);
    assert_eq!(left("varve.mdtest:create.ops > 0"), 4002.5);
    assert_eq!(left("varve.create.min > 0"), 4000.0);
    assert_eq!(left("varve.create.ops / native.create.ops > 1"), 4002.5 / 1002.5);
    let of = "create.ops > 0".parse::<Assertion>().unwrap().check(&run(), Some("native")).unwrap();
    assert_eq!(of[0].left, 1002.5);
}

#[test]
fn errors_of_assertions_name_the_place_and_the_choices() {
    for (text, reason) in [
        ("", "found the end instead of a number or a figure"),
        ("create.ops", "instead of a comparison"),
        ("create > 1", "with its quantity"),
        ("varve.create.ops > 1 or 2 > 1", "at character 22: found `or 2 > 1`"),
        ("(1 + 2 > 1", "`)`"),
        ("1.2.3 > 1", "a number"),
        ("varve.create[clients].ops > 1", "a condition"),
        ("create.ops > 1", "one of native, varve"),
        ("varve.creates.ops > 1", "varve has create.ops"),
        ("varve.create.mib > 1", "varve has create.ops"),
        ("varve.create[clients=3].ops > 1", "no entry has these conditions"),
        ("varve.create.ops > native.create.ops + create.ops", "all targets are named"),
    ] {
        let error = check(text).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let deep = format!("{}1 > 0", "(".repeat(100));
    assert!(check(&deep).is_err());
}
