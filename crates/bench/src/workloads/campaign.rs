//! A campaign: several targets in turns, with one set of ranks. After a failure, the figures until then are kept, and only
//! the run's own directories are removed.

use super::{Job, RankWork, Workplace, check_each_once};
use crate::environment::{Environment, mount_of};
use crate::interrupt::{self, Interrupt};
use crate::progress::ProgressDisplay;
use crate::ranks::{Launcher, LauncherConfig, PhaseRecord};
use crate::results::{Figure, FigureKey, Parameters, RunResults};
use crate::target::{self, BenchTarget, TargetClient, Via};
use crate::{Error, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

#[cfg(test)]
pub(crate) mod tests;

#[derive(Clone, Debug)]
pub struct CampaignConfig {
    /// Measured in turns, in this order.
    pub via: Vec<Via>,
    pub launcher: LauncherConfig,
    /// Files for the results: a warning says if they are on the file system of a target.
    pub outputs: Vec<PathBuf>,
    /// Show progress on stderr, if that is a terminal.
    pub progress: bool,
    /// The command line, for the report.
    pub arguments: Vec<String>,
}

/// One set of parameters.
pub(crate) struct Point {
    pub workload: &'static str,
    pub clients: usize,
    pub parameters: Parameters,
    pub work: RankWork,
}

/// The files of a pass that stay for a later run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    pub name: &'static str,
    pub create: bool,
    pub remove: bool,
}

struct CampaignTarget {
    via: Via,
    target: Box<dyn BenchTarget>,
    control: Box<dyn TargetClient>,
    workplace: Workplace,
}

pub(crate) struct Campaign {
    launcher: Launcher,
    targets: Vec<CampaignTarget>,
    kept: Option<Kept>,
    passes: u64,
    progress: ProgressDisplay,
    pub results: RunResults,
    /// Marks that apply to a target's figures of cached data.
    pub memory_bytes: u64,
    _interrupt: Interrupt,
}

impl Campaign {
    /// Checks the targets, starts up to `clients` ranks, and makes the run's directories.
    pub(crate) fn open(config: &CampaignConfig, command: &str, clients: usize, kept: Option<Kept>) -> Result<Campaign> {
        if config.via.is_empty() {
            return Err(Error::Usage("nothing to measure: give at least one --via path:DIR or mount:DIR".to_owned()));
        }
        check_each_once(&config.via)?;
        for via in &config.via {
            target::check_fresh(via, kept.filter(|kept| !kept.create).map(|kept| kept.name))?;
        }
        let interrupt = Interrupt::listen();
        let environment = Environment::gather(&config.via)?;
        let progress = ProgressDisplay::new(config.progress, 0);
        progress.show_line("starting the clients".to_owned());
        let launcher = Launcher::start(&config.launcher, clients)?;
        let driven_by = match (&config.launcher.launched, config.launcher.processes) {
            (Some(launched), _) => format!("processes of {}", launched.launcher),
            (None, true) => "processes".to_owned(),
            (None, false) => "threads".to_owned(),
        };
        let results = RunResults {
            command: command.to_owned(),
            arguments: config.arguments.clone(),
            driven_by,
            results: Vec::new(),
            warnings: same_file_system(&environment, &config.outputs),
            error: None,
            environment,
        };
        let memory_bytes = results.environment.memory_bytes;
        let mut campaign = Campaign {
            launcher,
            targets: Vec::new(),
            kept,
            passes: 0,
            progress,
            results,
            memory_bytes,
            _interrupt: interrupt,
        };
        match config.via.iter().try_for_each(|via| campaign.add(via)) {
            Ok(()) => Ok(campaign),
            Err(error) => Err(campaign.clean(error)),
        }
    }

    fn add(&mut self, via: &Via) -> Result<()> {
        let target = target::open(via)?;
        let mut control = target.connect()?;
        let workplace = match self.kept {
            Some(kept) => Workplace::named(&*target, &mut *control, kept.name, kept.create)?,
            None => Workplace::make(&*target, &mut *control)?,
        };
        self.targets.push(CampaignTarget { via: via.clone(), target, control, workplace });
        Ok(())
    }

    /// The clients of this run, if another program decided on their number.
    pub(crate) fn fixed_clients(&self) -> Option<usize> {
        self.launcher.ranks()
    }

    /// One turn: a pass at each target. `figures` makes the samples from the phases of a pass.
    pub(crate) fn turn(
        &mut self,
        point: &Point,
        turn: u32,
        figures: &dyn Fn(&[PhaseRecord]) -> Vec<Figure>,
    ) -> Result<()> {
        self.passes += 1;
        let outcome = (0..self.targets.len()).try_for_each(|index| self.turn_at(index, point, turn, figures));
        if outcome.is_err() {
            self.results.mark_partial(point.workload, point.clients, &point.parameters);
        }
        outcome
    }

