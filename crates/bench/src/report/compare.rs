//! Finds regressions: compares the ratios of a run with those of a recorded one. It does not compare the rates
//! themselves, because they belong to two machines, or to one machine on two days.

use super::BenchReport;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A ratio that fell by more than this fraction is reported.
pub const REGRESSION: f64 = 0.10;

/// One ratio that fell.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    /// For example `library create, 8 clients, to request-reply`.
    pub name: String,
    pub recorded: f64,
    pub now: f64,
}

impl std::fmt::Display for Regression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fall = (1.0 - self.now / self.recorded) * 100.0;
        write!(f, "{}: {:.3} was {:.3} ({fall:.0}% less)", self.name, self.now, self.recorded)
    }
}

/// Two reports beside each other.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Number of ratios that are in both.
    pub common: usize,
    /// Those of them that fell by more than a tenth.
    pub fallen: Vec<Regression>,
}

/// Compares the ratios that are in both reports. Targets are matched by kind and by their order within it, because
/// their places differ in most cases.
pub fn compare(now: &BenchReport, recorded: &BenchReport) -> Comparison {
    let recorded: BTreeMap<String, f64> = named(recorded).into_iter().collect();
    let mut comparison = Comparison::default();
    for (name, now) in named(now) {
        let Some(recorded) = recorded.get(&name).copied() else { continue };
        comparison.common += 1;
        if now < recorded * (1.0 - REGRESSION) {
            comparison.fallen.push(Regression { name, recorded, now });
        }
    }
    comparison
}

impl BenchReport {
    /// Names of the settings that differ in `other`. The number of repeats is not one of them, because ratios are
    /// medians.
    pub fn other_settings<'a>(&'a self, other: &BenchReport) -> Vec<&'a str> {
        let differ = |(name, value): &(&String, &serde_json::Value)| {
            name.as_str() != "repeat" && other.settings.get(name.as_str()).is_some_and(|theirs| theirs != *value)
        };
        self.settings.iter().filter(differ).map(|(name, _)| name.as_str()).collect()
    }
}

/// Ratios of several runs on one machine, by names such as `embedded: mount create, 8 clients, to null-fuse`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ratios {
    /// As [`crate::environment::Environment::machine`] names it.
    pub machine: String,
    pub ratios: BTreeMap<String, f64>,
}

/// The reference values for later runs: ratios by machine. Ratios depend on the processor too: a processor can be fast
/// at a bare request and no faster at the work behind it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Recorded {
    pub schema_version: u32,
    pub machines: BTreeMap<String, BTreeMap<String, f64>>,
}

/// One ratio beside the recorded one, if there is one.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ComparedRatio {
    pub name: String,
    pub recorded: Option<f64>,
    pub now: f64,
    /// Whether it fell by more than a tenth.
    pub fell: bool,
}

impl Ratios {
    /// The ratios of named reports.
    ///
    /// # Errors
    /// [`Error::Usage`] if they are not all of one machine, or two of them have one name.
    pub fn of(reports: &[(String, BenchReport)]) -> Result<Ratios> {
        let names: BTreeSet<&str> = reports.iter().map(|(name, _)| name.as_str()).collect();
        if names.len() < reports.len() {
            let what = "two of the reports have the same name, so their ratios cannot be distinguished: rename a file";
            return Err(Error::Usage(what.into()));
        }
        let machines: BTreeSet<String> = reports.iter().map(|(_, report)| report.environment.machine()).collect();
        if machines.len() > 1 {
            let machines: Vec<String> = machines.into_iter().collect();
            let machines = machines.join(", ");
            return Err(Error::Usage(format!(
                "these reports are of several machines ({machines}): compare those of one at a time"
            )));
        }
        let of_one = |(name, report): &(String, BenchReport)| {
            let named = named(report).into_iter();
            named.map(|(ratio, median)| (format!("{name}: {ratio}"), median)).collect::<Vec<_>>()
        };
        let machine = machines.into_iter().next().unwrap_or_default();
        Ok(Ratios { machine, ratios: reports.iter().flat_map(of_one).collect() })
    }

    /// Names in `recorded` that belong to these reports and are missing from all of them.
    pub fn lost(&self, reports: &[(String, BenchReport)], recorded: &BTreeMap<String, f64>) -> Vec<String> {
        let of_these = |name: &&String| {
            let report = name.split_once(": ").map_or("", |(report, _)| report);
            reports.iter().any(|(given, _)| given == report) && !self.ratios.contains_key(*name)
        };
        recorded.keys().filter(of_these).cloned().collect()
    }

    /// Each of these ratios with the one of the same name in `recorded`.
    pub fn beside(&self, recorded: &BTreeMap<String, f64>) -> Vec<ComparedRatio> {
        let compare = |(name, now): (&String, &f64)| {
            let recorded = recorded.get(name).copied();
            let fell = recorded.is_some_and(|recorded| *now < recorded * (1.0 - REGRESSION));
            ComparedRatio { name: name.clone(), recorded, now: *now, fell }
        };
        self.ratios.iter().map(compare).collect()
    }
}

impl Recorded {
    /// Replaces the recorded ratios of the same machine.
    pub fn record(&mut self, ratios: &Ratios) {
        self.schema_version = super::SCHEMA_VERSION;
        self.machines.insert(ratios.machine.clone(), ratios.ratios.clone());
    }

    /// The recorded ratios of the machine, or of the first machine if it has none, with the name of the machine they
    /// belong to.
    pub fn of(&self, machine: &str) -> Option<(&str, &BTreeMap<String, f64>)> {
        let found = self.machines.get_key_value(machine).or_else(|| self.machines.first_key_value());
        found.map(|(machine, ratios)| (machine.as_str(), ratios))
    }
}

fn named(report: &BenchReport) -> Vec<(String, f64)> {
    let targets = report.targets();
    let name = |via: &str, target: &str| {
        let position = targets.iter().filter(|(kind, _)| *kind == via).position(|(_, place)| *place == target);
        match position {
            None | Some(0) => via.to_owned(),
            Some(n) => format!("{via} #{}", n + 1),
        }
    };
    let of = |ratio: &super::Ratio| {
        let target = name(&ratio.via, &ratio.target);
        let clients = super::numbers::clients(ratio.clients);
        (format!("{target} {}, {clients}, to {}", ratio.phase, ratio.to), ratio.median)
    };
    report.ratios.iter().map(of).collect()
}
