//! Ratios of two things measured in turns, with a distribution-free confidence interval.

use super::Spread;
use serde::{Deserialize, Serialize};

/// With fewer pairs there is no interval. With 10 pairs it reaches from the 2nd to the 9th ratio, at 97.9% confidence.
pub const PAIRS_FOR_INTERVAL: usize = 10;

const CONFIDENCE_MIN: f64 = 0.95;

/// Confidence interval of the median of the ratios, by the sign test: from the k-th smallest to the k-th largest ratio,
/// with the largest k that leaves 95% confidence.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    pub low: f64,
    pub high: f64,
    /// The actual confidence, at least 0.95.
    pub confidence: f64,
}

/// The ratios of the `i`-th of `these` to the `i`-th of `those`, which were measured next to each other. `None` if
/// there is no pair with a rate above 0.
pub fn paired_ratios(these: &[f64], those: &[f64]) -> Option<(Spread, Option<Interval>)> {
    let ratios: Vec<f64> = these.iter().zip(those).filter(|(_, that)| **that > 0.0).map(|(a, b)| a / b).collect();
    Some((Spread::of(&ratios)?, interval(&ratios)))
}

fn interval(ratios: &[f64]) -> Option<Interval> {
    if ratios.len() < PAIRS_FOR_INTERVAL { None } else { median_interval(ratios) }
}

/// The interval of the median of any values. `None` with fewer than six, which give no interval of 95%.
pub fn median_interval(values: &[f64]) -> Option<Interval> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (k, confidence) = (1..=sorted.len() / 2)
        .map(|k| (k, 1.0 - 2.0 * binomial_tail(sorted.len(), k - 1)))
        .take_while(|(_, confidence)| *confidence >= CONFIDENCE_MIN)
        .last()?;
    Some(Interval { low: sorted[k - 1], high: sorted[sorted.len() - k], confidence })
}

/// P(at most `k` heads in `n` tosses of a fair coin). Computed in logarithms because 0.5 to the power of some thousand
/// underflows.
fn binomial_tail(n: usize, k: usize) -> f64 {
    let mut probability = n as f64 * 0.5_f64.ln();
    let mut tail = probability.exp();
    for heads in 1..=k {
        probability += ((n - heads + 1) as f64 / heads as f64).ln();
        tail += probability.exp();
    }
    tail
}
