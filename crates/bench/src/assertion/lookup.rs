//! Finds the figure that a name of an assertion means.

use super::Bounded;
use super::syntax::FigureName;
use crate::measure::median_interval;
use crate::run_file::{RunEntry, RunFile, units};
use crate::{Error, Result};
use serde_json::Value;

/// Candidates that an error lists.
const LISTED_MAX: usize = 8;

pub(super) struct Lookup<'a> {
    run: &'a RunFile,
    /// The target of names that give none; an error if it is unclear.
    of: std::result::Result<&'a str, String>,
}

impl<'a> Lookup<'a> {
    /// `named`: the targets that the assertion names.
    pub(super) fn of(run: &'a RunFile, of: Option<&str>, named: &[String]) -> Result<Lookup<'a>> {
        let labels: Vec<&str> = run.targets.iter().map(|target| target.label.as_str()).collect();
        if let Some(of) = of {
            let Some(label) = labels.iter().find(|label| **label == of) else {
                return Err(Error::Usage(format!("the run has no target {of:?}, only {}", labels.join(", "))));
            };
            return Ok(Lookup { run, of: Ok(label) });
        }
        let others: Vec<&str> = labels.into_iter().filter(|label| !named.iter().any(|name| name == label)).collect();
        let of = match others[..] {
            [only] => Ok(only),
            [] => Err("all targets are named, so a name without a target means none: add the target".to_owned()),
            _ => Err(format!("it may be one of {}: put the target before it, or choose with --of", others.join(", "))),
        };
        Ok(Lookup { run, of })
    }

    pub(super) fn find(&self, name: &FigureName) -> Result<Bounded> {
        let fail = |why: String| Err(Error::Usage(format!("cannot find {} in the run: {why}", name.text)));
        let target = match (name.target(self.run), &self.of) {
            (Some(target), _) => target,
            (None, Ok(of)) => (*of).to_owned(),
            (None, Err(why)) => return fail(why.clone()),
        };
        let metric = name.words.strip_prefix(&format!("{target}.")).unwrap_or(&name.words);
        let at_target: Vec<&RunEntry> = self.run.entries.iter().filter(|entry| entry.target == target).collect();
        let mut found: Vec<&RunEntry> = at_target
            .iter()
            .filter(|entry| is_named(entry, metric) && has_quantity(entry, &name.quantity))
            .copied()
            .collect();
        if found.is_empty() {
            let mut known: Vec<String> = at_target.iter().map(|entry| suggestion(entry)).collect();
            known.dedup();
            known.truncate(LISTED_MAX);
            return fail(format!("{target} has {}", known.join(", ")));
        }
        found.retain(|entry| name.conditions.iter().all(|condition| fulfils(entry, condition)));
        let clients = |entry: &&RunEntry| entry.clients().unwrap_or(0.0);
        let most = found.iter().map(clients).fold(0.0, f64::max);
        found.retain(|entry| clients(entry) >= most);
        match found[..] {
            [] => fail("no entry has these conditions".to_owned()),
            [entry] => Ok(quantity(entry, &name.quantity)),
            _ => {
                let known: Vec<String> = found
                    .iter()
                    .take(LISTED_MAX)
                    .map(|entry| format!("{} [{}]", entry.name(), entry.conditions()))
                    .collect();
                fail(format!("several entries have this name; add conditions in brackets: {}", known.join(", ")))
            }
        }
    }
}

/// `create`, or `mdtest:create`.
fn is_named(entry: &RunEntry, metric: &str) -> bool {
    entry.tool.is_empty() && (entry.metric == metric || format!("{}:{}", entry.workload, entry.metric) == metric)
        || !entry.tool.is_empty() && format!("{}:{}", entry.tool, entry.metric) == metric
}

fn fulfils(entry: &RunEntry, (parameter, wanted): &(String, String)) -> bool {
    match entry.parameters.get(parameter) {
        Some(Value::String(text)) => text == wanted,
        Some(Value::Bool(flag)) => wanted.parse() == Ok(*flag),
        Some(value) => value.as_f64().is_some_and(|number| wanted.parse() == Ok(number)),
        None => false,
    }
}

/// The quantities of units; `value` fits all.
fn has_quantity(entry: &RunEntry, quantity: &str) -> bool {
    match quantity {
        "value" | "min" | "max" | "low" | "high" => true,
        "ops" => entry.unit == units::OPS_PER_S,
        "mib" => entry.unit == units::MIB_PER_S,
        "s" => entry.unit == units::SECONDS,
        "ms" => entry.unit == units::MILLISECONDS,
        "p50" | "p99" | "p999" => entry.latency_us.is_some(),
        _ => false,
    }
}

fn quantity(entry: &RunEntry, quantity: &str) -> Bounded {
    let spread = entry.spread();
    let interval = median_interval(&entry.samples).map(|interval| (interval.low, interval.high));
    let latency = entry.latency_us.unwrap_or_default();
    let alone = |value| Bounded { value, bounds: Some((value, value)) };
    match quantity {
        "min" => alone(spread.min),
        "max" => alone(spread.max),
        "low" => alone(interval.map_or(spread.min, |interval| interval.0)),
        "high" => alone(interval.map_or(spread.max, |interval| interval.1)),
        "p50" => alone(latency.p50),
        "p99" => alone(latency.p99),
        "p999" => alone(latency.p999),
        _ => Bounded { value: spread.median, bounds: interval },
    }
}

fn suggestion(entry: &RunEntry) -> String {
    let quantity = match entry.unit.as_str() {
        units::OPS_PER_S => "ops",
        units::MIB_PER_S => "mib",
        units::SECONDS => "s",
        units::MILLISECONDS => "ms",
        _ => "value",
    };
    let workload = if entry.tool.is_empty() { String::new() } else { format!("{}:", entry.tool) };
    format!("{workload}{}.{quantity}", entry.metric)
}
