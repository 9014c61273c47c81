//! Prometheus metrics over HTTP, on this host only, with `/healthz` (the process answers) and `/readyz` (it serves). A
//! separate listener bounds the resources and descriptors that its clients can take from this process.

use crate::problem::{Problem, Result};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::Semaphore;
use varve_detector_service::host_check::HostCheck;
use varve_env::process_metrics;

/// Upper bounds of the latency buckets, in seconds: from the shortest request to a stuck store.
const LATENCY_BUCKETS_S: [f64; 16] =
    [10e-6, 20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 20e-3, 50e-3, 0.1, 0.5, 1.0, 10.0];
/// Prometheus uses one connection at a time. Further connections wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 16;
/// Limit of a connection, from its first byte to its last.
const DEADLINE: Duration = Duration::from_secs(10);
/// Limit of a check whether the service is ready, below that of the connection.
const READY_DEADLINE: Duration = Duration::from_secs(5);
/// Pause after a failed accept. The usual cause is a lack of descriptors, which other users free again.
const PAUSE: Duration = Duration::from_millis(200);
/// Histograms collect values since they were last rendered, also if nobody scrapes them.
const UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// A part of the metrics beside those of the recorder.
type MetricsSource = Box<dyn Fn() -> String + Send + Sync>;
/// The error is the reason why the service is not ready.
type ReadyCheck = Box<dyn Fn() -> std::result::Result<(), String> + Send + Sync>;

/// The text and the state that the endpoint serves beside the metrics of the recorder.
#[derive(Default)]
pub struct Endpoint {
    sources: Mutex<Vec<MetricsSource>>,
    ready: Mutex<Option<ReadyCheck>>,
}

impl Endpoint {
    /// Adds text to `/metrics`.
    pub fn add(&self, source: impl Fn() -> String + Send + Sync + 'static) {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(source));
    }

    /// The service has started; from now on `/readyz` asks `check`.
    pub fn started(&self, check: impl Fn() -> std::result::Result<(), String> + Send + Sync + 'static) {
        *self.ready.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(check));
    }

    fn text(&self) -> String {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let process = process_metrics::text(env!("CARGO_PKG_VERSION"));
        sources.iter().fold(process, |text, source| text + &source())
    }

    /// May wait for a server. One check runs at a time.
    fn check(&self) -> std::result::Result<(), String> {
        let Ok(ready) = self.ready.try_lock() else { return Err("an earlier check still waits".to_owned()) };
        ready.as_ref().map_or(Err("it is starting".to_owned()), |check| check())
    }

    async fn readiness(self: Arc<Self>) -> (StatusCode, String) {
        let checked = tokio::time::timeout(READY_DEADLINE, tokio::task::spawn_blocking(move || self.check()));
        let ready = match checked.await {
            Ok(Ok(ready)) => ready,
            Ok(Err(error)) => Err(format!("the check has failed: {error}")),
            Err(_) => Err(format!("no answer within {} s", READY_DEADLINE.as_secs())),
        };
        match ready {
            Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
            Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")),
        }
    }
}

/// Installs the recorder and serves `GET /metrics` at `address`. Call it before anything that counts is started.
pub fn serve(address: SocketAddr) -> Result<Arc<Endpoint>> {
    if !address.ip().is_loopback() {
        return Err(Problem::usage(format!("--metrics {address}"))
            .because("metrics are not protected, so they are served on a loopback address only")
            .next("Use 127.0.0.1:PORT, and a proxy with a password if others shall read them."));
    }
    let failed =
        |error: &dyn std::error::Error| Problem::new(format!("cannot serve metrics at {address}")).caused_by(error);
    let listener = TcpListener::bind(address).map_err(|error| failed(&error))?;
    listener.set_nonblocking(true).map_err(|error| failed(&error))?;
    let handle = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("seconds".into()), &LATENCY_BUCKETS_S)
        .and_then(PrometheusBuilder::install_recorder)
        .map_err(|error| failed(&error))?;
    varve_meta::server::describe_metrics();
    let endpoint = Arc::new(Endpoint::default());
    let served = Arc::clone(&endpoint);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| failed(&error))?;
    let serving = move || runtime.block_on(accept(listener, handle, served));
    std::thread::Builder::new().name("metrics".into()).spawn(serving).map_err(|error| failed(&error))?;
    Ok(endpoint)
}

async fn accept(listener: TcpListener, handle: PrometheusHandle, endpoint: Arc<Endpoint>) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::error!("metrics are not served: {error}"),
    };
    let upkeep = handle.clone();
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(UPKEEP_INTERVAL).await;
            upkeep.run_upkeep();
        }
    });
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let hosts = Arc::new(HostCheck::default());
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else { return };
        let (socket, local) = match listener.accept().await.and_then(|(socket, _)| Ok((socket.local_addr()?, socket))) {
            Ok((local, socket)) => (socket, local.ip()),
            Err(error) => {
                tracing::warn!("cannot accept a connection for metrics: {error}");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let (handle, hosts, endpoint) = (handle.clone(), Arc::clone(&hosts), Arc::clone(&endpoint));
        tokio::spawn(async move {
            let answer = service_fn(async |request: Request<Incoming>| {
                Ok::<_, Infallible>(answer(&request, &hosts, local, &handle, &endpoint).await)
            });
            let served = hyper::server::conn::http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(DEADLINE)
                .keep_alive(false)
                .serve_connection(TokioIo::new(socket), answer);
            match tokio::time::timeout(DEADLINE, served).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::debug!("a connection for metrics has ended: {error}"),
                Err(_) => tracing::debug!("a connection for metrics was closed after {DEADLINE:?}"),
            }
            drop(place);
        });
    }
}

async fn answer<B>(
    request: &Request<B>,
    hosts: &HostCheck,
    local: IpAddr,
    handle: &PrometheusHandle,
    endpoint: &Arc<Endpoint>,
) -> Response<Full<Bytes>> {
    let (status, text) = match hosts.check(request.uri(), request.headers(), local) {
        Err(denied) => (denied.status(), format!("{denied}\n")),
        Ok(()) if request.method() != Method::GET => {
            (StatusCode::METHOD_NOT_ALLOWED, "ask with GET for /metrics\n".to_owned())
        }
        Ok(()) => match request.uri().path() {
            "/metrics" | "/" => (StatusCode::OK, handle.render() + &endpoint.text()),
            "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => Arc::clone(endpoint).readiness().await,
            _ => (StatusCode::NOT_FOUND, "there is nothing here but /metrics, /healthz and /readyz\n".to_owned()),
        },
    };
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = status;
    let content = header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    answer.headers_mut().insert(header::CONTENT_TYPE, content);
    answer
}

#[cfg(test)]
#[path = "metrics/tests.rs"]
mod tests;
