//! The counters of a client in Prometheus' text format, version 0.0.4. A mount serves it, and a program with the library
//! can.

use crate::counters::{Counters, LATENCY_BUCKETS, OperationCount, RetryCause};
use std::fmt::{Display, Write};

/// The text of `counters`.
pub fn of(counters: &Counters) -> String {
    let mut text = MetricsText(String::new());
    let operations: Vec<OperationCount> = counters.all().into_iter().filter(|count| count.calls > 0).collect();
    text.family("varve_operations_total", "counter", "Operations of the mount or program, by outcome");
    for count in &operations {
        let (name, OperationCount { calls, errors, failed, .. }) = (count.operation.name(), count);
        let outcomes = [("done", calls.saturating_sub(*errors)), ("refused", errors - failed), ("failed", *failed)];
        for (outcome, count) in outcomes {
            text.sample("varve_operations_total", &format!("operation=\"{name}\",outcome=\"{outcome}\""), count);
        }
    }
    text.family("varve_operation_seconds", "histogram", "Time of an operation");
    operations.iter().for_each(|count| text.latencies(count));
    text.single("varve_requests_total", "Requests sent to servers, repeated ones included", counters.requests());
    text.family("varve_request_retries_total", "counter", "Requests sent again, by cause");
    for cause in RetryCause::ALL {
        let label = format!("cause=\"{}\"", cause.name());
        text.sample("varve_request_retries_total", &label, counters.retries_for(cause));
    }
    text.single("varve_reconnects_total", "Lost servers that were found again", counters.reconnects());
    text.single(
        "varve_read_bytes_total",
        "Bytes of files read, without what the kernel reads by itself",
        counters.read_bytes(),
    );
    text.single(
        "varve_written_bytes_total",
        "Bytes of files written, without what the kernel writes by itself",
        counters.written_bytes(),
    );
    text.0
}

struct MetricsText(String);

impl MetricsText {
    // Writing to a string does not fail.

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: impl Display) {
        let _ = writeln!(self.0, "{name}{{{labels}}} {value}");
    }

    /// A counter without labels.
    fn single(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, "counter", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn latencies(&mut self, count: &OperationCount) {
        let name = count.operation.name();
        let mut below = 0;
        // The last bucket has no bound.
        for (index, calls) in count.latency.iter().enumerate().take(LATENCY_BUCKETS - 1) {
            below += calls;
            let bound = (1_u64 << index) as f64 / 1e6;
            self.sample("varve_operation_seconds_bucket", &format!("operation=\"{name}\",le=\"{bound}\""), below);
        }
        let all: u64 = count.latency.iter().sum();
        self.sample("varve_operation_seconds_bucket", &format!("operation=\"{name}\",le=\"+Inf\""), all);
        self.sample("varve_operation_seconds_sum", &format!("operation=\"{name}\""), count.total.as_secs_f64());
        self.sample("varve_operation_seconds_count", &format!("operation=\"{name}\""), all);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::{Operation, OperationOutcome};
    use std::time::Duration;

    /// Promise: ENOENT of a lookup is no failure, and the buckets of a histogram add up.
    #[test]
    fn outcomes_and_buckets_are_those_of_prometheus() {
        let counters = Counters::default();
        counters.record(Operation::Lookup, Duration::from_micros(3), OperationOutcome::Refused);
        counters.record(Operation::Lookup, Duration::from_secs(1000), OperationOutcome::Done);
        counters.read(4096);
        let text = of(&counters);
        for line in [
            "# TYPE varve_operations_total counter",
            "varve_operations_total{operation=\"lookup\",outcome=\"failed\"} 0",
            "varve_operations_total{operation=\"lookup\",outcome=\"refused\"} 1",
            "varve_operation_seconds_bucket{operation=\"lookup\",le=\"0.000004\"} 1",
            "varve_operation_seconds_bucket{operation=\"lookup\",le=\"+Inf\"} 2",
            "varve_operation_seconds_count{operation=\"lookup\"} 2",
            "varve_request_retries_total{cause=\"lost\"} 0",
            "varve_read_bytes_total 4096",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in:\n{text}");
        }
    }
}
