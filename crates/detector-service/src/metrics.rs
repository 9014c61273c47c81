//! Prometheus metrics: a few counters per run, computed for each request. An ended run keeps its series as long as the
//! service keeps its status, so that scrapers see how it ended.

use super::run::RunStatus;
use super::shared::ServiceShared;
use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

/// Name, type, help text, and the function that reads the value from a run's status.
type Metric = (&'static str, &'static str, &'static str, fn(&RunStatus) -> f64);

const METRICS: [Metric; 12] = [
    ("frames_taken_total", "counter", "Frames of which anything was taken into memory", |s| s.progress.taken as f64),
    ("frames_written_total", "counter", "Frames handed to the kernel, with their journal", |s| {
        s.progress.written as f64
    }),
    ("frames_durable_total", "counter", "Frames synced, with their journal", |s| s.progress.durable as f64),
    ("frames_dropped_total", "counter", "Frames, or regions of frames, dropped for want of room, or by clients", |s| {
        s.dropped_frames as f64
    }),
    ("frames_damaged_total", "counter", "Frames, or regions of frames, whose bytes were changed on their way", |s| {
        s.damaged as f64
    }),
    ("frames_duplicate_total", "counter", "Frames, or regions of frames, that came again", |s| s.duplicate as f64),
    ("frames_refused_total", "counter", "Frames, or regions of frames, that do not fit the run", |s| s.refused as f64),
    ("received_bytes_total", "counter", "Bytes of frames that this process received", |s| s.received_bytes as f64),
    ("stored_bytes_total", "counter", "Bytes of chunks in the file", |s| s.progress.stored_bytes as f64),
    ("frames_published", "gauge", "One past the highest frame that readers find", |s| s.progress.published as f64),
    ("connections", "gauge", "Connections of the run's clients", |s| s.connections as f64),
    ("failed", "gauge", "1 if the run has failed, or cannot be taken up", |s| {
        f64::from(u8::from(["failed", "waiting"].contains(&s.state) || s.progress.failure.is_some()))
    }),
];

pub fn text(shared: &ServiceShared) -> String {
    let runs: Vec<RunStatus> = shared.runs().iter().map(|run| run.status()).collect();
    let running = runs.iter().filter(|run| run.finished.is_none()).count();
    let mut text = String::new();
    let mut line = |words: std::fmt::Arguments<'_>| text.write_fmt(words).expect("memory takes it");
    line(format_args!("# HELP varve_record_runs Runs under way\n# TYPE varve_record_runs gauge\n"));
    line(format_args!("varve_record_runs {running}\n"));
    line(format_args!("# HELP varve_record_open_connections Connections of all clients\n"));
    line(format_args!("# TYPE varve_record_open_connections gauge\n"));
    line(format_args!("varve_record_open_connections {}\n", shared.connections()));
    line(format_args!("# HELP varve_record_images_passed_over_total Images of stream2 that no run has kept\n"));
    line(format_args!("# TYPE varve_record_images_passed_over_total counter\n"));
    line(format_args!("varve_record_images_passed_over_total {}\n", shared.images_passed_over.load(Relaxed)));
    for (name, kind, help, value) in METRICS {
        line(format_args!("# HELP varve_record_{name} {help}\n# TYPE varve_record_{name} {kind}\n"));
        for run in &runs {
            // Names of runs contain no characters that need escaping.
            line(format_args!("varve_record_{name}{{run=\"{}\"}} {}\n", run.name, value(run)));
        }
    }
    text
}
