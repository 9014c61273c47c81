//! Latencies of single operations, kept in a histogram of three significant digits (about 200 KiB a client and phase,
//! some nanoseconds a record).

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// The upper limit of the histogram; longer operations are recorded with this value.
const LONGEST: Duration = Duration::from_secs(120);
const DIGITS: u8 = 3;

#[derive(Clone, Debug)]
pub struct Latencies {
    nanoseconds: Histogram<u64>,
}

/// Percentiles in microseconds, and the slowest operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Percentiles {
    pub p50: f64,
    pub p99: f64,
    pub p999: f64,
    #[serde(default)]
    pub max: f64,
    #[serde(default)]
    pub mean: f64,
}

impl Default for Latencies {
    fn default() -> Latencies {
        let nanoseconds = Histogram::new_with_bounds(1, LONGEST.as_nanos() as u64, DIGITS)
            .expect("bounds and digits are constants within hdrhistogram's limits");
        Latencies { nanoseconds }
    }
}

impl Latencies {
    pub fn record(&mut self, latency: Duration) {
        self.nanoseconds.saturating_record(latency.as_nanos() as u64);
    }

    pub fn add(&mut self, other: &Latencies) {
        self.nanoseconds.add(&other.nanoseconds).expect("all histograms here have the same bounds");
    }

    /// Nanoseconds and how often, for another process.
    pub fn counts(&self) -> Vec<(u64, u64)> {
        let recorded = self.nanoseconds.iter_recorded();
        recorded.map(|value| (value.value_iterated_to(), value.count_at_value())).collect()
    }

    /// The histogram of [`Latencies::counts`].
    pub fn of_counts(counts: &[(u64, u64)]) -> Latencies {
        let mut latencies = Latencies::default();
        for (nanoseconds, count) in counts {
            latencies.nanoseconds.saturating_record_n(*nanoseconds, *count);
        }
        latencies
    }

    pub fn count(&self) -> u64 {
        self.nanoseconds.len()
    }

    /// All zero if nothing was recorded.
    pub fn percentiles(&self) -> Percentiles {
        if self.nanoseconds.is_empty() {
            return Percentiles::default();
        }
        let at = |quantile| microseconds(self.nanoseconds.value_at_quantile(quantile) as f64);
        Percentiles {
            p50: at(0.50),
            p99: at(0.99),
            p999: at(0.999),
            max: microseconds(self.nanoseconds.max() as f64),
            mean: microseconds(self.nanoseconds.mean()),
        }
    }
}

/// Nanoseconds as microseconds to two decimals: finer than a clock read.
fn microseconds(nanoseconds: f64) -> f64 {
    (nanoseconds / 10.0).round() / 100.0
}
