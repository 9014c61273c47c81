//! The report of a scaling benchmark.

use super::fit::{Fit, Sample};
use super::{Phase, ScaleConfig};
use crate::report::numbers;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::time::Duration;
use varve_client::InodeInfo;

/// Columns of a plot.
const COLUMNS_MAX: usize = 60;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleReport {
    pub schema_version: u32,
    pub command: String,
    pub arguments: Vec<String>,
    pub files_per_server: u64,
    pub duration_s: f64,
    pub results: Vec<ScaleResult>,
    /// Of the rates over time by (a·S + b) / ln T, T in milliseconds; `None` for a single number of servers.
    pub fit: Option<Fit>,
}

/// The figures of one number of servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleResult {
    pub servers: usize,
    /// Acknowledged creates of both phases.
    pub files: u64,
    /// Files that the listing at the end has.
    pub found: u64,
    /// In the steady state, as the next four.
    pub ops_per_s: f64,
    pub server_cpu_us_per_op: f64,
    pub client_cpu_us_per_op: f64,
    pub calls_per_op: f64,
    /// Requests that were sent to a shard or a server that no longer has the partition.
    pub redirects: u64,
    /// Files of the directory on the fullest server, over the mean of all servers.
    pub skew: f64,
    /// Files in the fullest partition, over the mean of all partitions.
    pub partition_skew: f64,
    pub splits: usize,
    /// Processors that all servers together take while no client works. They take them while clients work too.
    pub idle_server_cpus: f64,
    /// Of the growth, splits included.
    pub growth_ops_per_s: f64,
    pub growth_server_cpu_us_per_op: f64,
    pub growth_redirects: u64,
    /// The rate of the growth: the end of each interval in seconds, and the files a second in it.
    pub timeline: Vec<Sample>,
}

pub(super) struct Measured {
    pub servers: usize,
    pub idle_cpus: f64,
    pub growth: Phase,
    pub steady: Phase,
    pub found: u64,
    pub directory: InodeInfo,
    /// The owner of each shard.
    pub owners: Vec<Option<usize>>,
    pub timeline: Vec<Sample>,
}

impl Measured {
    fn files_of_servers(&self) -> Vec<u64> {
        let mut files = vec![0; self.servers];
        for partition in &self.directory.partitions {
            let owner = self.owners.get(usize::from(partition.shard.0)).copied().flatten();
            if let Some(count) = owner.and_then(|owner| files.get_mut(owner)) {
                *count += partition.entries;
            }
        }
        files
    }
}

/// The largest over the mean.
pub(super) fn skew(counts: impl ExactSizeIterator<Item = u64> + Clone) -> f64 {
    let (largest, sum, number) = (counts.clone().max().unwrap_or(0), counts.clone().sum::<u64>(), counts.len());
    if sum == 0 { 1.0 } else { largest as f64 * number as f64 / sum as f64 }
}

