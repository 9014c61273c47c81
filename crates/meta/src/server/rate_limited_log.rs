//! What goes wrong again and again, in the log: while a shard cannot be used, thousands of calls a second may fail for the
//! same reason, and who sends garbage comes back as often, which must not fill the disk that the log is on.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_types::ShardId;

/// About each thing one failure in so long is told, and how many were not.
const PAUSE: Duration = Duration::from_secs(10);

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    Shard(ShardId),
    /// Connections that are closed for what came over them.
    Connections,
    /// Connections for which there is no room, or is not any more.
    Crowd,
}

#[derive(Default)]
pub struct RateLimitedLog(RefCell<HashMap<About, LastReport>>);

struct LastReport {
    at: Instant,
    untold: u64,
}

impl RateLimitedLog {
    /// How many failures of this were not told before this one; `None`: nor is this one.
    pub fn due(&self, about: About, now: Instant) -> Option<u64> {
        let mut reported = self.0.borrow_mut();
        match reported.get_mut(&about) {
            Some(last) if now < last.at.after(PAUSE) => {
                last.untold += 1;
                None
            }
            last => {
                let untold = last.map_or(0, |last| last.untold);
                reported.insert(about, LastReport { at: now, untold: 0 });
                Some(untold)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: about each thing one failure in a while is told, with the number of those that were not.
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
