//! `varve stats DIR`: the operation counts and latencies of a mount.

use crate::output::{Output, columns, table};
use crate::problem::{Exit, Problem, Result};
use crate::quantity::{Rounded, Span};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Instant;

/// Show the operations of a mount: counts, rates and latencies
#[derive(Debug, Args)]
pub struct Arguments {
    /// Directory on which the volume is mounted
    #[arg(value_name = "DIR")]
    directory: PathBuf,
    /// Show the operations of each interval, until interrupted [default: totals since the mount began, once]
    #[arg(long, short, value_name = "DURATION", value_parser = Span::of_some_length)]
    interval: Option<Span>,
    /// With --interval: exit after this many
    #[arg(long, short, value_name = "COUNT", requires = "interval")]
    count: Option<u64>,
}

/// The counters of the mount (`varve_fuse::stats`).
#[derive(Clone, Deserialize)]
struct CounterSnapshot {
    pid: u32,
    requests: u64,
    retries: u64,
    retry_causes: RetryCauses,
    reconnects: u64,
    /// File data through the mount's process. A mount of an earlier build does not count it.
    #[serde(default)]
    read_bytes: u64,
    #[serde(default)]
    written_bytes: u64,
    operations: Vec<OperationStats>,
}

/// Requests sent again, by the reason.
#[derive(Clone, Serialize, Deserialize)]
struct RetryCauses {
    moved: u64,
    not_owner: u64,
    busy: u64,
    lost: u64,
}

#[derive(Clone, Deserialize)]
struct OperationStats {
    operation: String,
    calls: u64,
    errors: u64,
    /// Of the errors, those that speak of trouble: not `ENOENT` and the like.
    #[serde(default)]
    failed: u64,
    total_ns: u64,
    /// Bucket `i` counts latencies below `2^i` microseconds that are not in an earlier one.
    latency_log2_us: Vec<u64>,
}

#[derive(Serialize)]
struct StatsOutput {
    directory: PathBuf,
    pid: u32,
    /// The interval of the counts in seconds; absent if they cover the mount's whole life.
    interval_s: Option<f64>,
    requests: u64,
    retries: u64,
    retry_causes: RetryCauses,
    reconnects: u64,
    read_bytes: u64,
    written_bytes: u64,
    operations: Vec<Rate>,
}

#[derive(Serialize)]
struct Rate {
    operation: String,
    calls: u64,
    errors: u64,
    failed: u64,
    per_s: Option<f64>,
    mean_us: f64,
    /// The median latency, rounded up to a power of two.
    p50_us: Option<u64>,
    p99_us: Option<u64>,
}

pub fn run(arguments: &Arguments, output: &Output) -> Result<Exit> {
    let Some(interval) = arguments.interval else {
        show(arguments, output, &read(arguments)?, None)?;
        return Ok(Exit::Done);
    };
    let mut before = read(arguments)?;
    let mut since = Instant::now();
    for _ in 0..arguments.count.unwrap_or(u64::MAX) {
        std::thread::sleep(interval.0);
        let now = read(arguments)?;
        let seconds = since.elapsed().as_secs_f64();
        since = Instant::now();
        if !show(arguments, output, &now, Some((&before, seconds)))? {
            break;
        }
        before = now;
    }
    Ok(Exit::Done)
}

fn read(arguments: &Arguments) -> Result<CounterSnapshot> {
    let directory = &arguments.directory;
    let failed = || Problem::new(format!("cannot read the counters of {}", directory.display()));
    let text = varve_fuse::stats(directory).map_err(|error| match error {
        varve_fuse::Error::DeadMount(_) => failed().caused_by(&error),
        _ => failed().caused_by(&error).next("Give the directory on which a volume is mounted."),
    })?;
    serde_json::from_str(&text)
        .map_err(|error| failed().caused_by(&error).next("The mount may be of another version of varve."))
}

/// Shows the counts since `before` and the seconds between. Returns `false` if nobody reads further output.
fn show(
    arguments: &Arguments,
    output: &Output,
    now: &CounterSnapshot,
    before: Option<(&CounterSnapshot, f64)>,
) -> Result<bool> {
    let earlier = before.map(|(counters, _)| counters);
    let seconds = before.map(|(_, seconds)| seconds);
    let since = |count: fn(&CounterSnapshot) -> u64| count(now).saturating_sub(earlier.map_or(0, count));
    let operations = now.operations.iter().filter_map(|operation| {
        let earlier = earlier?.operations.iter().find(|before| before.operation == operation.operation);
        rate(operation, earlier, seconds)
    });
    let totals = now.operations.iter().filter_map(|operation| rate(operation, None, seconds));
    let shown = StatsOutput {
        directory: arguments.directory.clone(),
        pid: now.pid,
        interval_s: seconds,
        requests: since(|counters| counters.requests),
        retries: since(|counters| counters.retries),
        retry_causes: RetryCauses {
            moved: since(|counters| counters.retry_causes.moved),
            not_owner: since(|counters| counters.retry_causes.not_owner),
            busy: since(|counters| counters.retry_causes.busy),
            lost: since(|counters| counters.retry_causes.lost),
        },
        reconnects: since(|counters| counters.reconnects),
        read_bytes: since(|counters| counters.read_bytes),
        written_bytes: since(|counters| counters.written_bytes),
        operations: if earlier.is_some() { operations.collect() } else { totals.collect() },
    };
    output.one_of_many("stats", &shown, text)
}

