//! Waiting for a message that may come soon: poll for a short time before sleeping, but only while polling succeeds.
//!
//! An idle processor takes tens of microseconds to wake, longer than many replies take. If processors are free, polling
//! is several times faster than sleeping. If they are not, polling takes processor time from the thread that must
//! reply. So every poll yields the processor to other threads, and each failed wait doubles the number of following
//! waits that sleep without polling. A waiter that finds no other thread waiting for the processor keeps it for a short
//! time.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time spent polling: about the cost of putting a processor to sleep and waking it, also in a virtual machine
/// (`docs/internals/performance-findings.md`, "Waiting and waking").
pub const SPIN_TIME: Duration = Duration::from_micros(100);

/// A yield takes less than this if no other thread wants the processor: a system call and a check of an empty run
/// queue.
const UNWANTED: Duration = Duration::from_nanos(1500);

/// Time for which a waiter keeps a processor that no other thread wanted at the last yield: many times the duration of
/// a yield.
const KEPT: Duration = Duration::from_micros(5);

/// A wait that lasts this much longer than it should has yielded the processor to another thread for a time slice.
const GIVEN_AWAY: Duration = Duration::from_micros(500);

/// Maximum number of waits without polling after repeated failures: at most one wait in 256 polls in vain, and the
/// waiter soon notices when processors become free.
const PASSED_OVER_MAX: u32 = 256;

/// Whether the waiters of this process sleep without polling.
static OFF: AtomicBool = AtomicBool::new(false);

/// Sets the spin budget of every waiter of this process to 0, for good. Benchmarks that count processor time use it,
/// because polling takes whatever time is left.
pub fn turn_off() {
    OFF.store(true, Relaxed);
}

/// The record of one waiter.
#[derive(Debug, Default)]
pub struct SpinBudget {
    /// Number of following waits that do not poll.
    pass_over: u32,
    /// Value of `pass_over` after the last failure.
    failures: u32,
}

impl SpinBudget {
    /// Begins a wait; `None`: sleep without polling.
    pub fn spin(&mut self) -> Option<SpinWait> {
        self.spin_for(SPIN_TIME)
    }

    /// As [`SpinBudget::spin`], with another duration.
    pub fn spin_for(&mut self, length: Duration) -> Option<SpinWait> {
        if OFF.load(Relaxed) {
            return None;
        }
        if self.pass_over > 0 {
            self.pass_over -= 1;
            return None;
        }
        Some(SpinWait::begin(length))
    }

    /// The message came during the poll.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The message did not come in time.
    pub fn failed(&mut self) {
        self.failures = (self.failures * 2).clamp(1, PASSED_OVER_MAX);
        self.pass_over = self.failures;
    }
}

/// A wait that polls.
#[derive(Clone, Copy, Debug)]
pub struct SpinWait {
    begun: Instant,
    length: Duration,
    /// The waiter does not yield the processor before this time.
    kept_until: Duration,
}

impl SpinWait {
    /// Begins a poll regardless of earlier results.
    pub fn begin(length: Duration) -> SpinWait {
        SpinWait { begun: Instant::now(), length, kept_until: Duration::ZERO }
    }

    /// Yields the processor, unless no other thread wanted it shortly before; `false` when the time is over.
    pub fn again(&mut self) -> bool {
        let before = self.begun.elapsed();
        if before < self.kept_until {
            std::hint::spin_loop();
            return before < self.length;
        }
        rustix::thread::sched_yield();
        let after = self.begun.elapsed();
        self.kept_until = if after - before < UNWANTED { after + KEPT } else { Duration::ZERO };
        after < self.length
    }

    /// Other threads had the processor for far longer than the poll should take. This is no success even if the message
    /// has come: a sleeping thread gets the processor back sooner than one that yielded it.
    pub fn cost_the_processor(&self) -> bool {
        self.begun.elapsed() > self.length + GIVEN_AWAY
    }
}

/// The last time of a periodic action.
#[derive(Clone, Copy, Debug)]
pub struct LastDone(Instant);

impl LastDone {
    pub fn now() -> LastDone {
        LastDone(Instant::now())
    }

    /// Whether at least `length` has passed since.
    pub fn is_past(self, length: Duration) -> bool {
        self.0.elapsed() >= length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: repeated failures reduce polling to at most one wait in 257; a success restores it.
    #[test]
    fn spinning_backs_off_after_failures() {
        let mut spin_budget = SpinBudget::default();
        let mut spins = 0;
        for _ in 0..10_000 {
            if spin_budget.spin().is_some() {
                spins += 1;
                spin_budget.failed();
            }
        }
        assert!((10_000 / 257..60).contains(&spins), "{spins} looks in vain");
        while spin_budget.spin().is_none() {}
        spin_budget.succeeded();
        assert!((0..1000).all(|_| spin_budget.spin().is_some()));
    }

    /// Promise: a poll that lost the processor for a long time is distinguished from one that did not.
    #[test]
    fn lost_time_slice_is_detected() {
        let mut spin = SpinBudget::default().spin_for(Duration::from_secs(3600)).expect("nothing has failed yet");
        assert!(spin.again() && !spin.cost_the_processor());
        let mut spin = SpinBudget::default().spin_for(Duration::ZERO).expect("nothing has failed yet");
        std::thread::sleep(GIVEN_AWAY);
        assert!(!spin.again() && spin.cost_the_processor());
    }

    /// Promise: a periodic action is due again after its interval, and not before.
    #[test]
    fn periodic_work_becomes_due_again() {
        let last = LastDone::now();
        assert!(!last.is_past(Duration::from_secs(3600)));
        std::thread::sleep(Duration::from_millis(1));
        assert!(last.is_past(Duration::from_millis(1)));
    }

    /// Promise: a poll ends.
    #[test]
    fn spin_ends_after_its_time() {
        let mut spin = SpinBudget::default().spin().expect("nothing has failed yet");
        while spin.again() {}
        assert!(spin.begun.elapsed() >= SPIN_TIME);
    }
}
