//! The requests of the control interface.
//!
//! Every request must name this host ([`crate::host_check`]), and every request except the one for the description must
//! present the token: [`admit`] checks both before anything else. [`complete`] then reads the rest of the request within
//! its limits. Only requests that passed both reach a handler.

use super::connection_slots::{ANSWERING_MAX, ConnectionSlot, HEAD_WAIT};
use super::http_error::HttpError;
use super::watch::{WatchRequest, latest};
use crate::metrics;
use crate::records::EndKind;
use crate::request::StartRequest;
use crate::run::{Run, RunStatus};
use crate::shared::ServiceShared;
use crate::tries;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use varve_detector_stream::ErrorCode;
use varve_detector_stream::hello::check_run_name;
use varve_env::process_metrics;

const DESCRIPTION_PATH: &str = "/openapi.json";
pub const OPENAPI: &str = include_str!("../../../../docs/record-service.openapi.json");
/// Same limit as for the head of a HELLO, which may contain the same request.
const BODY_BYTES_MAX: usize = 1 << 20;
/// Limit for a request with arrays: masks and flatfields of the largest detectors, compressed.
const LARGE_BODY_BYTES_MAX: usize = 256 << 20;
/// Time for the body of such a request.
const LARGE_BODY_WAIT: Duration = Duration::from_secs(120);
/// Such requests are read one at a time, which bounds the memory for them.
static LARGE_BODY: Semaphore = Semaphore::const_new(1);

/// The service, and one connection to it.
#[derive(Clone)]
pub struct HttpPeer {
    pub shared: Arc<ServiceShared>,
    pub local: IpAddr,
    pub address: SocketAddr,
    pub place: Arc<ConnectionSlot>,
}

type Answer<T> = Result<T, HttpError>;

pub fn router(peer: HttpPeer) -> Router {
    let description = || async { ([(header::CONTENT_TYPE, "application/json")], OPENAPI) };
    Router::new()
        .route("/runs", get(list).post(begin))
        .route("/runs/{name}", get(status))
        .route("/runs/{name}/latest", get(watch))
        .route("/runs/{name}/stop", post(stop))
        .route("/runs/{name}/abort", post(abort))
        .route("/metrics", get(metrics))
        .fallback(unserved)
        .method_not_allowed_fallback(unserved)
        .layer(from_fn_with_state(peer.clone(), complete))
        .route(DESCRIPTION_PATH, get(description).fallback(unserved))
        .layer(from_fn_with_state(peer.clone(), admit))
        .with_state(peer)
}

/// Checks host and token.
async fn admit(State(peer): State<HttpPeer>, request: Request, next: Next) -> Answer<Response> {
    peer.shared.hosts.check(request.uri(), request.headers(), peer.local)?;
    let is_public = request.method() == Method::GET && request.uri().path() == DESCRIPTION_PATH;
    if !is_public && let Err(refusal) = peer.shared.check_token(token(request.headers())) {
        peer.shared.tries.add(&peer.address, request.uri().path());
        tokio::time::sleep(tries::DELAY).await;
        return Err(refusal.into());
    }
    Ok(next.run(request).await)
}

fn token(headers: &HeaderMap) -> &str {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or("")
}

/// Reads the request to its end, checks the run's name, and limits the requests in progress.
async fn complete(State(peer): State<HttpPeer>, request: Request, next: Next) -> Answer<Response> {
    check_name(request.uri().path())?;
    let bytes = request.body().size_hint().lower();
    let (head, body) = request.into_parts();
    let is_start = head.method == Method::POST && head.uri.path() == "/runs";
    let limit = if is_start { LARGE_BODY_BYTES_MAX } else { BODY_BYTES_MAX };
    if bytes > limit as u64 {
        return Err(too_large(limit));
    }
    // A body without a length is a small one.
    let _one_at_a_time = match bytes > BODY_BYTES_MAX as u64 {
        true => LARGE_BODY.acquire().await.ok(),
        false => None,
    };
    let (limit, wait) = match bytes > BODY_BYTES_MAX as u64 {
        true => (LARGE_BODY_BYTES_MAX, LARGE_BODY_WAIT),
        false => (BODY_BYTES_MAX, HEAD_WAIT),
    };
    let body = if is_start { whole(body, limit, wait).await? } else { Bytes::new() };
    let Some(_in_progress) = peer.place.asked() else {
        let text = format!("{ANSWERING_MAX} requests are in progress, the limit of this service; retry later");
        return Err(HttpError::of(ErrorCode::Limit, text));
    };
    Ok(next.run(Request::from_parts(head, Body::from(body))).await)
}

