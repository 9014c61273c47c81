//! Failed calls in the log: while a shard cannot be used, thousands of calls a second may fail for the same reason, which
//! must not fill the disk that the log is on.

use std::cell::RefCell;
use std::collections::HashMap;
use std::time::Duration;
use varve_world::clock::Moment;

/// Of each shard one failure in so long is told, and how many were not.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Default)]
pub struct Complaints(RefCell<HashMap<u16, Told>>);

struct Told {
    at: Moment,
    untold: u64,
}

impl Complaints {
    /// How many failures of `shard` were not told before this one; `None`: nor is this one.
    pub fn due(&self, shard: u16, now: Moment) -> Option<u64> {
        let mut told = self.0.borrow_mut();
        match told.get_mut(&shard) {
            Some(last) if now < last.at.after(PAUSE) => {
                last.untold += 1;
                None
            }
            last => {
                let untold = last.map_or(0, |last| last.untold);
                told.insert(shard, Told { at: now, untold: 0 });
                Some(untold)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: of each shard one failure in a while is told, with the number of those that were not.
    #[test]
    fn one_in_a_while_is_told() {
        let complaints = Complaints::default();
        let begin = Moment(Duration::ZERO);
        assert_eq!(complaints.due(3, begin), Some(0));
        for _ in 0..500 {
            assert_eq!(complaints.due(3, begin), None);
        }
        assert_eq!(complaints.due(4, begin), Some(0), "another shard has its own");
        assert_eq!(complaints.due(3, begin.after(PAUSE)), Some(500));
        assert_eq!(complaints.due(3, begin.after(PAUSE)), None);
    }
}
