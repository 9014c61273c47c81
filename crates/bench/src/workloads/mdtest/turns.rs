//! Turns: every contender (a target or a ceiling) runs the same plan, one after the other.

use super::pass::{self, PhaseOutcome};
use super::{MdtestConfig, Phase, Plan};
use crate::ceilings::{self, MountedNull, request_reply};
use crate::measure::Latencies;
use crate::progress::ProgressDisplay;
use crate::target::{self, BenchTarget, DirectoryTarget, TargetClient, Via};
use crate::workloads::Workplace;
use crate::{Error, Result, interrupt};

/// The role of a contender in the report.
#[derive(Clone, Debug, PartialEq)]
pub enum ContenderRole {
    Target(Via),
    /// The name of a ceiling that runs the same phases.
    Ceiling(&'static str),
    /// The same target with an empty directory, beside the prefilled one.
    Empty(Via),
}

/// The samples of one phase with one number of clients.
pub struct PhaseSeries {
    pub clients: usize,
    pub phase: Phase,
    /// Operations a second, one sample per turn.
    pub per_second: Vec<f64>,
    /// The shortest pass, in seconds. Very short passes give unreliable figures.
    pub shortest_s: f64,
    pub latencies: Latencies,
}

/// Samples of a ceiling that has no phases.
pub struct CeilingSeries {
    pub name: &'static str,
    pub clients: usize,
    pub per_second: Vec<f64>,
}

/// All results of the measurement.
pub struct MdtestMeasurement {
    pub contenders: Vec<(ContenderRole, Vec<PhaseSeries>)>,
    pub ceilings: Vec<CeilingSeries>,
}

struct Contender {
    role: ContenderRole,
    target: Box<dyn BenchTarget>,
    /// Makes and removes directories; measures nothing.
    control: Box<dyn TargetClient>,
    workplace: Workplace,
    /// Whether its passes run in the prefilled directory.
    prefilled: bool,
    passes: u64,
    series: Vec<PhaseSeries>,
}

pub(super) struct TurnRunner<'a> {
    config: &'a MdtestConfig,
    contenders: Vec<Contender>,
    ceilings: Vec<CeilingSeries>,
    null: Option<MountedNull>,
}

