//! `varve stats DIR`: what a mount has done, and how fast.

use crate::control::{self, OperationStats, Stats};
use crate::mount_table;
use crate::output::Output;
use crate::problem::{Exit, Problem, Result};
use crate::quantity::Span;
use clap::Args;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A mount that does not answer within this is stuck, and the user should hear of it.
const ANSWER_DEADLINE: Duration = Duration::from_secs(5);

/// Show what a mount does: rates and latencies of each operation
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory on which the volume is mounted, or anything below
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Show the rates of each interval, until interrupted [default: totals since the mount began, once]
    #[arg(long, short, value_name = "DURATION")]
    interval: Option<Span>,
    /// With --interval: end after so many
    #[arg(long, short, value_name = "COUNT", requires = "interval")]
    count: Option<u64>,
}

#[derive(Serialize)]
struct Shown {
    directory: PathBuf,
    #[serde(flatten)]
    stats: Stats,
    /// The time that the counts are of.
    interval_s: f64,
    rates: Vec<Rate>,
}

#[derive(Serialize)]
struct Rate {
    operation: String,
    calls: u64,
    errors: u64,
    per_s: f64,
    mean_us: f64,
    p50_us: Option<u64>,
    p99_us: Option<u64>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let mount = find(&arguments.directory)?;
    let ask = || {
        control::ask_stats(mount.device, ANSWER_DEADLINE).map_err(|error| {
            Problem::new(format!("the mount at {} does not answer", mount.directory.display()))
                .caused_by(&error)
                .next("It may belong to another user or another network namespace, or its process hangs.")
        })
    };
    let mut before = ask()?;
    let Some(interval) = arguments.interval else {
        let seconds = before.uptime_s;
        let rates = before.operations.iter().filter_map(|now| rate(now, None, seconds)).collect();
        return show(output, &mount.directory, before, seconds, rates);
    };
    let mut left = arguments.count.unwrap_or(u64::MAX);
    let mut asked = Instant::now();
    while left > 0 {
        std::thread::sleep(interval.0);
        let now = ask()?;
        let seconds = asked.elapsed().as_secs_f64();
        asked = Instant::now();
        let pairs = now.operations.iter().zip(&before.operations);
        let rates = pairs.filter_map(|(now, before)| rate(now, Some(before), seconds)).collect();
        before = now.clone();
        show(output, &mount.directory, now, seconds, rates)?;
        left -= 1;
    }
    Ok(Exit::Done)
}

/// The Varve mount that `path` is in.
pub fn find(path: &Path) -> Result<mount_table::Mount> {
    let failed = |error: std::io::Error| Problem::new(format!("cannot find {}", path.display())).caused_by(&error);
    let resolved = std::fs::canonicalize(path).map_err(failed)?;
    let mount = mount_table::mount_of(&resolved).map_err(failed)?;
    mount.filter(|mount| mount.file_system == mount_table::FILE_SYSTEM).ok_or_else(|| {
        Problem::new(format!("{} is not in a mounted volume", path.display()))
            .next("Mount one with: varve mount STORE DIR")
    })
}

/// What was counted since `before`; `None` where nothing was.
fn rate(now: &OperationStats, before: Option<&OperationStats>, seconds: f64) -> Option<Rate> {
    let calls = now.calls - before.map_or(0, |before| before.calls);
    if calls == 0 {
        return None;
    }
    let earlier = before.map(|before| before.latency_log2_us.clone()).unwrap_or_default();
    let earlier = earlier.into_iter().chain(std::iter::repeat(0));
    let latency: Vec<u64> = now.latency_log2_us.iter().zip(earlier).map(|(now, before)| now - before).collect();
    Some(Rate {
        operation: now.operation.clone(),
        calls,
        errors: now.errors - before.map_or(0, |before| before.errors),
        per_s: calls as f64 / seconds,
        mean_us: (now.total_ns - before.map_or(0, |before| before.total_ns)) as f64 / 1e3 / calls as f64,
        p50_us: control::quantile_us(&latency, 0.5),
        p99_us: control::quantile_us(&latency, 0.99),
    })
}

fn show(output: &Output, directory: &Path, stats: Stats, interval_s: f64, rates: Vec<Rate>) -> Result<Exit> {
    let shown = Shown { directory: directory.to_owned(), stats, interval_s, rates };
    output.result("stats", &shown, text)?;
    Ok(Exit::Done)
}

fn text(shown: &Shown) -> String {
    let mut lines = format!(
        "{} on {}, process {}: {} requests, {} sent again, {} reconnects; these {:.1} s:\n",
        shown.stats.store.display(),
        shown.directory.display(),
        shown.stats.pid,
        shown.stats.requests,
        shown.stats.retries,
        shown.stats.reconnects,
        shown.interval_s,
    );
    lines += &format!(
        "{:<12} {:>10} {:>8} {:>10} {:>10} {:>8} {:>8}\n",
        "operation", "calls", "errors", "calls/s", "mean us", "p50 us", "p99 us"
    );
    let below = |limit: Option<u64>| limit.map_or_else(|| "-".to_owned(), |limit| format!("<{limit}"));
    for rate in &shown.rates {
        lines += &format!(
            "{:<12} {:>10} {:>8} {:>10.1} {:>10.1} {:>8} {:>8}\n",
            rate.operation,
            rate.calls,
            rate.errors,
            rate.per_s,
            rate.mean_us,
            below(rate.p50_us),
            below(rate.p99_us)
        );
    }
    lines
}
