//! The report of a failover benchmark.

use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::time::Duration;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FailoverReport {
    pub schema_version: u32,
    pub command: String,
    pub arguments: Vec<String>,
    pub servers: usize,
    pub clients: usize,
    pub shards: usize,
    /// Files at the end.
    pub entries: u64,
    /// Operations that were acknowledged while servers were lost.
    pub operations: u64,
    /// Operations that failed. Their outcome does not count as acknowledged.
    pub failed: u64,
    /// The reason of one of those.
    pub first_failure: Option<String>,
    pub duration_s: f64,
    /// Servers that were killed.
    pub crash: LossReport,
    /// Servers that gave their shards away and left.
    pub planned: LossReport,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LossReport {
    pub kills: u32,
    /// Acknowledged changes of the whole run, losses of both kinds, that are not there at the end.
    pub lost: u64,
    pub stall_ms: Stalls,
}

/// The longest time of each loss in which a client completed no operation, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stalls {
    pub p50: f64,
    pub p99: f64,
    pub max: f64,
}

impl Stalls {
    /// Percentiles by the nearest rank.
    pub(super) fn of(stalls: &[Duration]) -> Stalls {
        let mut sorted: Vec<f64> = stalls.iter().map(|stall| (stall.as_secs_f64() * 1e4).round() / 10.0).collect();
        sorted.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * sorted.len() as f64).ceil() as usize;
            sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
        };
        Stalls { p50: at(0.5), p99: at(0.99), max: at(1.0) }
    }
}

impl FailoverReport {
    pub(super) const SCHEMA_VERSION: u32 = 1;
    pub(super) const COMMAND: &str = "bench failover";

    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a report has string keys and finite numbers")
    }

    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{} servers, {} clients, {} shards, {} files; {} operations in {:.0} s\n\n",
            self.servers, self.clients, self.shards, self.entries, self.operations, self.duration_s
        );
        text += "Longest time without an operation of a client, in milliseconds:\n";
        text += "                losses       p50       p99       max\n";
        for (name, loss) in [("killed", &self.crash), ("planned", &self.planned)] {
            let Stalls { p50, p99, max } = loss.stall_ms;
            let _ = writeln!(text, "  {name:12}  {:6}  {p50:8.1}  {p99:8.1}  {max:8.1}", loss.kills);
        }
        let _ = writeln!(
            text,
            "\nAcknowledged changes that are lost: {}\nOperations that failed: {}",
            self.crash.lost, self.failed
        );
        if let Some(reason) = &self.first_failure {
            let _ = writeln!(text, "  for example: {reason}");
        }
        text
    }
}
