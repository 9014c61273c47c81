//! Prometheus metrics: a few counters per run, recorded anew for each request from the runs' states. An ended run keeps
//! its series as long as the service keeps its status, so that scrapers see how it ended.

use super::run::RunStatus;
use super::shared::ServiceShared;
use metrics::{counter, describe_counter, describe_gauge, gauge};
use metrics_exporter_prometheus::PrometheusBuilder;
use std::sync::atomic::Ordering::Relaxed;

/// Name, help text, and the function that reads the value from a run's status.
type Metric<T> = (&'static str, &'static str, fn(&RunStatus) -> T);

const COUNTERS: [Metric<u64>; 9] = [
    ("varve_record_frames_taken_total", "Frames of which anything was taken into memory", |s| s.progress.taken),
    ("varve_record_frames_written_total", "Frames handed to the kernel, with their journal", |s| s.progress.written),
    ("varve_record_frames_durable_total", "Frames synced, with their journal", |s| s.progress.durable),
    (
        "varve_record_frames_dropped_total",
        "Frames, or regions of frames, dropped for want of room, or by clients",
        |s| s.dropped_frames,
    ),
    ("varve_record_frames_damaged_total", "Frames, or regions of frames, whose bytes were changed on their way", |s| {
        s.damaged
    }),
    ("varve_record_frames_duplicate_total", "Frames, or regions of frames, that came again", |s| s.duplicate),
    ("varve_record_frames_refused_total", "Frames, or regions of frames, that do not fit the run", |s| s.refused),
    ("varve_record_received_bytes_total", "Bytes of frames that this process received", |s| s.received_bytes),
    ("varve_record_stored_bytes_total", "Bytes of chunks in the file", |s| s.progress.stored_bytes),
];

const GAUGES: [Metric<f64>; 3] = [
    ("varve_record_frames_published", "One past the highest frame that readers find", |s| s.progress.published as f64),
    ("varve_record_connections", "Connections of the run's clients", |s| s.connections as f64),
    ("varve_record_failed", "1 if the run has failed, or cannot be taken up", |s| {
        f64::from(u8::from(["failed", "waiting"].contains(&s.state) || s.progress.failure.is_some()))
    }),
];

const RUNS: &str = "varve_record_runs";
const OPEN_CONNECTIONS: &str = "varve_record_open_connections";
const IMAGES_PASSED_OVER: &str = "varve_record_images_passed_over_total";
const FIELDS_UNKNOWN: &str = "varve_record_stream2_fields_unknown_total";

pub fn text(shared: &ServiceShared) -> String {
    // A recorder of this request alone: series of forgotten runs end with it.
    let recorder = PrometheusBuilder::new().build_recorder();
    metrics::with_local_recorder(&recorder, || record(shared));
    recorder.handle().render()
}

fn record(shared: &ServiceShared) {
    let runs: Vec<RunStatus> = shared.runs().iter().map(|run| run.status()).collect();
    describe_gauge!(RUNS, "Runs under way");
    gauge!(RUNS).set(runs.iter().filter(|run| run.finished.is_none()).count() as f64);
    describe_gauge!(OPEN_CONNECTIONS, "Connections of all clients");
    gauge!(OPEN_CONNECTIONS).set(shared.connections() as f64);
    describe_counter!(IMAGES_PASSED_OVER, "Images of stream2 and PVs that no run has kept");
    counter!(IMAGES_PASSED_OVER).absolute(shared.images_passed_over.load(Relaxed));
    describe_counter!(
        FIELDS_UNKNOWN,
        "Fields of stream2 that its description does not have, or that could not be kept"
    );
    counter!(FIELDS_UNKNOWN).absolute(shared.fields_unknown.load(Relaxed));
    for (name, help, value) in COUNTERS {
        describe_counter!(name, help);
        runs.iter().for_each(|run| counter!(name, "run" => run.name.clone()).absolute(value(run)));
    }
    for (name, help, value) in GAUGES {
        describe_gauge!(name, help);
        runs.iter().for_each(|run| gauge!(name, "run" => run.name.clone()).set(value(run)));
    }
}