fn rounded(value: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

impl ScaleResult {
    pub(super) fn of(measured: Measured) -> ScaleResult {
        let Measured { servers, growth, steady, found, directory, timeline, .. } = &measured;
        let sum = |of: fn(&super::ClientPhase) -> f64| steady.clients.iter().map(of).sum::<f64>();
        ScaleResult {
            servers: *servers,
            files: growth.operations + steady.operations,
            found: *found,
            ops_per_s: rounded(steady.ops_per_s(), 1),
            server_cpu_us_per_op: rounded(steady.server_cpu_us_per_op(), 2),
            client_cpu_us_per_op: rounded(steady.per_operation(sum(|client| client.cpu_s) * 1e6), 2),
            calls_per_op: rounded(steady.per_operation(sum(|client| client.calls as f64)), 4),
            redirects: steady.redirects(),
            skew: rounded(skew(measured.files_of_servers().into_iter()), 4),
            partition_skew: rounded(skew(directory.partitions.iter().map(|partition| partition.entries)), 4),
            splits: directory.partitions.len().saturating_sub(1),
            idle_server_cpus: rounded(measured.idle_cpus, 4),
            growth_ops_per_s: rounded(growth.ops_per_s(), 1),
            growth_server_cpu_us_per_op: rounded(growth.server_cpu_us_per_op(), 2),
            growth_redirects: growth.redirects(),
            timeline: timeline.iter().map(|(end, rate)| (rounded(*end, 3), rounded(*rate, 1))).collect(),
        }
    }
}

impl ScaleReport {
    const SCHEMA_VERSION: u32 = 1;
    const COMMAND: &str = "bench scale";

    pub(super) fn new(
        config: &ScaleConfig,
        duration: Duration,
        fit: Option<Fit>,
        results: Vec<ScaleResult>,
    ) -> ScaleReport {
        ScaleReport {
            schema_version: ScaleReport::SCHEMA_VERSION,
            command: ScaleReport::COMMAND.to_owned(),
            arguments: config.arguments.clone(),
            files_per_server: config.files_per_server,
            duration_s: rounded(duration.as_secs_f64(), 3),
            results,
            fit: fit.map(|fit| Fit { a: rounded(fit.a, 1), b: rounded(fit.b, 1), r2: rounded(fit.r2, 3) }),
        }
    }

    /// Whether the listing has every file.
    pub fn all_found(&self) -> bool {
        self.results.iter().all(|result| result.found == result.files)
    }

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a report has string keys and finite numbers")
    }

    pub fn to_text(&self) -> String {
        let mut text = format!(
            "Creates in one shared directory, as many clients as servers; {} files of each client while the directory\n\
             splits, and as many after that, in {:.0} s\n\nAfter the last split:\n",
            self.files_per_server, self.duration_s
        );
        text += "  servers      rate  server us/op  client us/op  calls/op  skew  redirects  idle servers\n";
        for result in &self.results {
            let _ = writeln!(
                text,
                "  {:7}  {:>6}/s  {:12.1}  {:12.1}  {:8.3}  {:4.2}  {:9}  {:7.1}% CPU",
                result.servers,
                numbers::short(result.ops_per_s),
                result.server_cpu_us_per_op,
                result.client_cpu_us_per_op,
                result.calls_per_op,
                result.skew,
                result.redirects,
                result.idle_server_cpus * 100.0
            );
        }
        text += "\nWhile it splits:\n";
        text += "  servers      rate  server us/op  splits  redirects\n";
        for result in &self.results {
            let _ = writeln!(
                text,
                "  {:7}  {:>6}/s  {:12.1}  {:6}  {:9}",
                result.servers,
                numbers::short(result.growth_ops_per_s),
                result.growth_server_cpu_us_per_op,
                result.splits,
                result.growth_redirects
            );
        }
        text + &self.plot() + &self.losses()
    }

    /// The rates over time, on one scale, each above its fit.
    fn plot(&self) -> String {
        let mut text = "\nRate over time while it splits:\n".to_owned();
        let highest =
            self.results.iter().flat_map(|result| &result.timeline).map(|(_, rate)| *rate).fold(0.0, f64::max);
        for result in &self.results {
            let shown = condensed(&result.timeline);
            let seconds = shown.last().map_or(0.0, |(end, _)| *end);
            let most = shown.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
            let rates = bars(shown.iter().map(|(_, rate)| *rate), highest);
            let _ =
                writeln!(text, "  {:7}  {rates}  {seconds:.1} s, at most {}/s", result.servers, numbers::short(most));
            if let Some(fit) = &self.fit {
                let fitted = bars(shown.iter().map(|(end, _)| fit.at(result.servers as f64, *end)), highest);
                let _ = writeln!(text, "      fit  {fitted}");
            }
        }
        if let Some(Fit { a, b, r2 }) = self.fit {
            let _ = writeln!(
                text,
                "\nFit: ({a:.0} x S {} {:.0}) / ln T files a second, S servers, T milliseconds; it explains {:.0}% of the \
                 variance",
                if b < 0.0 { '-' } else { '+' },
                b.abs(),
                r2.max(0.0) * 100.0
            );
        }
        text
    }

    fn losses(&self) -> String {
        let lost = self.results.iter().filter(|result| result.found != result.files);
        let line = |result: &ScaleResult| {
            format!("{} servers: {} files were created, and {} are there\n", result.servers, result.files, result.found)
        };
        let lines: String = lost.map(line).collect();
        if lines.is_empty() { "Every file was found.\n".to_owned() } else { lines }
    }
}

/// At most [`COLUMNS_MAX`] samples: the means of adjacent ones.
fn condensed(timeline: &[Sample]) -> Vec<Sample> {
    let of_each = timeline.len().div_ceil(COLUMNS_MAX).max(1);
    let mean = |samples: &[Sample]| {
        let rate = samples.iter().map(|(_, rate)| rate).sum::<f64>() / samples.len() as f64;
        (samples.last().map_or(0.0, |(end, _)| *end), rate)
    };
    timeline.chunks(of_each).map(mean).collect()
}

fn bars(rates: impl Iterator<Item = f64>, highest: f64) -> String {
    let steps = BARS.len() as f64;
    let bar =
        |rate: f64| BARS[((rate / highest.max(f64::MIN_POSITIVE) * steps).ceil() as usize).clamp(1, BARS.len()) - 1];
    rates.map(bar).collect()
}
