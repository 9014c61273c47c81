//! Counters of a run that are kept outside the writer.

use crate::records::Tallied;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters kept outside the writer.
#[derive(Debug, Default)]
pub struct Tallies {
    /// Frames that clients dropped before sending.
    pub lost: AtomicU64,
    pub damaged: AtomicU64,
    pub duplicate: AtomicU64,
    pub refused: AtomicU64,
    pub received_bytes: AtomicU64,
}

impl Tallies {
    pub(super) fn of(tallied: Tallied) -> Tallies {
        Tallies {
            lost: AtomicU64::new(tallied.lost),
            damaged: AtomicU64::new(tallied.damaged),
            duplicate: AtomicU64::new(tallied.duplicate),
            refused: AtomicU64::new(tallied.refused),
            received_bytes: AtomicU64::new(tallied.received_bytes),
        }
    }

    pub(super) fn read(&self) -> Tallied {
        let count = |counter: &AtomicU64| counter.load(Relaxed);
        Tallied {
            lost: count(&self.lost),
            damaged: count(&self.damaged),
            duplicate: count(&self.duplicate),
            refused: count(&self.refused),
            received_bytes: count(&self.received_bytes),
        }
    }
}
