//! Suites: several workloads at several targets in one run, described by a TOML file.
//!
//! A step of a suite is one `varve bench` command. Its options are the long options of that command, so that a suite
//! can do what the command line can do. [`Suite::plan`] makes the command lines, [`run`] carries them out as child
//! processes, one after the other, and merges their figures into one run file. A step that fails leaves the others
//! alone. Each workload alternates the targets itself.

mod process;
mod run;
#[cfg(test)]
mod tests;
mod workload;

pub use run::{SuiteConfig, run};
pub use workload::{TargetWords, WORKLOADS, WorkloadRule};

use crate::target::Via;
use crate::{Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use toml::Value;

/// The suites that this program contains: the name and the text.
pub const SHIPPED: [(&str, &str); 6] = [
    ("quick", include_str!("suite/shipped/quick.toml")),
    ("paper", include_str!("suite/shipped/paper.toml")),
    ("d82", include_str!("suite/shipped/d82.toml")),
    ("ceft", include_str!("suite/shipped/ceft.toml")),
    ("acceptance", include_str!("suite/shipped/acceptance.toml")),
    ("io500", include_str!("suite/shipped/io500.toml")),
];

/// A suite of more commands is better divided.
pub const STEPS_MAX: usize = 500;
/// A page with more targets cannot be read, and has no more colours.
pub const TARGETS_MAX: usize = 12;
/// Options of a workload that a suite may not give: a suite comes from other people, and these write files, or name places
/// other than the targets.
const REFUSED_OPTIONS: [&str; 11] =
    ["save", "page", "csv", "compare", "via", "dir", "rendezvous", "config", "json", "log", "store"];
/// A label is a column's title.
const LABEL_CHARS_MAX: usize = 40;

/// A suite, as its TOML file gives it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Suite {
    #[serde(default)]
    pub name: String,
    /// One sentence for the head of the report.
    pub title: String,
    /// Its contents and its time, for people who choose a suite.
    pub about: String,
    /// Turns of each step that gives no other number.
    pub repeat: Option<u32>,
    /// Highest and lowest turns that the figures leave out, so many of each.
    #[serde(default)]
    pub discard: usize,
    #[serde(rename = "step")]
    pub steps: Vec<SuiteStep>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SuiteStep {
    /// For the progress and the report; the workload if there is none.
    #[serde(default)]
    pub name: String,
    /// The workload: the word after `varve bench`.
    pub run: String,
    /// Long options of the command without their dashes. A list is given with commas, `true` is a flag.
    #[serde(default)]
    pub options: BTreeMap<String, Value>,
    /// Options of which each value is a command of its own.
    #[serde(default)]
    pub each: BTreeMap<String, Vec<Value>>,
}

/// A target of a suite: `native=path:/scratch/x`, or only `path:/scratch/x`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuiteTarget {
    pub label: String,
    pub via: Via,
}

/// One command of a suite.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStep {
    pub name: String,
    pub workload: &'static WorkloadRule,
    /// Words after `varve`.
    pub words: Vec<String>,
    /// Targets that it measures. Empty: the step suits none of the suite's targets, and is left out.
    pub targets: Vec<SuiteTarget>,
}

impl FromStr for SuiteTarget {
    type Err = Error;

    fn from_str(text: &str) -> Result<SuiteTarget> {
        let (label, via) = match text.split_once('=') {
            Some((label, via)) if !label.contains(':') => (label, via),
            _ => (text, text),
        };
        let named = label != text;
        let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        if named && (label.is_empty() || !label.chars().all(plain) || label.chars().count() > LABEL_CHARS_MAX) {
            return Err(Error::Usage(format!(
                "{label:?} cannot name a target: use letters, digits, '-', '_' and '.', at most {LABEL_CHARS_MAX}, as in \
                 native=path:/scratch/x"
            )));
        }
        Ok(SuiteTarget { label: label.to_owned(), via: via.parse()? })
    }
}

impl fmt::Display for SuiteTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.label, self.via)
    }
}

impl Suite {
    /// A suite of this program.
    pub fn shipped(name: &str) -> Option<Result<Suite>> {
        let (name, text) = SHIPPED.iter().find(|(shipped, _)| *shipped == name)?;
        Some(Suite::from_toml(name, text))
    }

    /// # Errors
    /// [`Error::Usage`] with the line, or with the step that cannot be.
    pub fn from_toml(name: &str, text: &str) -> Result<Suite> {
        let fail = |why: String| Error::Usage(format!("cannot understand the suite {name}: {why}"));
        let mut suite: Suite = toml::from_str(text).map_err(|error| fail(error.to_string().trim().to_owned()))?;
        if suite.name.is_empty() {
            suite.name = name.to_owned();
        }
        if suite.steps.is_empty() {
            return Err(fail("it has no [[step]]".to_owned()));
        }
        Ok(suite)
    }

