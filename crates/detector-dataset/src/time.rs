//! Times as files and messages have them.

use varve_env::clock::{Clock, RealClock};

/// Nanoseconds since 1970.
pub type Nanoseconds = u64;

/// The current time.
pub fn unix_nanos() -> Nanoseconds {
    let now = RealClock::new().now();
    u64::try_from(now.seconds).unwrap_or(0) * 1_000_000_000 + u64::from(now.nanoseconds)
}
