//! One rank's part of a phase, and the phase of all ranks.

use crate::measure::{Latencies, Timeline};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The work of one rank in one phase, as it travels between processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PhasePart {
    pub phase: String,
    pub rank: usize,
    /// From the release of the barrier to the end of the rank's last operation.
    pub elapsed_ns: u64,
    pub operations: u64,
    pub bytes: u64,
    /// Paced operations whose successors were due before they ended.
    pub missed: u64,
    /// The rank failed, or was stopped, before its end.
    pub partial: bool,
    /// Nanoseconds and how often.
    pub latencies: Vec<(u64, u64)>,
    pub lateness: Vec<(u64, u64)>,
    pub timeline: Timeline,
}

/// One phase of all ranks.
#[derive(Clone)]
pub struct PhaseRecord {
    pub phase: String,
    pub ranks: usize,
    pub operations: u64,
    pub bytes: u64,
    /// When the first rank and when the last one was done, from the release of the barrier.
    pub first_done: Duration,
    pub last_done: Duration,
    pub missed: u64,
    pub partial: bool,
    pub latencies: Latencies,
    pub lateness: Latencies,
    pub timeline: Timeline,
}

impl PhaseRecord {
    /// The phases of a job, in the order in which their first parts arrived. Where the job `failed`, a phase that not all of
    /// its `ranks` reported is partial.
    pub fn merge(parts: &[PhasePart], ranks: usize, failed: bool) -> Vec<PhaseRecord> {
        let mut records: Vec<PhaseRecord> = Vec::new();
        for part in parts {
            match records.iter_mut().find(|record| record.phase == part.phase) {
                Some(record) => record.add(part),
                None => records.push(PhaseRecord::of(part)),
            }
        }
        for record in &mut records {
            record.partial |= failed && record.ranks < ranks;
        }
        records
    }

    fn of(part: &PhasePart) -> PhaseRecord {
        let elapsed = Duration::from_nanos(part.elapsed_ns);
        PhaseRecord {
            phase: part.phase.clone(),
            ranks: 1,
            operations: part.operations,
            bytes: part.bytes,
            first_done: elapsed,
            last_done: elapsed,
            missed: part.missed,
            partial: part.partial,
            latencies: Latencies::of_counts(&part.latencies),
            lateness: Latencies::of_counts(&part.lateness),
            timeline: part.timeline.clone(),
        }
    }

    fn add(&mut self, part: &PhasePart) {
        let other = PhaseRecord::of(part);
        self.ranks += 1;
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.first_done = self.first_done.min(other.first_done);
        self.last_done = self.last_done.max(other.last_done);
        self.missed += other.missed;
        self.partial |= other.partial;
        self.latencies.add(&other.latencies);
        self.lateness.add(&other.lateness);
        self.timeline.add(&other.timeline);
    }

    pub fn seconds(&self) -> f64 {
        self.last_done.as_secs_f64().max(1e-9)
    }
}