    /// The commands of the suite at these targets, in order.
    ///
    /// # Errors
    /// [`Error::Usage`] for targets or steps that make no sense.
    pub fn plan(&self, targets: &[SuiteTarget], repeat: Option<u32>) -> Result<Vec<PlannedStep>> {
        let fail = |why: String| Err(Error::Usage(why));
        if targets.is_empty() {
            return fail("nothing to measure: give at least one --target LABEL=path:DIR".to_owned());
        }
        if targets.len() > TARGETS_MAX {
            return fail(format!("a suite measures at most {TARGETS_MAX} targets"));
        }
        for (at, target) in targets.iter().enumerate() {
            let same = |other: &&SuiteTarget| other.label == target.label || other.via == target.via;
            if let Some(other) = targets[..at].iter().find(same) {
                return fail(format!("{target} and {other} are one target, or have one label: give each once"));
            }
        }
        let mut planned = Vec::new();
        for step in &self.steps {
            planned.extend(step.plan(targets, repeat.or(self.repeat))?);
            if planned.len() > STEPS_MAX {
                return fail(format!("the suite {} has more than {STEPS_MAX} commands", self.name));
            }
        }
        Ok(planned)
    }
}

impl SuiteStep {
    fn plan(&self, targets: &[SuiteTarget], repeat: Option<u32>) -> Result<Vec<PlannedStep>> {
        let Some(workload) = WORKLOADS.iter().find(|workload| workload.name == self.run) else {
            let known = WORKLOADS.map(|workload| workload.name).join(", ");
            return Err(Error::Usage(format!("a suite cannot run {:?}: use one of {known}", self.run)));
        };
        let name = if self.name.is_empty() { self.run.clone() } else { self.name.clone() };
        let mut options = self.options.clone();
        if let Some(repeat) = repeat.filter(|_| workload.repeats) {
            // The command line of the suite is stronger than its file, and that is stronger than the default.
            options.entry("repeat".to_owned()).or_insert(Value::Integer(repeat.into()));
        }
        let mut planned = Vec::new();
        for (suffix, options) in combinations(&name, &options, &self.each)? {
            let words = option_words(&name, &options)?;
            let suited: Vec<SuiteTarget> = targets.iter().filter(|target| workload.suits(target)).cloned().collect();
            let groups = match workload.targets {
                TargetWords::OneDirectory => suited.iter().map(|target| vec![target.clone()]).collect(),
                _ => vec![suited],
            };
            for targets in groups {
                let name = if suffix.is_empty() { name.clone() } else { format!("{name}, {suffix}") };
                let mut all = vec!["--json".to_owned(), "bench".to_owned(), self.run.clone()];
                all.extend(words.iter().cloned());
                all.extend(workload.target_words(&targets));
                planned.push(PlannedStep { name, workload, words: all, targets });
            }
        }
        Ok(planned)
    }
}

type Options = BTreeMap<String, Value>;

/// The options of each command: all combinations of the values in `each`.
fn combinations(name: &str, options: &Options, each: &BTreeMap<String, Vec<Value>>) -> Result<Vec<(String, Options)>> {
    let mut all = vec![(String::new(), options.clone())];
    for (option, values) in each {
        if values.is_empty() || all.len() * values.len() > STEPS_MAX {
            return Err(Error::Usage(format!("step {name:?}: {option} has no values, or there are too many commands")));
        }
        let mut more = Vec::with_capacity(all.len() * values.len());
        for (suffix, options) in &all {
            for value in values {
                let text = scalar(name, option, value)?;
                let separator = if suffix.is_empty() { "" } else { ", " };
                let mut options = options.clone();
                options.insert(option.clone(), value.clone());
                more.push((format!("{suffix}{separator}{option} {text}"), options));
            }
        }
        all = more;
    }
    Ok(all)
}

fn option_words(name: &str, options: &Options) -> Result<Vec<String>> {
    let mut words = Vec::new();
    for (option, value) in options {
        let fail = |why: &str| Err(Error::Usage(format!("step {name:?}: option {option:?} {why}")));
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !option.starts_with(|c: char| c.is_ascii_lowercase()) || !option.chars().all(plain) {
            return fail("is no option: write a long option without its dashes");
        }
        if REFUSED_OPTIONS.contains(&option.as_str()) {
            return fail("is not for suites: it names a file or a target, or changes the output");
        }
        let value = match value {
            Value::Boolean(false) => continue,
            Value::Boolean(true) => {
                words.push(format!("--{option}"));
                continue;
            }
            Value::Array(values) => {
                let values: Result<Vec<String>> = values.iter().map(|value| scalar(name, option, value)).collect();
                values?.join(",")
            }
            other => scalar(name, option, other)?,
        };
        words.push(format!("--{option}={value}"));
    }
    Ok(words)
}

fn scalar(name: &str, option: &str, value: &Value) -> Result<String> {
    match value {
        Value::String(text) => Ok(text.clone()),
        Value::Integer(number) => Ok(number.to_string()),
        Value::Float(number) => Ok(number.to_string()),
        _ => Err(Error::Usage(format!("step {name:?}: {option} must be a text, a number, or a list of them"))),
    }
}
