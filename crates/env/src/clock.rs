//! Time. The wall clock is shown to users and in files and may jump; the monotonic clock measures deadlines and leases.

use rustix::time::{ClockId, clock_gettime};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use varve_types::Timestamp;

/// A point on the monotonic clock. Its origin is the host's boot, so points of different hosts must not be compared:
/// only durations are.
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
#[derive(Clone, Copy, Debug, Default)]
pub struct RealClock;

impl RealClock {
    pub fn new() -> RealClock {
        RealClock
    }
}

impl Clock for RealClock {
    fn now(&self) -> Timestamp {
        timestamp(SystemTime::now())
    }

    /// CLOCK_BOOTTIME, which also counts while the machine is suspended: a lease or session that ended meanwhile must
    /// not look valid to its holder, while other hosts count on. The kernel serves it without a system call, as it does
    /// CLOCK_MONOTONIC.
    fn monotonic(&self) -> Instant {
        let time = clock_gettime(ClockId::Boottime);
        Instant(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
    }
}

/// Seconds by which the wall clock of this process is ahead of the other clock that shows `other`; negative if behind.
pub fn seconds_ahead(own: Timestamp, other: Timestamp) -> i64 {
    let nanos = |time: Timestamp| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds);
    ((nanos(own) - nanos(other)) / 1_000_000_000) as i64
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

/// The inverse of [`timestamp`]. Saturates at the range of the platform's clock, which is that of Linux's timespec.
pub fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let seconds = if time.seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    let seconds = seconds.unwrap_or(UNIX_EPOCH);
    seconds.checked_add(Duration::from_nanos(time.nanoseconds.into())).unwrap_or(seconds)
}

#[cfg(test)]
mod tests;
