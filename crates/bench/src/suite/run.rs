//! Carries out a suite and merges the figures of its commands.

use super::process;
use super::{PlannedStep, Suite, SuiteTarget};
use crate::environment::{Environment, mount_of};
use crate::interrupt::{self, Interrupt};
use crate::run_file::{RUN_SCHEMA_VERSION, RunFile, RunStep, RunTarget, marks};
use crate::target::{self, Via};
use crate::{Error, Result};
use std::io::IsTerminal;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::Output;
use std::time::Instant;

/// Characters of a failed command's messages that the run file keeps.
const FAILURE_CHARS_MAX: usize = 2_000;

pub struct SuiteConfig {
    pub suite: Suite,
    pub targets: Vec<SuiteTarget>,
    pub steps: Vec<PlannedStep>,
    /// The program `varve`.
    pub program: PathBuf,
    /// Name each step on stderr, if that is a terminal.
    pub progress: bool,
    /// The command line, for the report.
    pub arguments: Vec<String>,
}

/// Runs all steps. A step that fails leaves a [`RunStep::failure`]; after a signal the rest is not run.
///
/// # Errors
/// If the targets cannot be looked at. Nothing has run then.
pub fn run(config: &SuiteConfig) -> Result<RunFile> {
    let _interrupt = Interrupt::listen();
    let vias: Vec<Via> = config.targets.iter().map(|target| target.via.clone()).collect();
    let environment = Environment::gather(&vias)?;
    let mut run = RunFile {
        schema_version: RUN_SCHEMA_VERSION,
        command: "bench suite".to_owned(),
        suite: config.suite.name.clone(),
        title: config.suite.title.clone(),
        arguments: config.arguments.clone(),
        targets: config.targets.iter().map(described).collect(),
        warnings: shared_file_systems(&config.targets),
        ..RunFile::default()
    };
    for (at, step) in config.steps.iter().enumerate() {
        if config.progress && std::io::stderr().is_terminal() {
            eprintln!("{} of {}: {}", at + 1, config.steps.len(), step.name);
        }
        let begun = Instant::now();
        let failure = carry_out(config, step, &mut run);
        let duration_s = (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        let arguments = ["varve".to_owned()].into_iter().chain(step.words.iter().cloned()).collect();
        run.steps.push(RunStep { name: step.name.clone(), arguments, duration_s, failure });
    }
    run.environment = environment.finished();
    run.warnings.extend(run.environment.warnings());
    let mut known = std::collections::BTreeSet::new();
    run.warnings.retain(|warning| known.insert(warning.clone()));
    Ok(run)
}

/// Runs one step and takes its figures. Returns why it has none, or only a part; empty if it has all.
fn carry_out(config: &SuiteConfig, step: &PlannedStep, run: &mut RunFile) -> String {
    if interrupt::raised() {
        return "not run: the suite was interrupted".to_owned();
    }
    if step.targets.is_empty() {
        return format!("not run: no target suits `bench {}`", step.workload.name);
    }
    let output = match process::run(&config.program, &step.words) {
        Ok(output) => output,
        Err(error) => return format!("cannot run {}: {error}", config.program.display()),
    };
    let taken = step.workload.read(&String::from_utf8_lossy(&output.stdout), &step.targets);
    let failure = if output.status.success() { String::new() } else { last_words(&output) };
    match taken {
        Ok(figures) => {
            merge(run, figures, step, config.suite.discard, !failure.is_empty());
            failure
        }
        Err(_) if !failure.is_empty() => failure,
        Err(error) => format!("its output cannot be read: {error}"),
    }
}

fn last_words(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    let skipped = said.chars().count().saturating_sub(FAILURE_CHARS_MAX);
    let said: String = said.chars().skip(skipped).collect();
    if said.is_empty() { format!("it ended with {}", output.status) } else { said }
}

/// Takes the entries of a step, under the labels of the suite.
fn merge(run: &mut RunFile, figures: RunFile, step: &PlannedStep, discard: usize, partial: bool) {
    for mut entry in figures.entries {
        // A workload that takes directories knows a mount only as a path.
        let is_it = |target: &&SuiteTarget| {
            target.via.to_string() == entry.target || format!("path:{}", target.via.place()) == entry.target
        };
        let Some(target) = step.targets.iter().find(is_it) else { continue };
        entry.target = target.label.clone();
        entry.discard = discard;
        if partial && !entry.is_marked(marks::PARTIAL) {
            entry.marks.push(marks::PARTIAL.to_owned());
        }
        run.entries.push(entry);
    }
    // Those of the machine belong to the whole run, which asks for them itself.
    let own = figures.environment.warnings();
    run.warnings.extend(figures.warnings.into_iter().filter(|warning| !own.contains(warning)));
}

fn described(target: &SuiteTarget) -> RunTarget {
    let directory = target.via.directory();
    let filesystem = mount_of(&directory).map_or(String::new(), |mount| mount.filesystem);
    let space = rustix::fs::statvfs(&directory).ok();
    let free_bytes = space.map(|space| space.f_bavail.saturating_mul(space.f_frsize));
    RunTarget { label: target.label.clone(), via: target.via.to_string(), filesystem, free_bytes }
}

/// A warning for each two targets on one file system, whose difference can only be noise.
fn shared_file_systems(targets: &[SuiteTarget]) -> Vec<String> {
    let device = |target: &SuiteTarget| std::fs::metadata(target.via.directory()).ok().map(|found| found.dev());
    let mut warnings = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        for other in &targets[..at] {
            // A library's volume lies on its store by design.
            let plain = |target: &SuiteTarget| !matches!(target.via, Via::Library(_));
            if plain(target) && plain(other) && device(target).is_some() && device(target) == device(other) {
                let (first, second) = (&other.label, &target.label);
                warnings.push(format!("{first} and {second} are on the same file system; their difference is noise."));
            }
        }
    }
    warnings
}

impl SuiteConfig {
    /// # Errors
    /// [`Error::Usage`] if a target is no directory that can be measured.
    pub fn check(&self) -> Result<()> {
        for target in &self.targets {
            let directory = target.via.directory();
            if directory == std::path::Path::new("/") {
                return Err(Error::Usage(format!(
                    "{target} is the root directory: give a directory for the test files"
                )));
            }
            if !directory.is_dir() {
                return Err(Error::Usage(format!("{target} is no directory: make it, or mount the volume")));
            }
            target::check_trusted(&target.via)?;
        }
        Ok(())
    }
}