impl<'a> TurnRunner<'a> {
    pub(super) fn open(config: &'a MdtestConfig) -> Result<TurnRunner<'a>> {
        let mut turns = TurnRunner { config, contenders: Vec::new(), ceilings: Vec::new(), null: None };
        match turns.open_all() {
            Ok(()) => Ok(turns),
            // Contenders opened before the failed one have made their working directories already.
            Err(error) => turns.clean(Err(error)),
        }
    }

    fn open_all(&mut self) -> Result<()> {
        for via in &self.config.via {
            self.add(ContenderRole::Target(via.clone()), target::open(via)?)?;
            if self.config.prefill > 0 {
                self.add(ContenderRole::Empty(via.clone()), target::open(via)?)?;
            }
        }
        let Some(ceilings) = &self.config.ceilings else {
            return Ok(());
        };
        if let Some(null) = &ceilings.null_fuse {
            let null = self.null.insert(MountedNull::mount(&**null)?);
            let target = DirectoryTarget::open(ceilings::NULL_FUSE, null.directory())?;
            self.add(ContenderRole::Ceiling(ceilings::NULL_FUSE), Box::new(target))?;
        }
        if let Some(directory) = ceilings::store::directory(ceilings, &self.config.via) {
            let target = DirectoryTarget::open(ceilings::STORE, &directory)?;
            self.add(ContenderRole::Ceiling(ceilings::STORE), Box::new(target))?;
        }
        Ok(())
    }

    fn add(&mut self, role: ContenderRole, target: Box<dyn BenchTarget>) -> Result<()> {
        let mut control = target.connect()?;
        let workplace = Workplace::make(&*target, &mut *control)?;
        let prefilled = self.config.prefill > 0 && !matches!(role, ContenderRole::Empty(_));
        self.contenders.push(Contender { role, target, control, workplace, prefilled, passes: 0, series: Vec::new() });
        Ok(())
    }

    pub(super) fn contenders(&self) -> u64 {
        self.contenders.len() as u64
    }

    pub(super) fn prefilled(&self) -> u64 {
        self.contenders.iter().filter(|contender| contender.prefilled).count() as u64
    }

    /// Fills the directory that all later passes share.
    pub(super) fn prefill(&mut self, plan: &Plan, progress: &ProgressDisplay) -> Result<()> {
        for contender in self.contenders.iter_mut().filter(|contender| contender.prefilled) {
            progress.show_line(format!("prefilling {}", contender.target.label()));
            contender.make_directories(PREFILLED, plan)?;
            let directory = format!("{}/{PREFILLED}", contender.workplace.directory);
            pass::run(&*contender.target, &directory, plan, progress)?;
        }
        Ok(())
    }

    pub(super) fn warm_up(&mut self, plan: &Plan, progress: &ProgressDisplay) -> Result<()> {
        for contender in &mut self.contenders {
            progress.show_line(format!("warming up {} with {} clients", contender.target.label(), plan.clients));
            contender.pass(plan, progress)?;
        }
        Ok(())
    }

    /// One counted turn.
    pub(super) fn take(&mut self, plan: &Plan, progress: &ProgressDisplay) -> Result<()> {
        for contender in &mut self.contenders {
            let outcomes = contender.pass(plan, progress)?;
            for outcome in outcomes {
                contender.keep(plan.clients, outcome);
            }
        }
        let Some(ceilings) = &self.config.ceilings else {
            return Ok(());
        };
        if ceilings.request_reply {
            for (name, per_second) in request_reply::measure(plan.clients, ceilings.workers)? {
                self.keep_ceiling(name, plan.clients, per_second);
            }
        }
        if let Some(directory) = ceilings::store::fsync_directory(ceilings, &self.config.via) {
            let per_second = ceilings::store::fsyncs_per_second(&directory)?;
            self.keep_ceiling(ceilings::STORE_FSYNC, 1, per_second);
        }
        interrupt::check()
    }

    fn keep_ceiling(&mut self, name: &'static str, clients: usize, per_second: f64) {
        match self.ceilings.iter_mut().find(|series| series.name == name && series.clients == clients) {
            Some(series) => series.per_second.push(per_second),
            None => self.ceilings.push(CeilingSeries { name, clients, per_second: vec![per_second] }),
        }
    }

    /// Removes all files of the run and returns the measurement.
    pub(super) fn close(mut self, progress: &ProgressDisplay, outcome: Result<()>) -> Result<MdtestMeasurement> {
        progress.show_line("removing the created files".to_owned());
        let ceilings = std::mem::take(&mut self.ceilings);
        let mut contenders = Vec::new();
        for contender in &mut self.contenders {
            contenders.push((contender.role.clone(), std::mem::take(&mut contender.series)));
        }
        self.clean(outcome)?;
        Ok(MdtestMeasurement { contenders, ceilings })
    }

    /// Keeps `outcome` unless something is left behind.
    fn clean<T>(self, mut outcome: Result<T>) -> Result<T> {
        for Contender { target, mut control, workplace, .. } in self.contenders {
            outcome = workplace.remove(&*target, &mut *control, outcome);
        }
        // Unmounted last: no client holds a descriptor in it any more.
        let unmounted = self.null.map_or(Ok(()), MountedNull::unmount);
        outcome.and_then(|value| unmounted.map(|()| value))
    }
}

/// The directory that is filled once and kept until the end.
const PREFILLED: &str = "prefilled";

impl Contender {
    fn make_directories(&mut self, directory: &str, plan: &Plan) -> Result<()> {
        let Contender { target, control, workplace, .. } = self;
        let mut make = || {
            control.enter(&workplace.directory)?;
            control.make_directory(directory)?;
            control.enter(&format!("{}/{directory}", workplace.directory))?;
            plan.directories().iter().try_for_each(|name| control.make_directory(name))
        };
        make().map_err(|source| Error::Operation {
            via: target.label(),
            operation: "make directories in",
            path: format!("{}/{directory}", workplace.directory),
            source,
        })
    }

    /// Runs a pass in a new directory, which is removed afterwards, or in the prefilled one.
    fn pass(&mut self, plan: &Plan, progress: &ProgressDisplay) -> Result<Vec<PhaseOutcome>> {
        if self.prefilled {
            let directory = format!("{}/{PREFILLED}", self.workplace.directory);
            return pass::run(&*self.target, &directory, plan, progress);
        }
        self.passes += 1;
        let name = format!("pass.{}", self.passes);
        self.make_directories(&name, plan)?;
        let directory = format!("{}/{name}", self.workplace.directory);
        let outcomes = pass::run(&*self.target, &directory, plan, progress)?;
        let removed = self.control.remove_tree(&directory);
        removed.map_err(|source| Error::Operation {
            via: self.target.label(),
            operation: "remove",
            path: directory,
            source,
        })?;
        Ok(outcomes)
    }

    fn keep(&mut self, clients: usize, outcome: PhaseOutcome) {
        let per_second = outcome.per_second();
        let seconds = outcome.elapsed.as_secs_f64();
        match self.series.iter_mut().find(|series| series.clients == clients && series.phase == outcome.phase) {
            Some(series) => {
                series.per_second.push(per_second);
                series.shortest_s = series.shortest_s.min(seconds);
                series.latencies.add(&outcome.latencies);
            }
            None => self.series.push(PhaseSeries {
                clients,
                phase: outcome.phase,
                per_second: vec![per_second],
                shortest_s: seconds,
                latencies: outcome.latencies,
            }),
        }
    }
}
