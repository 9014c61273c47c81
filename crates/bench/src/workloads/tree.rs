//! Programs that list, read and make trees of small files, in several directories by turns.
//!
//! One *turn* runs each program once in each directory: the first directory, then the second, and so on, before the next
//! program. So the `i`-th samples of a program come from the same seconds, and each ratio compares two of them. All
//! directories hold the same names with the same content. The first turn is not counted; the caches of the kernel are
//! warm in all others.

mod process;
mod programs;
mod report;
#[cfg(test)]
mod tests;

pub use programs::TreeProgram;
pub use report::{TreeReport, TreeResult, TreeSample};

use super::{REPEAT_MAX, Workplace};
use crate::environment::Environment;
use crate::interrupt::{self, Interrupt};
use crate::progress::{ProgressDisplay, STRIDE};
use crate::target::{self, BenchTarget, DirectoryTarget, TargetClient, Via};
use crate::{Error, Result};
use programs::{FILES, LINKED, NAMES};
use std::path::PathBuf;

/// The content of a file is between 1 and 4 KiB, as that of most source files.
const FILE_BYTES: std::ops::Range<u64> = 1024..4096;
/// Files of one directory of a tree.
const FILES_PER_DIRECTORY: u64 = 100;
/// A larger tree takes minutes to prepare in each directory.
pub const TREE_FILES_MAX: u64 = 1_000_000;

pub struct TreeConfig {
    /// Measured in turns, in this order; ratios are to the first.
    pub directories: Vec<PathBuf>,
    /// Empty files in the one directory that `ls` lists.
    pub names: u64,
    /// Files in the tree of the other programs.
    pub files: u64,
    /// Counted turns.
    pub repeat: u32,
    /// The programs to run; empty: all that are installed.
    pub programs: Vec<TreeProgram>,
    /// Show progress on stderr, if that is a terminal.
    pub progress: bool,
    /// The command line, for the report.
    pub arguments: Vec<String>,
}

impl TreeConfig {
    fn check(&self) -> Result<()> {
        let fail = |text: String| Err(Error::Usage(text));
        if self.directories.is_empty() {
            return fail("nothing to measure: give at least one directory".to_owned());
        }
        super::check_each_once(&self.via())?;
        self.via().iter().try_for_each(target::check_trusted)?;
        if self.repeat == 0 || self.repeat > REPEAT_MAX {
            return fail(format!("the number of repeats goes from 1 to {REPEAT_MAX}"));
        }
        if ![self.names, self.files].iter().all(|count| (1..=TREE_FILES_MAX).contains(count)) {
            return fail(format!("the numbers of names and files go from 1 to {TREE_FILES_MAX}"));
        }
        let twice = self.programs.iter().enumerate().find(|(at, program)| self.programs[..*at].contains(program));
        twice.map_or(Ok(()), |(_, program)| fail(format!("the program {program} is given twice")))
    }

    fn via(&self) -> Vec<Via> {
        self.directories.iter().map(|directory| Via::Path(directory.clone())).collect()
    }

    /// The programs to run, and those that are not installed.
    fn programs(&self) -> Result<(Vec<TreeProgram>, Vec<TreeProgram>)> {
        let wanted = if self.programs.is_empty() { TreeProgram::ALL.to_vec() } else { self.programs.clone() };
        let (found, missing): (Vec<_>, Vec<_>) = wanted.into_iter().partition(|program| program.is_installed());
        match missing.first() {
            Some(missing) if !self.programs.is_empty() || found.is_empty() => {
                Err(Error::Usage(format!("cannot run {missing}: {} is not installed", missing.program())))
            }
            _ => Ok((found, missing)),
        }
    }
}

/// Measures and reports. All files of the run are removed, after success and after failure.
pub fn run(config: &TreeConfig) -> Result<TreeReport> {
    config.check()?;
    let (programs, missing) = config.programs()?;
    let _interrupt = Interrupt::listen();
    let environment = Environment::gather(&config.via())?;
    let mut trees = Vec::new();
    let measured = measure(config, &programs, &mut trees);
    let samples = trees.into_iter().rev().fold(measured, |outcome, tree: Tree| tree.remove(outcome))?;
    Ok(TreeReport::of(config, environment.finished(), &programs, &missing, &samples))
}

/// Seconds of each program, directory and turn.
type Samples = Vec<Vec<Vec<f64>>>;

