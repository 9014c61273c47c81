//! Space that only earlier commits refer to. A reader that opened the file before a commit may still read the metadata
//! of the commit before, so their space stays as it is for [`READER_AGE`]. Within a large file little of it is never
//! reused: a reader that holds such a file open for longer is not disturbed for nothing.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::{Duration, Instant};

/// For so long a reader finds all metadata of the commit with which it opened the file.
pub const READER_AGE: Duration = Duration::from_secs(60);
/// A copy of the file reads at least so much in a second. It reads the metadata of its commit until its end.
const COPY_BYTES_A_SECOND: u64 = 50 << 20;
/// Superseded space is reused if it exceeds this part of the file.
const FILE_PART: u64 = 32;
/// Limit for remembered ranges. Beyond it, the oldest are never reused.
const RANGES_MAX: usize = 1 << 20;

#[derive(Debug)]
pub(super) struct Superseded {
    age: Duration,
    /// When no commit referred to a range any more, oldest first.
    ranges: VecDeque<(Instant, Range<u64>)>,
    bytes: u64,
    /// End of the file.
    end: u64,
}

impl Superseded {
    pub fn new(age: Duration) -> Superseded {
        Superseded { age, ranges: VecDeque::new(), bytes: 0, end: 0 }
    }

    pub fn add(&mut self, now: Instant, ranges: impl IntoIterator<Item = Range<u64>>, end: u64) {
        self.end = end;
        for range in ranges.into_iter().filter(|range| !range.is_empty()) {
            self.bytes += range.end - range.start;
            self.ranges.push_back((now, range));
        }
        while self.ranges.len() > RANGES_MAX {
            self.pop();
        }
    }

    /// The ranges that no reader needs.
    pub fn release(&mut self, now: Instant) -> Vec<Range<u64>> {
        let age = self.age.max(Duration::from_secs(self.end / COPY_BYTES_A_SECOND));
        let mut released = Vec::new();
        while self.bytes > self.end / FILE_PART
            && self.ranges.front().is_some_and(|(since, _)| now.duration_since(*since) >= age)
        {
            released.extend(self.pop());
        }
        released
    }

    fn pop(&mut self) -> Option<Range<u64>> {
        let (_, range) = self.ranges.pop_front()?;
        self.bytes -= range.end - range.start;
        Some(range)
    }
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "the arrays have ranges as their elements")]
mod tests {
    use super::*;

    #[test]
    fn superseded_space_is_kept_for_readers() {
        let (begin, mut superseded) = (Instant::now(), Superseded::new(READER_AGE));
        let after = |seconds| begin + Duration::from_secs(seconds);
        superseded.add(begin, [100..200, 300..300], 1000);
        superseded.add(after(30), [400..450], 1000);
        assert!(superseded.release(after(59)).is_empty(), "a reader may have opened the file before");
        assert_eq!(superseded.release(after(60)), [100..200]);
        assert_eq!(superseded.release(after(95)), [400..450]);
        superseded.add(after(100), [0..10], 1 << 20);
        assert!(superseded.release(after(500)).is_empty(), "a small part of the file");
        superseded.add(after(500), [1024..66_000], 1 << 20);
        assert_eq!(superseded.release(after(559)), [0..10]);
    }

    #[test]
    fn superseded_space_outlasts_a_copy_of_a_large_file() {
        const END: u64 = 100 * COPY_BYTES_A_SECOND;
        let (begin, mut superseded) = (Instant::now(), Superseded::new(READER_AGE));
        superseded.add(begin, [0..END / 16], END);
        assert!(superseded.release(begin + Duration::from_secs(99)).is_empty(), "a copy may have 1 s to go");
        assert_eq!(superseded.release(begin + Duration::from_secs(100)), [0..END / 16]);
    }
}
