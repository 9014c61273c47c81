//! A rate limit for repeated errors in the log. While a store cannot be used, thousands of calls per second may fail for
//! the same reason, a peer that sends garbage may reconnect as often, and a user may repeat a call that the store refuses.
//! Their log lines must not fill the log's disk.

use crate::clock::Instant;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;
use std::time::Duration;

/// Interval in which one failure per subject is logged; the others are counted.
const PAUSE: Duration = Duration::from_secs(10);

/// Subjects that are remembered. A program has some dozens; more can come from the text or number that a peer sent.
const SUBJECTS_MAX: usize = 1024;

/// `About` is the subject of a failure.
#[derive(Debug)]
pub struct RateLimitedLog<About>(Mutex<HashMap<About, LastReport>>);

#[derive(Debug)]
struct LastReport {
    at: Instant,
    suppressed: u64,
}

/// Failures of a subject that were not logged since the last one that was. Its text is the end of a message: empty, or
/// ` (N more since the last message)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suppressed(pub u64);

impl fmt::Display for Suppressed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => Ok(()),
            more => write!(f, " ({more} more since the last message)"),
        }
    }
}

impl<About> Default for RateLimitedLog<About> {
    fn default() -> Self {
        RateLimitedLog(Mutex::default())
    }
}

impl<About: Eq + Hash> RateLimitedLog<About> {
    /// How many failures of this subject were suppressed since the last logged one; `None` if this one is suppressed
    /// too.
    pub fn due(&self, about: About, now: Instant) -> Option<Suppressed> {
        let mut reported = self.0.lock();
        let is_recent = |last: &LastReport| now < last.at.after(PAUSE);
        if let Some(last) = reported.get_mut(&about) {
            if is_recent(last) {
                last.suppressed += 1;
                return None;
            }
            return Some(Suppressed(std::mem::replace(last, LastReport { at: now, suppressed: 0 }).suppressed));
        }
        if reported.len() >= SUBJECTS_MAX {
            reported.retain(|_, last| is_recent(last));
        }
        if reported.len() >= SUBJECTS_MAX {
            return None;
        }
        reported.insert(about, LastReport { at: now, suppressed: 0 });
        Some(Suppressed(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: one failure per subject and interval is logged, with the number of suppressed ones.
    #[test]
    fn repeated_errors_are_logged_once_per_interval() {
        let error_log = RateLimitedLog::default();
        let begin = Instant(Duration::ZERO);
        assert_eq!(error_log.due("shard 3", begin), Some(Suppressed(0)));
        for _ in 0..500 {
            assert_eq!(error_log.due("shard 3", begin), None);
        }
        assert_eq!(error_log.due("connections", begin), Some(Suppressed(0)), "another thing has its own");
        assert_eq!(error_log.due("shard 3", begin.after(PAUSE)), Some(Suppressed(500)));
        assert_eq!(error_log.due("shard 3", begin.after(PAUSE)), None);
        assert_eq!(format!("failed{}{}", Suppressed(0), Suppressed(500)), "failed (500 more since the last message)");
    }

    #[test]
    fn number_of_subjects_is_limited() {
        let error_log = RateLimitedLog::default();
        let begin = Instant(Duration::ZERO);
        let logged = (0..10 * SUBJECTS_MAX).filter(|about| error_log.due(*about, begin).is_some()).count();
        assert_eq!(logged, SUBJECTS_MAX);
        assert_eq!(error_log.due(10 * SUBJECTS_MAX, begin.after(PAUSE)), Some(Suppressed(0)), "room again");
    }
}
