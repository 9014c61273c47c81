//! Operations over time: a count for each interval since the start of a phase. The interval doubles when a long phase has
//! filled all of them, so that the memory of a phase is bounded.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// A plot on a page has about so many points.
const INTERVALS_MAX: usize = 240;
/// Short enough to show a stall of a file system, long enough that the counts of a slow one are not all 0 or 1.
const FIRST_WIDTH_MS: u64 = 50;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Timeline {
    width_ms: u64,
    counts: Vec<u64>,
}

impl Default for Timeline {
    fn default() -> Timeline {
        Timeline { width_ms: FIRST_WIDTH_MS, counts: Vec::new() }
    }
}

impl Timeline {
    /// Counts `count` units that were done `at` after the start.
    pub fn record(&mut self, at: Duration, count: u64) {
        let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
        while at_ms / self.width_ms >= INTERVALS_MAX as u64 {
            self.widen();
        }
        let index = (at_ms / self.width_ms) as usize;
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        self.counts[index] += count;
    }

    fn widen(&mut self) {
        self.width_ms = self.width_ms.saturating_mul(2);
        self.counts = self.counts.chunks(2).map(|pair| pair.iter().sum()).collect();
    }

    pub fn add(&mut self, other: &Timeline) {
        let mut other = other.clone();
        while self.width_ms < other.width_ms {
            self.widen();
        }
        while other.width_ms < self.width_ms {
            other.widen();
        }
        self.counts.resize(self.counts.len().max(other.counts.len()), 0);
        self.counts.iter_mut().zip(&other.counts).for_each(|(sum, count)| *sum += count);
    }

    /// The end of each interval in seconds, and the units a second in it.
    pub fn rates(&self) -> Vec<(f64, f64)> {
        let width_s = self.width_ms as f64 / 1e3;
        let rate = |(index, count): (usize, &u64)| ((index + 1) as f64 * width_s, *count as f64 / width_s);
        self.counts.iter().enumerate().map(rate).collect()
    }

    /// Whether its form can come from [`Timeline::record`]; another process sent it.
    pub fn is_sound(&self) -> bool {
        let doublings = self.width_ms / FIRST_WIDTH_MS;
        self.width_ms.is_multiple_of(FIRST_WIDTH_MS)
            && doublings.is_power_of_two()
            && self.counts.len() <= INTERVALS_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_phases_widen_the_intervals_and_keep_the_count() {
        let mut long = Timeline::default();
        for second in 0..100 {
            long.record(Duration::from_secs(second), 3);
        }
        assert!(long.counts.len() <= INTERVALS_MAX && long.is_sound());
        assert_eq!(long.counts.iter().sum::<u64>(), 300);
        let mut short = Timeline::default();
        short.record(Duration::from_millis(20), 7);
        short.add(&long);
        assert_eq!(short.counts.iter().sum::<u64>(), 307);
        assert_eq!(short.width_ms, long.width_ms);
        let (end, rate) = short.rates()[0];
        assert!((end - short.width_ms as f64 / 1e3).abs() < 1e-9 && (rate - 10.0 / end).abs() < 1e-9);
    }
}
