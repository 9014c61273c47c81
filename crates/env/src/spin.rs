//! How to wait for a message that may come at once: look for it for a short while before sleeping, but only while that
//! succeeds.
//!
//! A processor that has gone idle takes tens of microseconds to wake, longer than many an answer takes. Where processors
//! are free, looking is several times faster than sleeping; where they are not, it takes them away from whoever is to
//! answer. So every look gives the processor to whoever else wants it, and looking in vain is paid for by not looking
//! the next times, twice as often each time. Who finds that nobody else wants it keeps it for a moment.

use std::time::{Duration, Instant};

/// How long one looks: about what it costs to put a processor to sleep and wake it, in a virtual machine too
/// (`docs/internals/performance-findings.md`, "Waiting and waking").
pub const SPIN_TIME: Duration = Duration::from_micros(100);

/// Giving the processor away takes less where nobody wants it: a system call and a look at an empty queue.
const UNWANTED: Duration = Duration::from_nanos(1500);

/// How long one keeps a processor that nobody else wanted a moment ago: many times as long as asking takes.
const KEPT: Duration = Duration::from_micros(5);

/// A look that takes so much longer than it should gave the processor to somebody for a time slice.
const GIVEN_AWAY: Duration = Duration::from_micros(500);

/// Waits without looking after the last of many failures: costs one look in 256 waits at most, and finds out soon when
/// processors have become free.
const PASSED_OVER_MAX: u32 = 256;

/// One waiter's experience.
#[derive(Debug, Default)]
pub struct SpinBudget {
    /// Waits to come in which it does not look.
    pass_over: u32,
    /// How many those were after the last failure.
    failures: u32,
}

impl SpinBudget {
    /// Begins a wait; `None`: to be slept through.
    pub fn spin(&mut self) -> Option<SpinWait> {
        self.spin_for(SPIN_TIME)
    }

    /// The same, for another while.
    pub fn spin_for(&mut self, length: Duration) -> Option<SpinWait> {
        if self.pass_over > 0 {
            self.pass_over -= 1;
            return None;
        }
        Some(SpinWait::begin(length))
    }

    /// What was waited for came while it looked.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// It did not come in time.
    pub fn failed(&mut self) {
        self.failures = (self.failures * 2).clamp(1, PASSED_OVER_MAX);
        self.pass_over = self.failures;
    }
}

/// A wait in which one looks.
#[derive(Clone, Copy, Debug)]
pub struct SpinWait {
    begun: Instant,
    length: Duration,
    /// The processor is given to nobody before.
    kept_until: Duration,
}

impl SpinWait {
    /// A look that does not depend on how others went.
    pub fn begin(length: Duration) -> SpinWait {
        SpinWait { begun: Instant::now(), length, kept_until: Duration::ZERO }
    }

    /// Lets others run, unless nobody wanted to a moment ago; `false` when the time is over.
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

    /// Others had the processor meanwhile, for far longer than the look should take. Even if what was looked for has come, that
    /// is no success: who sleeps gets the processor back sooner than who gave it away.
    pub fn cost_the_processor(&self) -> bool {
        self.begun.elapsed() > self.length + GIVEN_AWAY
    }
}

/// When something was done last that is to be done every so often.
#[derive(Clone, Copy, Debug)]
pub struct LastDone(Instant);

impl LastDone {
    pub fn now() -> LastDone {
        LastDone(Instant::now())
    }

    /// Whether it is `length` ago, or longer.
    pub fn is_past(self, length: Duration) -> bool {
        self.0.elapsed() >= length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: failures make looking rare, at most one in 257; a success makes it the rule again.
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

    /// Promise: a look in which the processor was another's for long is known from one that was not.
    #[test]
    fn lost_time_slice_is_detected() {
        let mut spin = SpinBudget::default().spin_for(Duration::from_secs(3600)).expect("nothing has failed yet");
        assert!(spin.again() && !spin.cost_the_processor());
        let mut spin = SpinBudget::default().spin_for(Duration::ZERO).expect("nothing has failed yet");
        std::thread::sleep(GIVEN_AWAY);
        assert!(!spin.again() && spin.cost_the_processor());
    }

    /// Promise: what was done is due again after its time, and not before.
    #[test]
    fn periodic_work_becomes_due_again() {
        let last = LastDone::now();
        assert!(!last.is_past(Duration::from_secs(3600)));
        std::thread::sleep(Duration::from_millis(1));
        assert!(last.is_past(Duration::from_millis(1)));
    }

    /// Promise: a look ends.
    #[test]
    fn spin_ends_after_its_time() {
        let mut spin = SpinBudget::default().spin().expect("nothing has failed yet");
        while spin.again() {}
        assert!(spin.begun.elapsed() >= SPIN_TIME);
    }
}
