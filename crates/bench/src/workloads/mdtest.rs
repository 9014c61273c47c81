//! mdtest's phases: N clients create files in one shared directory, stat them in random order, delete them in random
//! order; also with a directory a client, with content, or with directories instead of files.
//!
//! One *turn* is a pass over every target and every ceiling, one after the other. A run is `repeat` turns for each
//! number of clients, after one shorter warm-up turn, which is not counted. So the `i`-th samples of all targets come
//! from the same turn, and each ratio compares two samples of one turn.

mod pass;
mod plan;
mod profile;
#[cfg(test)]
mod tests;
mod turns;

pub use pass::PhaseOutcome;
pub(super) use plan::push_decimal;
pub use plan::{FILES_MAX, FileOrder, Phase, Plan};
pub use profile::{CounterCost, Meter, OperationProfile, OwnStages, StageProfile, Sums, counter_cost, profile, table};
pub use turns::{CeilingSeries, ContenderRole, MdtestMeasurement, PhaseSeries};

use crate::ceilings::CeilingsConfig;
use crate::environment::Environment;
use crate::interrupt::Interrupt;
use crate::progress::ProgressDisplay;
use crate::report::BenchReport;
use crate::target::Via;
use crate::{Error, Result, report};
use turns::TurnRunner;

pub struct MdtestConfig {
    /// The targets, measured in turns, in this order.
    pub via: Vec<Via>,
    /// Files (or directories) of all clients together, each pass.
    pub files: u64,
    /// Numbers of clients to measure with, one after the other.
    pub clients: Vec<usize>,
    /// How often each target is measured.
    pub repeat: u32,
    /// A directory a client instead of one for all.
    pub unique_dirs: bool,
    /// mkdir and rmdir instead of files.
    pub directories: bool,
    /// Bytes written to each file when it is created; above 0 there is a read phase too.
    pub write_bytes: usize,
    /// Files that are in the shared directory before the measurement, and stay; not counted in `files`. In the same
    /// turns, each target also measures an empty directory.
    pub prefill: u64,
    /// Run an uncounted warm-up turn with a tenth of the files.
    pub warm_up: bool,
    /// Seed of the random orders.
    pub seed: u64,
    pub ceilings: Option<CeilingsConfig>,
    /// Show progress on stderr, if that is a terminal.
    pub progress: bool,
    /// The command line, for the report.
    pub arguments: Vec<String>,
}

impl Default for MdtestConfig {
    fn default() -> MdtestConfig {
        MdtestConfig {
            via: Vec::new(),
            files: 20_000,
            clients: vec![1, 2, 8],
            repeat: 3,
            unique_dirs: false,
            directories: false,
            write_bytes: 0,
            prefill: 0,
            warm_up: true,
            seed: 1,
            ceilings: None,
            progress: true,
            arguments: Vec::new(),
        }
    }
}

/// Every client holds the content and writes it in one piece; larger files are for `bench stream`.
pub const WRITE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The warm-up pass has a tenth of the files, but at least this many a client, so that every client has run every
/// operation once.
const WARM_UP_FILES_MIN: u64 = 100;

impl MdtestConfig {
    fn check(&self) -> Result<()> {
        super::check_clients_and_repeat(&self.clients, self.repeat)?;
        super::check_each_once(&self.via)?;
        let fail = |text: String| Err(Error::Usage(text));
        if self.via.is_empty() {
            return fail("nothing to measure: give at least one --via library:STORE, mount:DIR or path:DIR".to_owned());
        }
        if self.files > FILES_MAX || self.prefill > FILES_MAX {
            return fail(format!("at most {FILES_MAX} files"));
        }
        if let Some(most) = self.clients.iter().max().filter(|most| **most as u64 > self.files) {
            return fail(format!("{} files are not enough for {most} clients: each needs one at least", self.files));
        }
        if self.write_bytes > WRITE_BYTES_MAX {
            return fail(format!("files of at most {WRITE_BYTES_MAX} bytes; use bench stream for larger ones"));
        }
        if self.directories && self.write_bytes > 0 {
            return fail("directories hold no bytes: use either --directories or --write".to_owned());
        }
        if self.unique_dirs && self.prefill > 0 {
            return fail("prefilling is for one shared directory: use either --unique-dirs or --prefill".to_owned());
        }
        Ok(())
    }

    fn phases(&self) -> Vec<Phase> {
        if self.directories {
            vec![Phase::Mkdir, Phase::Rmdir]
        } else if self.write_bytes > 0 {
            vec![Phase::Create, Phase::Stat, Phase::Read, Phase::Delete]
        } else {
            vec![Phase::Create, Phase::Stat, Phase::Delete]
        }
    }

    fn plan(&self, clients: usize, turn: u64) -> Plan {
        Plan {
            clients,
            files: self.files,
            unique_dirs: self.unique_dirs,
            stem: "mdtest",
            write_bytes: self.write_bytes,
            phases: self.phases(),
            seed: self.seed.wrapping_add(turn),
        }
    }

    fn warm_up_plan(&self, clients: usize) -> Plan {
        let files = (self.files / 10).max(WARM_UP_FILES_MIN * clients as u64).min(self.files);
        Plan { files, ..self.plan(clients, u64::MAX) }
    }

    fn prefill_plan(&self) -> Plan {
        let clients = self.clients.iter().copied().max().unwrap_or(1).min(self.prefill.max(1) as usize);
        Plan { files: self.prefill, stem: "prefill", phases: vec![Phase::Create], ..self.plan(clients, u64::MAX) }
    }

    /// Operations of the whole run, for the progress bar.
    fn operations(&self, contenders: u64, prefilled: u64) -> u64 {
        let phases = self.phases().len() as u64;
        let of_clients = |clients: &usize| {
            let warm_up = if self.warm_up { self.warm_up_plan(*clients).files } else { 0 };
            phases * (self.files * u64::from(self.repeat) + warm_up)
        };
        prefilled * self.prefill + contenders * self.clients.iter().map(of_clients).sum::<u64>()
    }
}

/// Measures and reports. All files of the run are removed, after success and after failure.
pub fn run(config: &MdtestConfig) -> Result<BenchReport> {
    config.check()?;
    let _interrupt = Interrupt::listen();
    let environment = Environment::gather(&config.via)?;
    let mut turns = TurnRunner::open(config)?;
    let progress = ProgressDisplay::new(config.progress, config.operations(turns.contenders(), turns.prefilled()));
    let measured = measure(config, &mut turns, &progress);
    let measured = turns.close(&progress, measured);
    drop(progress);
    let measured = measured?;
    Ok(report::of_mdtest(config, environment.finished(), measured))
}

fn measure(config: &MdtestConfig, turns: &mut TurnRunner, progress: &ProgressDisplay) -> Result<()> {
    if config.prefill > 0 {
        turns.prefill(&config.prefill_plan(), progress)?;
    }
    for clients in &config.clients {
        if config.warm_up {
            turns.warm_up(&config.warm_up_plan(*clients), progress)?;
        }
        for turn in 0..config.repeat {
            progress.show_line(format!("{clients} clients, turn {} of {}", turn + 1, config.repeat));
            turns.take(&config.plan(*clients, u64::from(turn)), progress)?;
        }
    }
    Ok(())
}
