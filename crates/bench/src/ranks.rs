//! Ranks: the clients of a workload as threads of this process, as processes of this host, or as processes on many hosts
//! that `mpirun` or `srun` started.
//!
//! A workload is a function that runs once in each rank. It divides its work in *phases*: each phase begins at a barrier of
//! all ranks, and each rank reports its part of it ([`PhasePart`]). Rank 0's process merges the parts ([`PhaseRecord`]).
//! Entry points: [`RankContext::phase`] for a workload, [`Launcher`] for the process that drives a run, [`serve_rank`] for
//! the other processes.
//!
//! No MPI is linked. Processes on other hosts find the coordinator through a file in a directory that all hosts share, and
//! then talk to it over TCP.

mod coordinator;
mod detect;
mod greeting;
mod hearing;
mod launcher;
pub(crate) mod link;
mod message;
mod part;
mod rendezvous;
mod serve;
#[cfg(test)]
mod tests;

pub use detect::Launched;
pub use launcher::{JobOutcome, Launcher, LauncherConfig};
pub use part::{PhasePart, PhaseRecord};
pub(crate) use rendezvous::FILE_NAME as RENDEZVOUS_NAME;
pub use rendezvous::Secrets;
pub use serve::{ANSWER_VARIABLE, HUB_VARIABLE, RANK_VARIABLE, TOKEN_VARIABLE, serve_child, serve_rank};

use crate::measure::{Latencies, Timeline};
use crate::{Error, Result, interrupt};
use link::Link;
use std::time::{Duration, Instant};

/// More ranks need an MPI library's collective operations: the coordinator talks to each of them over one connection.
pub const RANKS_MAX: usize = 4096;

/// One rank of a running job.
pub struct RankContext<'a> {
    pub rank: usize,
    pub ranks: usize,
    link: &'a dyn Link,
}

impl<'a> RankContext<'a> {
    pub(crate) fn new(rank: usize, ranks: usize, link: &'a dyn Link) -> RankContext<'a> {
        RankContext { rank, ranks, link }
    }

    /// Returns when all ranks have called it.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if another rank failed.
    pub fn barrier(&self) -> Result<()> {
        interrupt::check()?;
        self.link.barrier()
    }

    /// Runs `work` as this rank's part of phase `name`, after a barrier. The part of a rank that fails is reported too, and
    /// marked as partial.
    pub fn phase(&self, name: &str, work: impl FnOnce(&mut Recorder<'_>) -> Result<()>) -> Result<()> {
        self.barrier()?;
        self.measured(name, work)
    }

    /// [`RankContext::phase`] without the barrier: the phase begins when this rank begins it.
    pub fn measured(&self, name: &str, work: impl FnOnce(&mut Recorder<'_>) -> Result<()>) -> Result<()> {
        let mut recorder = Recorder::begin(self.link);
        let result = work(&mut recorder);
        let part = recorder.finish(name, self.rank, result.is_err());
        self.link.report(part)?;
        result
    }
}

/// Records the operations of one rank in one phase.
pub struct Recorder<'a> {
    link: &'a dyn Link,
    begun: Instant,
    last: Instant,
    operations: u64,
    bytes: u64,
    latencies: Latencies,
    lateness: Latencies,
    missed: u64,
    timeline: Timeline,
    reported: u64,
}

/// Operations between two reports of progress: a report is one atomic addition.
const PROGRESS_STRIDE: u64 = 64;

impl<'a> Recorder<'a> {
    fn begin(link: &'a dyn Link) -> Recorder<'a> {
        let now = Instant::now();
        Recorder {
            link,
            begun: now,
            last: now,
            operations: 0,
            bytes: 0,
            latencies: Latencies::default(),
            lateness: Latencies::default(),
            missed: 0,
            timeline: Timeline::default(),
            reported: 0,
        }
    }

    /// One operation has ended. It began at the end of the previous one.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the run ends early.
    pub fn done(&mut self, bytes: u64) -> Result<()> {
        let now = Instant::now();
        self.ended_at(now, now - self.last, bytes)
    }

    /// One operation that began at `begun` has ended; time before it was idle.
    ///
    /// # Errors
    /// As [`Recorder::done`].
    pub fn done_since(&mut self, begun: Instant, bytes: u64) -> Result<()> {
        let now = Instant::now();
        self.ended_at(now, now - begun, bytes)
    }

    fn ended_at(&mut self, now: Instant, latency: Duration, bytes: u64) -> Result<()> {
        self.latencies.record(latency);
        self.last = now;
        self.operations += 1;
        self.bytes += bytes;
        self.timeline.record(now - self.begun, if bytes == 0 { 1 } else { bytes });
        if self.operations - self.reported >= PROGRESS_STRIDE {
            self.link.advance(self.operations - self.reported);
            self.reported = self.operations;
        }
        self.check()
    }

    /// Begins the next operation now: what the rank did since the last one is not part of it.
    pub fn skip(&mut self) {
        self.last = Instant::now();
    }

    /// A paced operation ended so long after its time. One whose successor was due already counts as missed.
    pub fn late(&mut self, lateness: Duration, missed: bool) {
        self.lateness.record(lateness);
        self.missed += u64::from(missed);
    }

    pub fn begun(&self) -> Instant {
        self.begun
    }

    /// # Errors
    /// [`Error::Interrupted`] if the run ends early.
    pub fn check(&self) -> Result<()> {
        if interrupt::raised() || self.link.is_stopped() { Err(Error::Interrupted) } else { Ok(()) }
    }

    fn finish(self, name: &str, rank: usize, partial: bool) -> PhasePart {
        self.link.advance(self.operations - self.reported);
        PhasePart {
            phase: name.to_owned(),
            rank,
            elapsed_ns: u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX),
            operations: self.operations,
            bytes: self.bytes,
            missed: self.missed,
            partial,
            latencies: self.latencies.counts(),
            lateness: self.lateness.counts(),
            timeline: self.timeline,
        }
    }
}
