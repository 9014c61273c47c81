//! Measurement: client threads that start together, latency histograms, medians and intervals.

mod cpu;
mod gate;
mod interval;
mod latency;
#[cfg(test)]
mod tests;
mod timeline;

pub(crate) use cpu::{cpu_seconds, cpu_seconds_of};
pub use gate::Gate;
pub use interval::{Interval, PAIRS_FOR_INTERVAL, median_interval, paired_ratios};
pub use latency::{Latencies, Percentiles};
pub use timeline::Timeline;

use serde::{Deserialize, Serialize};

/// The results of several repeats of one measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
    #[serde(default)]
    pub mean: f64,
    /// Standard deviation of the sample (n − 1); 0 for a single one.
    #[serde(default)]
    pub stddev: f64,
    /// Each repeat's value, in order.
    #[serde(default)]
    pub samples: Vec<f64>,
}

impl Spread {
    /// `None` if there are no samples.
    pub fn of(samples: &[f64]) -> Option<Spread> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let mean = sorted.iter().sum::<f64>() / sorted.len() as f64;
        let squares = sorted.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
        let stddev = if sorted.len() < 2 { 0.0 } else { (squares / (sorted.len() - 1) as f64).sqrt() };
        Some(Spread { median: median_of_sorted(&sorted), min, max, mean, stddev, samples: samples.to_vec() })
    }
}

/// The middle value, or the mean of the two middle ones.
fn median_of_sorted(sorted: &[f64]) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 }
}
