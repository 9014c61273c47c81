//! The workloads, a module each.

pub mod campaign;
pub mod data;
pub mod detector;
pub mod failover;
pub mod fleet;
pub mod images;
mod job;
pub mod mdtest;
pub mod mdtest_tree;
pub mod mixed;
pub mod overall;
pub mod scale;
pub mod small_files;
pub mod stream;
pub mod tree;

pub(crate) use job::{Job, RankWork, execute};

use crate::target::{BenchTarget, TargetClient, Via};
use crate::{Error, Result};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{SystemTime, UNIX_EPOCH};

/// With more client threads on one machine the figures only measure its scheduler. Each client holds a quarter of a MiB
/// of histogram per phase.
pub const CLIENTS_MAX: usize = 256;
/// More repeats add no information and would fill the report.
pub const REPEAT_MAX: u32 = 10_000;

/// The one directory of a target that holds all files of a run.
pub(crate) struct Workplace {
    pub(crate) directory: String,
}

impl Workplace {
    /// Makes the directory. Its name is unique among processes, and among runs in this process.
    pub(crate) fn make(target: &dyn BenchTarget, control: &mut dyn TargetClient) -> Result<Workplace> {
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let run = RUNS.fetch_add(1, Relaxed);
        let directory = format!("varve-bench.{}.{now_ms}.{run}", std::process::id());
        let fail = |operation, path: &str| {
            let (via, path) = (target.label(), path.to_owned());
            move |source| Error::Operation { via, operation, path, source }
        };
        control.enter("").map_err(fail("open", "its root"))?;
        control.make_directory(&directory).map_err(fail("make the directory", &directory))?;
        Ok(Workplace { directory })
    }

    /// The directory that an earlier run left for this one, or a new one of that name.
    pub(crate) fn named(
        target: &dyn BenchTarget,
        control: &mut dyn TargetClient,
        name: &str,
        create: bool,
    ) -> Result<Workplace> {
        let fail = |operation| {
            let (via, path) = (target.label(), name.to_owned());
            move |source| Error::Operation { via, operation, path, source }
        };
        if create {
            control.enter("").map_err(fail("open the directory of"))?;
            control.make_directory(name).map_err(fail("make the directory"))?;
        } else {
            control.enter(name).map_err(fail("open the directory that -C makes,"))?;
        }
        Ok(Workplace { directory: name.to_owned() })
    }

    /// Removes the directory and its contents. Keeps `outcome` unless the removal fails, because leftovers must be
    /// reported.
    pub(crate) fn remove<T>(
        self,
        target: &dyn BenchTarget,
        control: &mut dyn TargetClient,
        outcome: Result<T>,
    ) -> Result<T> {
        // After an error the old connection may be broken, so the second attempt uses a new one.
        let removed = control.remove_tree(&self.directory).or_else(|first| match target.connect() {
            Ok(mut anew) => anew.remove_tree(&self.directory),
            Err(_) => Err(first),
        });
        match removed {
            Ok(()) => outcome,
            Err(source) => {
                let first = outcome.err().map(Box::new);
                Err(Error::Leftover { via: target.label(), path: self.directory, source, first })
            }
        }
    }
}

/// Turns a panic of a client thread into an error, so that the run still cleans up.
pub(crate) fn panicked(payload: &(dyn std::any::Any + Send)) -> Error {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    Error::Panic(text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned()))
}

/// Results are identified by their targets.
fn check_each_once(targets: &[Via]) -> Result<()> {
    let twice = targets.iter().enumerate().find(|(at, via)| targets[..*at].contains(via));
    twice.map_or(Ok(()), |(_, via)| Err(Error::Usage(format!("{via} is given twice: give each target once"))))
}

fn check_clients_and_repeat(clients: &[usize], repeat: u32) -> Result<()> {
    if clients.is_empty() || clients.iter().any(|n| *n == 0 || *n > CLIENTS_MAX) {
        return Err(Error::Usage(format!("the number of clients goes from 1 to {CLIENTS_MAX}")));
    }
    if repeat == 0 || repeat > REPEAT_MAX {
        return Err(Error::Usage(format!("the number of repeats goes from 1 to {REPEAT_MAX}")));
    }
    Ok(())
}
