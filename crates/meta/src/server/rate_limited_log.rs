//! A rate limit for repeated errors in the log. While a shard cannot be used, thousands of calls per second may fail
//! for the same reason, and a peer that sends garbage may reconnect as often. Their log lines must not fill the log's
//! disk.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_types::ShardId;

/// Interval in which one failure per subject is logged; the others are counted.
const PAUSE: Duration = Duration::from_secs(10);

/// The subject of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    Shard(ShardId),
    /// Connections that are closed because of the peer's input.
    Connections,
    /// Connections that are refused or evicted because a limit is reached.
    Crowd,
}

#[derive(Default)]
pub struct RateLimitedLog(RefCell<HashMap<About, LastReport>>);

struct LastReport {
    at: Instant,
    suppressed: u64,
}

impl RateLimitedLog {
    /// How many failures of this subject were suppressed since the last logged one; `None` if this one is suppressed
    /// too.
    pub fn due(&self, about: About, now: Instant) -> Option<u64> {
        let mut reported = self.0.borrow_mut();
        match reported.get_mut(&about) {
            Some(last) if now < last.at.after(PAUSE) => {
                last.suppressed += 1;
                None
            }
            last => {
                let suppressed = last.map_or(0, |last| last.suppressed);
                reported.insert(about, LastReport { at: now, suppressed: 0 });
                Some(suppressed)
            }
        }
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
        assert_eq!(error_log.due(About::Shard(ShardId(3)), begin), Some(0));
        for _ in 0..500 {
            assert_eq!(error_log.due(About::Shard(ShardId(3)), begin), None);
        }
        assert_eq!(error_log.due(About::Connections, begin), Some(0), "another thing has its own");
        assert_eq!(error_log.due(About::Shard(ShardId(3)), begin.after(PAUSE)), Some(500));
        assert_eq!(error_log.due(About::Shard(ShardId(3)), begin.after(PAUSE)), None);
    }
}
