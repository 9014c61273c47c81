//! Counts and times of a log's writes, through the `metrics` facade. Without a recorder they cost two readings of the
//! clock a batch.

use std::time::Duration;

/// The handles of a process's logs, which count together.
pub(super) struct LogMetrics {
    appends: metrics::Counter,
    appended_bytes: metrics::Counter,
    append_seconds: metrics::Histogram,
    sync_seconds: metrics::Histogram,
}

impl LogMetrics {
    pub fn new() -> LogMetrics {
        LogMetrics {
            appends: metrics::counter!("varve_log_appends_total"),
            appended_bytes: metrics::counter!("varve_log_appended_bytes_total"),
            append_seconds: metrics::histogram!("varve_log_append_seconds"),
            sync_seconds: metrics::histogram!("varve_log_sync_seconds"),
        }
    }

    pub fn appended(&self, bytes: usize, took: Duration) {
        self.appends.increment(1);
        self.appended_bytes.increment(bytes as u64);
        self.append_seconds.record(took.as_secs_f64());
    }

    pub fn synced(&self, took: Duration) {
        self.sync_seconds.record(took.as_secs_f64());
    }
}
