//! The rate over time, and its approximation by `(a·S + b) / ln T`.
//!
//! S is the number of servers. T is the running time in milliseconds, so that its logarithm is positive and changes slowly
//! from the first interval on. Inserting into an LSM tree of n entries costs O(log n), and n grows with T; a is the rate
//! that a server adds, and b the part that does not depend on the number of servers.

use super::client::{ClientPhase, TICK};
use serde::{Deserialize, Serialize};

/// Intervals of a timeline: five ticks of the clients, or one if the run is short.
const TICKS: usize = 5;
const SHORT_S: f64 = 5.0;

/// A point of a timeline: the end of an interval in seconds, and the rate in it in files a second.
pub(super) type Sample = (f64, f64);

/// Sums up the clients, which began at the same time.
pub(super) fn timeline(clients: &[ClientPhase]) -> Vec<Sample> {
    let seconds = clients.iter().map(|client| client.seconds).fold(0.0, f64::max);
    let step = if seconds < SHORT_S { 1 } else { TICKS };
    let ticks = clients.iter().map(|client| client.ticks.len()).max().unwrap_or(0);
    let created =
        |from: usize| clients.iter().flat_map(|client| client.ticks.iter().skip(from).take(step)).sum::<u64>() as f64;
    let step_s = step as f64 * TICK.as_secs_f64();
    let mut samples: Vec<Sample> = Vec::new();
    let (mut begin, mut files) = (0.0, 0.0);
    for from in (0..ticks).step_by(step) {
        let end = (begin + step_s).min(seconds);
        files = created(from);
        // The last interval may be too short for a rate.
        if end - begin < step_s / 2.0 && !samples.is_empty() {
            break;
        }
        samples.push((end, files / (end - begin).max(f64::MIN_POSITIVE)));
        (begin, files) = (end, 0.0);
    }
    if let (Some((end, rate)), true) = (samples.last_mut(), files > 0.0) {
        *rate = (*rate * step_s + files) / (step_s + seconds - *end);
        *end = seconds;
    }
    samples
}

/// A rate at some time with some servers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    pub servers: f64,
    pub seconds: f64,
    pub rate: f64,
}

impl Point {
    /// The samples in which all clients were at work.
    pub fn before_the_first_end<'a>(
        servers: usize,
        timeline: &'a [Sample],
        clients: &[ClientPhase],
    ) -> impl Iterator<Item = Point> + use<'a> {
        let first_end = clients.iter().map(|client| client.seconds).fold(f64::INFINITY, f64::min);
        let all_work = timeline.iter().filter(move |(end, _)| *end <= first_end);
        all_work.map(move |(seconds, rate)| Point { servers: servers as f64, seconds: *seconds, rate: *rate })
    }
}

/// Least squares over the timelines of all numbers of servers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fit {
    pub a: f64,
    pub b: f64,
    /// The share of the rates' variance that the fit explains.
    pub r2: f64,
}

impl Fit {
    /// `None` if all points have the same number of servers, or there are too few of them.
    pub(super) fn of(points: &[Point]) -> Option<Fit> {
        let (mut ss, mut s, mut one, mut sy, mut y) = (0.0, 0.0, 0.0, 0.0, 0.0);
        for point in points {
            let weight = 1.0 / log_ms(point.seconds);
            let with_servers = point.servers * weight;
            ss += with_servers * with_servers;
            s += with_servers * weight;
            one += weight * weight;
            sy += with_servers * point.rate;
            y += weight * point.rate;
        }
        let determinant = ss * one - s * s;
        // Of rounding, it may be other than 0 for a single number of servers.
        if determinant <= 1e-9 * ss * one {
            return None;
        }
        let (a, b) = ((sy * one - y * s) / determinant, (ss * y - s * sy) / determinant);
        let mut fit = Fit { a, b, r2: 0.0 };
        let mean = points.iter().map(|point| point.rate).sum::<f64>() / points.len() as f64;
        let squares = |off: &dyn Fn(&Point) -> f64| points.iter().map(|point| off(point).powi(2)).sum::<f64>();
        let residual = squares(&|point| point.rate - fit.at(point.servers, point.seconds));
        let variance = squares(&|point| point.rate - mean);
        fit.r2 = if variance > 0.0 { 1.0 - residual / variance } else { 1.0 };
        Some(fit)
    }

    /// The rate with so many servers after so many seconds.
    pub fn at(&self, servers: f64, seconds: f64) -> f64 {
        (self.a * servers + self.b) / log_ms(seconds)
    }
}

/// The logarithm of the time in milliseconds. The first tick ends at 100.
fn log_ms(seconds: f64) -> f64 {
    (seconds * 1e3).max(std::f64::consts::E).ln()
}