fn measure(config: &TreeConfig, programs: &[TreeProgram], trees: &mut Vec<Tree>) -> Result<Samples> {
    let uses = |part: &str| programs.iter().any(|program| program.part() == part);
    let parts: Vec<(&str, u64)> = [(NAMES, config.names), (FILES, config.files), (LINKED, config.files)]
        .into_iter()
        .filter(|(part, _)| uses(part))
        .collect();
    let made: u64 = parts.iter().map(|(_, count)| count).sum();
    let progress = ProgressDisplay::new(config.progress, made * config.directories.len() as u64);
    for directory in &config.directories {
        progress.show_line(format!("making files in {}", directory.display()));
        trees.push(Tree::open(directory)?);
        let tree = trees.last_mut().expect("pushed above");
        for (part, count) in &parts {
            tree.fill(part, *count, &progress)?;
        }
    }
    let mut samples = vec![vec![Vec::new(); trees.len()]; programs.len()];
    for turn in 0..=config.repeat {
        progress.show_line(format!("turn {turn} of {}", config.repeat));
        for (program, samples) in programs.iter().zip(&mut samples) {
            for (tree, samples) in trees.iter().zip(samples) {
                let seconds = tree.time(*program, config)?;
                if turn > 0 {
                    samples.push(seconds);
                }
            }
        }
    }
    Ok(samples)
}

/// The files of a run in one directory.
struct Tree {
    root: PathBuf,
    target: DirectoryTarget,
    control: Box<dyn TargetClient>,
    workplace: Workplace,
}

impl Tree {
    fn open(directory: &std::path::Path) -> Result<Tree> {
        let target = DirectoryTarget::open("path", directory)?;
        let mut control = target.connect()?;
        let workplace = Workplace::make(&target, &mut *control)?;
        Ok(Tree { root: directory.join(&workplace.directory), target, control, workplace })
    }

    /// Makes `count` files: empty ones in one directory for [`NAMES`], else small ones in a tree.
    fn fill(&mut self, part: &str, count: u64, progress: &ProgressDisplay) -> Result<()> {
        let content = vec![b'v'; FILE_BYTES.end as usize];
        let flat = part == NAMES;
        let via = self.target.label();
        let fail = |path: &str| {
            let (via, path) = (via.clone(), path.to_owned());
            move |source| Error::Operation { via, operation: "make", path, source }
        };
        let within = format!("{}/{part}", self.workplace.directory);
        self.control.enter(&self.workplace.directory).map_err(fail(part))?;
        self.control.make_directory(part).map_err(fail(part))?;
        self.control.enter(&within).map_err(fail(part))?;
        for number in 0..count {
            if number % STRIDE == 0 {
                interrupt::check()?;
                progress.advance(STRIDE.min(count - number));
            }
            if !flat && number % FILES_PER_DIRECTORY == 0 {
                let directory = format!("d{:04}", number / FILES_PER_DIRECTORY);
                self.control.enter(&within).map_err(fail(part))?;
                self.control.make_directory(&directory).map_err(fail(&directory))?;
                self.control.enter(&format!("{within}/{directory}")).map_err(fail(&directory))?;
            }
            // A prime stride spreads the lengths, the same ones in each directory. Contents differ, so that git(1)
            // stores each of them.
            let length = FILE_BYTES.start + number * 7919 % (FILE_BYTES.end - FILE_BYTES.start);
            let mut content = content[..if flat { 0 } else { length as usize }].to_vec();
            if !flat {
                content[..8].copy_from_slice(&number.to_le_bytes());
            }
            let name = format!("file.{number:06}");
            self.control.create(&name, &content).map_err(fail(&name))?;
        }
        // Not to keep a measured directory open.
        self.control.enter("").map_err(fail(part))
    }

    /// Runs `program` and returns the seconds that it took.
    fn time(&self, program: TreeProgram, config: &TreeConfig) -> Result<f64> {
        interrupt::check()?;
        let failed =
            |source| Error::Operation { via: self.target.label(), operation: "run", path: program.to_string(), source };
        let run = program.run(&self.root).map_err(failed)?;
        interrupt::check()?;
        let ran = run.ok_or(Error::Interrupted)?;
        let directories = config.files.div_ceil(FILES_PER_DIRECTORY);
        let wanted = program.output_min(config.names, config.files, directories);
        if ran.lines < wanted.lines || ran.bytes < wanted.bytes {
            let what = format!(
                "{program} printed {} lines and {} bytes instead of {} and {} or more",
                ran.lines, ran.bytes, wanted.lines, wanted.bytes
            );
            return Err(Error::WrongAnswer { via: self.target.label(), what });
        }
        Ok(ran.elapsed.as_secs_f64())
    }

    fn remove<T>(mut self, outcome: Result<T>) -> Result<T> {
        self.workplace.remove(&self.target, &mut *self.control, outcome)
    }
}
