//! Counters and times of calls, through the `metrics` facade. A recorder that is installed before the server starts
//! receives them; without a recorder they cost nothing. [`describe`] has all metrics of a server, `figures.rs` sets the
//! gauges, and `docs/operate/metrics.md` explains them.

mod names;

pub use names::describe;

use std::sync::Arc;
use varve_env::clock::{Clock, Instant};
use varve_proto::{Call, CallFailure, Response};

macro_rules! call_kinds {
    ($($kind:ident = $name:literal),* $(,)?) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum CallKind { $($kind),* }

        impl CallKind {
            const ALL: &[CallKind] = &[$(CallKind::$kind),*];

            pub fn of(call: &Call) -> CallKind {
                match call { $(Call::$kind { .. } => CallKind::$kind),* }
            }

            pub fn name(self) -> &'static str {
                match self { $(CallKind::$kind => $name),* }
            }
        }
    };
}

call_kinds! {
    Lookup = "lookup", Create = "create", CreateUnnamed = "create_unnamed", MakeDirectory = "make_directory",
    ReviveDirectory = "revive_directory", Unlink = "unlink",
    RemoveDirectory = "remove_directory", Rename = "rename", Link = "link", List = "list", ListNames = "list_names",
    GetDirectory = "get_directory", StatDirectory = "stat_directory", PartitionStatus = "partition_status",
    GetAttributes = "get_attributes", SetAttributes = "set_attributes", Open = "open", WriteInline = "write_inline", Promote = "promote",
    MarkSizeStale = "mark_size_stale", RecordSize = "record_size", RaiseSize = "raise_size", ReadLink = "read_link", GetXattr = "get_xattr",
    SetXattr = "set_xattr", ListXattrs = "list_xattrs", RemoveXattr = "remove_xattr", Sync = "sync",
    Release = "release", ShardStatus = "shard_status", Ping = "ping", TakeSnapshot = "take_snapshot", ReadSnapshot = "read_snapshot",
    FindNames = "find_names", ReleaseSnapshot = "release_snapshot", LocateShard = "locate_shard", MoveShard = "move_shard",
    Register = "register",
}

/// The handles of one call kind, created once: looking them up by name costs more than many calls.
struct CallMetrics {
    done: metrics::Counter,
    refused: metrics::Counter,
    failed: metrics::Counter,
    seconds: metrics::Histogram,
}

/// A call that is being timed.
pub type Timed = Option<(CallKind, Instant)>;

pub struct Metrics {
    /// Indexed by call kind; empty if nothing is measured.
    calls: Vec<CallMetrics>,
    connections: metrics::Gauge,
    received_bytes: metrics::Counter,
    sent_bytes: metrics::Counter,
    clock: Arc<dyn Clock>,
}

impl Metrics {
    /// `measure`: a recorder is installed.
    pub fn new(worker: usize, measure: bool, clock: Arc<dyn Clock>) -> Metrics {
        let worker = worker.to_string();
        let kinds = if measure { CallKind::ALL } else { &[] };
        let counter = |kind: CallKind, outcome: &'static str| metrics::counter!("varve_calls_total", "worker" => worker.clone(), "call" => kind.name(), "outcome" => outcome);
        let of = |&kind: &CallKind| CallMetrics {
            done: counter(kind, "done"),
            refused: counter(kind, "refused"),
            failed: counter(kind, "failed"),
            seconds: metrics::histogram!("varve_call_seconds", "worker" => worker.clone(), "call" => kind.name()),
        };
        Metrics {
            calls: kinds.iter().map(of).collect(),
            connections: metrics::gauge!("varve_connections", "worker" => worker.clone()),
            received_bytes: metrics::counter!("varve_received_bytes_total", "worker" => worker.clone()),
            sent_bytes: metrics::counter!("varve_sent_bytes_total", "worker" => worker),
            clock,
        }
    }

    pub fn connections(&self, count: usize) {
        self.connections.set(count as f64);
    }

    /// Counts a request that came over a socket.
    pub fn received(&self, bytes: usize) {
        self.received_bytes.increment(bytes as u64);
    }

    /// Counts a reply that goes over a socket.
    pub fn sent(&self, bytes: usize) {
        self.sent_bytes.increment(bytes as u64);
    }

    /// Whether a recorder receives what is counted.
    pub fn measures(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Starts timing one call; `None` if nothing is measured.
    pub fn begin(&self, call: &Call) -> Timed {
        (!self.calls.is_empty()).then(|| (CallKind::of(call), self.clock.monotonic()))
    }

    /// Counts and times the call that [`Metrics::begin`] started.
    pub fn end(&self, timed: Timed, outcome: Outcome) {
        let Some((kind, begin)) = timed else { return };
        let call = &self.calls[kind as usize];
        match outcome {
            Outcome::Done => call.done.increment(1),
            Outcome::Refused => call.refused.increment(1),
            Outcome::Failed => call.failed.increment(1),
        }
        call.seconds.record(self.clock.monotonic().since(begin).as_secs_f64());
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// The file system refused the call, or the client must retry or use another shard.
    Refused,
    /// The server could not execute the call.
    Failed,
}

impl Outcome {
    pub fn of(response: &Response) -> Outcome {
        match &response.result {
            Ok(_) => Outcome::Done,
            Err(CallFailure::Server { .. }) => Outcome::Failed,
            Err(_) => Outcome::Refused,
        }
    }
}
