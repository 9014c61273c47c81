//! The size of all memtables of a process, counted in bytes of their logs.

use std::sync::atomic::{AtomicU64, Ordering};

/// Shared by all logs of a process. Idle shards hold nothing, so that a busy one can have a large memtable, which makes
/// fewer tables to merge. When many are busy, each keeps its part.
#[derive(Debug)]
pub struct MemtableBudget {
    held: AtomicU64,
    bytes_max: u64,
}

impl MemtableBudget {
    pub fn new(bytes_max: u64) -> MemtableBudget {
        MemtableBudget { held: AtomicU64::new(0), bytes_max }
    }

    pub fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub(super) fn is_exceeded(&self) -> bool {
        self.held() > self.bytes_max
    }

    /// Records that a log that held `before` bytes now holds `after`.
    pub(super) fn change(&self, before: u64, after: u64) {
        self.held.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
    }
}