    fn turn_at(
        &mut self,
        index: usize,
        point: &Point,
        turn: u32,
        figures: &dyn Fn(&[PhaseRecord]) -> Vec<Figure>,
    ) -> Result<()> {
        interrupt::check()?;
        let label = self.targets[index].target.label();
        let clients = point.clients;
        self.progress.show_line(format!("{} at {label}, {clients} clients, turn {}", point.workload, turn + 1));
        let key = FigureKey {
            workload: point.workload,
            target: label,
            clients: point.clients,
            parameters: point.parameters.clone(),
        };
        let (phases, error) = self.pass(index, point, turn)?;
        let complete = error.is_none();
        for figure in figures(&phases) {
            // A rate over less than the whole work means something only as a partial one.
            let partial = (!complete).then_some(crate::results::MARK_PARTIAL);
            self.results.keep(&key, figure.marked(partial), &phases);
        }
        error.map_or(Ok(()), Err)
    }

    fn pass(&mut self, index: usize, point: &Point, turn: u32) -> Result<(Vec<PhaseRecord>, Option<Error>)> {
        let (kept, passes) = (self.kept, self.passes);
        let CampaignTarget { via, target, control, workplace } = &mut self.targets[index];
        let name = match kept {
            Some(_) => format!("iteration.{turn}"),
            None => format!("pass.{passes}"),
        };
        let directory = format!("{}/{name}", workplace.directory);
        let failed = |operation: &'static str| {
            let (via, path) = (target.label(), directory.clone());
            move |source| Error::Operation { via, operation, path, source }
        };
        if kept.is_none_or(|kept| kept.create) {
            control.enter(&workplace.directory).map_err(failed("open the directory above"))?;
            control.make_directory(&name).map_err(failed("make"))?;
        }
        let seed = u64::from(turn) + 1;
        let job = Job { via: via.to_string(), directory: directory.clone(), seed, work: point.work.clone() };
        let outcome = self.launcher.run(&job, point.clients, &self.progress);
        let removes = kept.is_none_or(|kept| kept.remove);
        if outcome.error.is_none() && removes {
            control.enter("").map_err(failed("leave"))?;
            control.remove_tree(&directory).map_err(failed("remove"))?;
        }
        Ok((outcome.phases, outcome.error))
    }

    /// Ends the ranks and removes the run's directories. Figures that were measured before an error are returned with it.
    pub(crate) fn finish(mut self, outcome: Result<()>) -> Result<RunResults> {
        let results = std::mem::replace(&mut self.results, empty());
        let outcome = match outcome {
            Ok(()) => self.remove(Ok(())),
            Err(error) => self.remove(Err(error)),
        };
        let mut results = results;
        results.environment = results.environment.finished();
        match outcome {
            Ok(()) => Ok(results),
            Err(error) if results.results.is_empty() || matches!(error, Error::Usage(_)) => Err(error),
            Err(error) => {
                results.error = Some(error.to_string());
                Ok(results)
            }
        }
    }

    fn clean(self, error: Error) -> Error {
        self.remove(Err(error)).err().unwrap_or(Error::Interrupted)
    }

    fn remove(self, mut outcome: Result<()>) -> Result<()> {
        let Campaign { launcher, targets, kept, progress, .. } = self;
        progress.show_line("removing the created files".to_owned());
        // Ranks that are still there must not write into a directory that is being removed.
        drop(launcher);
        for CampaignTarget { target, mut control, workplace, .. } in targets {
            let keeps = match kept {
                None => false,
                // A later run can use files that it found, but not files that a failed run made.
                Some(kept) => {
                    if outcome.is_ok() {
                        !kept.remove
                    } else {
                        !kept.create
                    }
                }
            };
            if !keeps {
                outcome = workplace.remove(&*target, &mut *control, outcome);
            }
        }
        outcome
    }
}

fn empty() -> RunResults {
    RunResults {
        command: String::new(),
        arguments: Vec::new(),
        environment: Environment::default(),
        driven_by: String::new(),
        results: Vec::new(),
        warnings: Vec::new(),
        error: None,
    }
}

/// Targets on one file system compete for the same disk, and results that are written there are load too.
fn same_file_system(environment: &Environment, outputs: &[PathBuf]) -> Vec<String> {
    let mut by_mount: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for target in &environment.targets {
        by_mount.entry(&target.mount_point).or_default().push(format!("{}:{}", target.via, target.target));
    }
    let shared = by_mount.into_iter().filter(|(_, targets)| targets.len() > 1);
    let warning = |(mount_point, targets): (&str, Vec<String>)| {
        format!("{} are on one file system ({mount_point}).", targets.join(" and "))
    };
    let of_output = |output: &PathBuf| {
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let mount = mount_of(parent).ok()?;
        let target = environment.targets.iter().find(|target| target.mount_point == mount.mount_point)?;
        let (output, via, target) = (output.display(), &target.via, &target.target);
        Some(format!("{output} is on the file system of {via}:{target}."))
    };
    shared.map(warning).chain(outputs.iter().filter_map(of_output)).collect()
}