/// The figures of one operation; `None` without calls.
fn rate(now: &OperationStats, before: Option<&OperationStats>, seconds: Option<f64>) -> Option<Rate> {
    let since = |count: fn(&OperationStats) -> u64| count(now).saturating_sub(before.map_or(0, count));
    let calls = since(|operation| operation.calls);
    if calls == 0 {
        return None;
    }
    let earlier = |bucket: usize| before.and_then(|before| before.latency_log2_us.get(bucket)).copied().unwrap_or(0);
    let buckets = now.latency_log2_us.iter().enumerate();
    let latency: Vec<u64> = buckets.map(|(bucket, count)| count.saturating_sub(earlier(bucket))).collect();
    Some(Rate {
        operation: now.operation.clone(),
        calls,
        errors: since(|operation| operation.errors),
        failed: since(|operation| operation.failed),
        per_s: seconds.map(|seconds| calls as f64 / seconds),
        mean_us: since(|operation| operation.total_ns) as f64 / 1e3 / calls as f64,
        p50_us: quantile_us(&latency, 0.5),
        p99_us: quantile_us(&latency, 0.99),
    })
}

/// The latency in microseconds below which `share` of the counted calls were; `None` without calls.
fn quantile_us(latency_log2_us: &[u64], share: f64) -> Option<u64> {
    let total: u64 = latency_log2_us.iter().sum();
    let wanted = (total as f64 * share).ceil().max(1.0) as u64;
    let mut seen = 0;
    let bucket = latency_log2_us.iter().position(|count| {
        seen += count;
        seen >= wanted
    })?;
    1_u64.checked_shl(bucket as u32)
}

fn text(shown: &StatsOutput) -> String {
    let span = shown.interval_s.map_or_else(|| "since it began".to_owned(), |seconds| format!("in {seconds:.1} s"));
    let data = |bytes: u64| match shown.interval_s {
        Some(seconds) => format!("{}/s", Rounded((bytes as f64 / seconds) as u64)),
        None => Rounded(bytes).to_string(),
    };
    let RetryCauses { moved, not_owner, busy, lost } = shown.retry_causes;
    let lines = columns(&[
        ("mount", format!("{}, process {}, {span}", shown.directory.display(), shown.pid)),
        ("requests", format!("{}, {} reconnects", shown.requests, shown.reconnects)),
        (
            "sent again",
            format!("{} ({moved} moved, {not_owner} not the owner, {busy} busy, {lost} lost)", shown.retries),
        ),
        ("file data", format!("{} read, {} written", data(shown.read_bytes), data(shown.written_bytes))),
    ]);
    if shown.operations.is_empty() {
        return lines;
    }
    let rows = shown.operations.iter().map(|rate| {
        vec![
            rate.operation.clone(),
            rate.calls.to_string(),
            rate.per_s.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}")),
            rate.errors.to_string(),
            rate.failed.to_string(),
            duration(rate.mean_us),
            rate.p50_us.map_or_else(|| "-".to_owned(), |limit| format!("<{}", duration(limit as f64))),
            rate.p99_us.map_or_else(|| "-".to_owned(), |limit| format!("<{}", duration(limit as f64))),
        ]
    });
    let head = ["operation", "calls", "calls/s", "errors", "failed", "mean", "p50", "p99"];
    lines + "\n" + &table(&head, rows)
}

/// A time in microseconds with three digits and a unit.
fn duration(us: f64) -> String {
    let (value, unit) = match us {
        us if us < 1e3 => (us, "us"),
        us if us < 1e6 => (us / 1e3, "ms"),
        us => (us / 1e6, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::{duration, quantile_us};

    /// Promise: times have three digits and a unit.
    #[test]
    fn durations_have_units() {
        for (us, text) in
            [(0.5, "0.50 us"), (12.34, "12.3 us"), (512.0, "512 us"), (2048.0, "2.05 ms"), (3.2e6, "3.20 s")]
        {
            assert_eq!(duration(us), text);
        }
    }

    /// A quantile is the upper end of the bucket it falls into.
    #[test]
    fn quantiles_are_read_from_powers_of_two() {
        let latency = [0, 50, 0, 49, 0, 1];
        assert_eq!(quantile_us(&latency, 0.5), Some(2));
        assert_eq!(quantile_us(&latency, 0.99), Some(8));
        assert_eq!(quantile_us(&latency, 1.0), Some(32));
        assert_eq!(quantile_us(&[0, 0], 0.5), None);
    }
}
