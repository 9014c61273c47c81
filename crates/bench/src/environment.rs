//! The environment of a run: the facts that a reader needs to judge or reproduce its figures.

mod machine;
mod mounts;
#[cfg(test)]
mod tests;

pub use mounts::{MountInfo, mount_of};

use crate::target::Via;
use crate::{Error, Result};
use machine::CpuTimes;
pub(crate) use machine::Watch;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Environment {
    pub varve_version: String,
    /// Built without optimisation: the figures are meaningless for Varve.
    pub debug_build: bool,
    /// The start of the run, RFC 3339, UTC.
    pub date: String,
    /// The duration of the run, in seconds.
    pub duration_s: f64,
    pub host: String,
    pub kernel: String,
    pub cpu_model: String,
    /// Processors that this process may use.
    pub cpus: usize,
    pub memory_bytes: u64,
    /// The host of this virtual machine reclaims free memory, so a write to new memory measures the host.
    pub memory_taken_back: bool,
    /// Share of the processors' time that other processes used just before the run, 0 to 1.
    pub load_before: f64,
    /// Share of the processors' time that the hypervisor took during the run, 0 to 1.
    pub stolen: f64,
    /// The file system beneath each target.
    pub targets: Vec<TargetEnvironment>,
    /// Times at the start of the run; not in the report.
    #[serde(skip)]
    begun: Option<(std::time::Instant, CpuTimes)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetEnvironment {
    /// `via` and `target` of the results.
    pub via: String,
    pub target: String,
    pub filesystem: String,
    pub source: String,
    pub mount_point: String,
    pub mount_options: String,
    /// For ext3 and ext4 only: whether it has a journal.
    pub journal: Option<bool>,
}

impl Environment {
    /// Gathers the environment. Takes a quarter of a second to measure whether the machine is otherwise idle.
    pub fn gather(via: &[Via]) -> Result<Environment> {
        let load_before = machine::load_now().map_err(Error::io("cannot read /proc/stat"))?;
        let mut targets = Vec::with_capacity(via.len());
        for via in via {
            let directory = via.directory();
            let mount = mount_of(&directory).map_err(Error::io(via.to_string()))?;
            targets.push(TargetEnvironment {
                via: via.kind().to_owned(),
                target: via.place(),
                journal: mount.journal(),
                filesystem: mount.filesystem,
                source: mount.source,
                mount_point: mount.mount_point,
                mount_options: mount.options,
            });
        }
        Ok(Environment {
            varve_version: env!("CARGO_PKG_VERSION").to_owned(),
            debug_build: cfg!(debug_assertions),
            date: machine::rfc3339(SystemTime::now()),
            host: machine::host(),
            kernel: machine::kernel(),
            cpu_model: machine::cpu_model(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: machine::memory_bytes(),
            memory_taken_back: machine::is_memory_taken_back(),
            load_before,
            targets,
            begun: Some((std::time::Instant::now(), CpuTimes::now().map_err(Error::io("cannot read /proc/stat"))?)),
            ..Environment::default()
        })
    }

    /// The machine, identified by its processors: `2 × AMD EPYC`.
    pub fn machine(&self) -> String {
        format!("{} × {}", self.cpus, self.cpu_model)
    }

    /// Adds the values that are known only at the end of the run.
    pub fn finished(mut self) -> Environment {
        if let Some((begun, times)) = self.begun.take() {
            self.duration_s = (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
            self.stolen = CpuTimes::now().map_or(0.0, |now| now.stolen_since(&times));
        }
        self
    }

    /// Reasons to distrust figures of this machine and these targets, a sentence each.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.debug_build {
            warnings
                .push("This is a debug build; only a release build (cargo build --release) is worth measuring.".into());
        }
        if self.load_before > LOAD_WORTH_SAYING {
            warnings.push(format!(
                "Something else used {:.0}% of the processors just before the run.",
                self.load_before * 100.0
            ));
        }
        if self.stolen > STOLEN_WORTH_SAYING {
            warnings.push(format!("The hypervisor took {:.1}% of the processors' time.", self.stolen * 100.0));
        }
        if machine::governor().is_some_and(|governor| governor != "performance") {
            warnings.push("The processors' frequency governor is not \"performance\".".into());
        }
        if self.memory_taken_back {
            warnings.push(
                "The host of this virtual machine reclaims free memory, and faulting it in again costs several times \
                 as much as writing to it; to turn this off until the next boot, run as root: `echo 11 > \
                 /sys/module/page_reporting/parameters/page_reporting_order`."
                    .into(),
            );
        }
        for target in self.targets.iter().filter(|target| target.journal == Some(false)) {
            warnings.push(format!(
                "{}:{} is on an ext4 without a journal ({}), which creates files several times slower after a mass delete; \
                 use a fresh XFS or journaled ext4.",
                target.via, target.target, target.source
            ));
        }
        warnings
    }
}

/// A tenth of a processor changes a rate by about as much as its own noise.
const LOAD_WORTH_SAYING: f64 = 0.10;
const STOLEN_WORTH_SAYING: f64 = 0.02;