/// Segments after the verb are taken for a name with slashes, which no run can have.
fn check_name(path: &str) -> Answer<()> {
    let name = match path.strip_prefix("/runs/") {
        Some(rest) if rest.matches('/').count() < 2 => rest.split('/').next().unwrap_or_default(),
        Some(rest) => rest,
        None => return Ok(()),
    };
    check_run_name(name).map_err(|error| HttpError::of(ErrorCode::Description, error.to_string()))
}

fn too_large(limit: usize) -> HttpError {
    let text = format!("the request's body exceeds the limit of {limit} bytes");
    HttpError::of(ErrorCode::Limit, text).with_status(StatusCode::PAYLOAD_TOO_LARGE)
}

async fn whole(body: Body, limit: usize, wait: Duration) -> Answer<Bytes> {
    let bad = |text: String| HttpError::of(ErrorCode::Description, text);
    let body = tokio::time::timeout(wait, Limited::new(body, limit).collect()).await;
    match body.map_err(|_| bad("timeout reading the request's body".into()))? {
        Ok(body) => Ok(body.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_large(limit)),
        Err(error) => Err(bad(format!("cannot read the request's body: {error}"))),
    }
}

async fn unserved(method: Method, uri: Uri) -> HttpError {
    let path = uri.path();
    if matches!(path.split('/').nth(1), Some("runs" | "metrics")) {
        let text = format!("{method} is not supported for {path}; see {DESCRIPTION_PATH}");
        return HttpError::of(ErrorCode::Unknown, text).with_status(StatusCode::METHOD_NOT_ALLOWED);
    }
    HttpError::of(ErrorCode::Unknown, format!("there is no {path}; see {DESCRIPTION_PATH}"))
}

async fn list(State(peer): State<HttpPeer>) -> impl IntoResponse {
    let runs: Vec<RunStatus> = peer.shared.runs().iter().map(|run| run.status()).collect();
    Json(serde_json::json!({ "runs": runs }))
}

async fn begin(State(peer): State<HttpPeer>, body: Bytes) -> Answer<impl IntoResponse> {
    let wish = StartRequest::from_json(&body).map_err(|text| HttpError::of(ErrorCode::Description, text))?;
    blocking(move || {
        let name = wish.name.clone();
        if peer.shared.run(&name).is_some_and(|run| run.request.is_same(&wish) && run.ended_as().is_none()) {
            let text = format!(
                "run `{name}` is already running with these parameters: send frames to it; or stop it first, and start \
                another with another name and file"
            );
            return Err(HttpError::of(ErrorCode::Busy, text));
        }
        Ok((StatusCode::CREATED, Json(peer.shared.begin(wish)?.status())))
    })
    .await
}

async fn status(State(peer): State<HttpPeer>, Path(name): Path<String>) -> Answer<Json<RunStatus>> {
    Ok(Json(find(&peer.shared, &name)?.status()))
}

async fn watch(
    State(peer): State<HttpPeer>,
    Path(name): Path<String>,
    RawQuery(query): RawQuery,
) -> Answer<Json<RunStatus>> {
    let run = find(&peer.shared, &name)?;
    let wish = WatchRequest::read(query.as_deref().unwrap_or(""))?;
    Ok(Json(latest(&peer.shared, &run, wish).await))
}

async fn stop(State(peer): State<HttpPeer>, Path(name): Path<String>) -> Answer<Json<RunStatus>> {
    end(peer, &name, EndKind::Finished).await
}

async fn abort(State(peer): State<HttpPeer>, Path(name): Path<String>) -> Answer<Json<RunStatus>> {
    end(peer, &name, EndKind::Aborted).await
}

async fn end(peer: HttpPeer, name: &str, how: EndKind) -> Answer<Json<RunStatus>> {
    let run = find(&peer.shared, name)?;
    blocking(move || {
        peer.shared.end(&run, how);
        let run = peer.shared.run(&run.request.name).unwrap_or(run);
        Ok(Json(run.status()))
    })
    .await
}

async fn metrics(State(peer): State<HttpPeer>) -> impl IntoResponse {
    let text = metrics::text(&peer.shared) + &process_metrics::text(env!("CARGO_PKG_VERSION"));
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

fn find(shared: &ServiceShared, name: &str) -> Answer<Arc<Run>> {
    shared.run(name).ok_or_else(|| HttpError::of(ErrorCode::Unknown, format!("there is no run `{name}`")))
}

/// Runs work that blocks on the store.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Answer<T> + Send + 'static) -> Answer<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(HttpError::of(ErrorCode::Failed, format!("the request ended early: {error}"))))
}
