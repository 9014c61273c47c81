//! Time. The wall clock is shown to users and in files and may jump; the monotonic clock measures deadlines.

use std::time::{Duration, Instant as StdInstant, SystemTime, UNIX_EPOCH};
use varve_types::Timestamp;

/// A point on the monotonic clock. Its origin is arbitrary and differs between processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(pub Duration);

impl Instant {
    /// The time from `earlier` to this; zero if this is not later.
    pub fn since(self, earlier: Instant) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    pub fn after(self, wait: Duration) -> Instant {
        Instant(self.0.saturating_add(wait))
    }
}

pub trait Clock: Send + Sync + 'static {
    /// The wall clock.
    fn now(&self) -> Timestamp;

    /// The monotonic clock.
    fn monotonic(&self) -> Instant;
}

/// The clocks of the machine.
#[derive(Clone, Copy, Debug)]
pub struct RealClock {
    origin: StdInstant,
}

impl RealClock {
    pub fn new() -> RealClock {
        RealClock { origin: StdInstant::now() }
    }
}

impl Default for RealClock {
    fn default() -> Self {
        RealClock::new()
    }
}

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        timestamp(SystemTime::now())
    }

    fn monotonic(&self) -> Instant {
        Instant(self.origin.elapsed())
    }
}

/// `time` as seconds and nanoseconds since 1970, rounded down also before it.
pub fn timestamp(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp { seconds: after.as_secs() as i64, nanoseconds: after.subsec_nanos() },
        Err(error) => {
            let before = error.duration();
            match before.subsec_nanos() {
                0 => Timestamp { seconds: -(before.as_secs() as i64), nanoseconds: 0 },
                nanos => Timestamp { seconds: -(before.as_secs() as i64) - 1, nanoseconds: 1_000_000_000 - nanos },
            }
        }
    }
}

#[cfg(test)]
mod tests;
