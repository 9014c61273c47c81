//! How long a server may answer for its shards. Every reply that leaves a shard looks at this last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;
use varve_env::clock::{Clock, Instant};

/// The lease of a server that is alone on its volume.
const UNLIMITED: u64 = u64::MAX;
const ENDED: u64 = 0;

/// The lease of this server. It counts from before the renewal was begun, so that it ends here before another server
/// believes that it has ended. It may run out and be renewed later: only a kill ends it for good.
pub struct Lease {
    clock: Arc<dyn Clock>,
    /// Nanoseconds on the monotonic clock.
    until: AtomicU64,
}

impl Lease {
    /// A lease that has not begun.
    pub fn new(clock: Arc<dyn Clock>) -> Lease {
        Lease { clock, until: AtomicU64::new(ENDED) }
    }

    /// A lease that never ends, for a server that is alone: no other server takes its shards over.
    pub fn unlimited(clock: Arc<dyn Clock>) -> Lease {
        Lease { clock, until: AtomicU64::new(UNLIMITED) }
    }

    /// Whether the server may answer now.
    pub fn is_valid(&self) -> bool {
        match self.until.load(SeqCst) {
            UNLIMITED => true,
            until => nanoseconds(self.clock.monotonic()) < until,
        }
    }

    /// A renewal that was begun at `begun` has succeeded. Returns whether the lease ran all the time.
    pub fn renewed(&self, begun: Instant, lease: Duration) -> bool {
        let ran = self.is_valid();
        self.until.fetch_max(nanoseconds(begun.after(lease)), SeqCst);
        ran
    }

    /// The server was killed, or stops.
    pub fn end(&self) {
        self.until.store(ENDED, SeqCst);
    }
}

fn nanoseconds(at: Instant) -> u64 {
    // 584 years after the clock's origin.
    u64::try_from(at.0.as_nanos()).unwrap_or(UNLIMITED - 1).min(UNLIMITED - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detector::tests::ManualClock;

    const LEASE: Duration = Duration::from_secs(2);

    #[test]
    fn lease_counts_from_before_the_renewal() {
        let clock = ManualClock::new();
        let lease = Lease::new(clock.clone());
        assert!(!lease.is_valid());
        let begun = clock.monotonic();
        clock.pass(Duration::from_millis(1500));
        assert!(!lease.renewed(begun, LEASE), "the first one");
        assert!(lease.is_valid());
        clock.pass(Duration::from_millis(500));
        assert!(!lease.is_valid());
    }

    #[test]
    fn late_renewal_is_told_and_valid() {
        let clock = ManualClock::new();
        let lease = Lease::new(clock.clone());
        lease.renewed(clock.monotonic(), LEASE);
        clock.pass(LEASE / 3);
        assert!(lease.renewed(clock.monotonic(), LEASE));
        clock.pass(LEASE * 2);
        assert!(!lease.renewed(clock.monotonic(), LEASE));
        assert!(lease.is_valid());
    }

    #[test]
    fn renewal_that_took_longer_than_the_lease_gives_nothing() {
        let clock = ManualClock::new();
        let lease = Lease::new(clock.clone());
        let begun = clock.monotonic();
        clock.pass(LEASE);
        lease.renewed(begun, LEASE);
        assert!(!lease.is_valid());
    }

    #[test]
    fn ended_lease_is_not_valid() {
        let clock = ManualClock::new();
        let lease = Lease::unlimited(clock.clone());
        clock.pass(Duration::from_secs(1 << 32));
        assert!(lease.is_valid());
        lease.end();
        assert!(!lease.is_valid());
    }
}
