//! Prometheus metrics over HTTP, on this host alone.

use crate::problem::{Problem, Result};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use std::net::SocketAddr;

/// Upper ends of the buckets of every latency, in seconds: from the shortest request to a stuck store.
const LATENCY_BUCKETS_S: [f64; 16] =
    [10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.5, 1.0, 10.0];

/// Installs the recorder and answers `GET /metrics` at `address`. Call before anything that counts is started.
pub fn serve(address: SocketAddr) -> Result<()> {
    if !address.ip().is_loopback() {
        return Err(Problem::usage(format!("--metrics {address}"))
            .because("metrics are not protected, so they are served on a loopback address only")
            .next("Use 127.0.0.1:PORT, and a proxy with a password if others shall read them."));
    }
    let failed =
        |error: &dyn std::error::Error| Problem::new(format!("cannot serve metrics at {address}")).caused_by(error);
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("seconds".into()), &LATENCY_BUCKETS_S)
        .map_err(|error| failed(&error))?
        .with_http_listener(address)
        .install()
        .map_err(|error| failed(&error))
}
