//! Control over HTTP/JSON: start, stop, abort, status, watch, metrics. `docs/record-service.openapi.json` describes the
//! interface and is also served. Every request must name this host ([`crate::host_check`]), and every request except
//! the one for that description must present the token.

mod connection_slots;

use super::records::EndKind;
use super::request::StartRequest;
use super::run::{Run, RunStatus};
use super::shared::ServiceShared;
use super::threads::named;
use super::{metrics, tries};
use crate::host_check::Denied;
use connection_slots::{ANSWERING_MAX, ConnectionSlot, ConnectionSlots};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, header};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use varve_detector_stream::hello::check_run_name;
use varve_detector_stream::{ErrorCode, StreamRefusal};

const DESCRIPTION_PATH: &str = "/openapi.json";
pub const OPENAPI: &str = include_str!("../../../docs/record-service.openapi.json");
/// Same limit as for the head of a HELLO, which may contain the same request.
const BODY_BYTES_MAX: usize = 1 << 20;
const HEAD_WAIT: Duration = Duration::from_secs(10);
/// Longest wait of a watch request; the client then repeats it.
const WATCH_MAX: Duration = Duration::from_secs(30);
const WATCH_STEP: Duration = Duration::from_millis(50);

type HttpAnswer = Response<Full<Bytes>>;

#[derive(Serialize)]
struct ErrorBody<'r> {
    error: &'r str,
    text: &'r str,
}

/// Serves HTTP at `listener` until the service stops.
///
/// # Errors
/// If no thread can be started.
pub(super) fn start(shared: &Arc<ServiceShared>, listener: TcpListener) -> io::Result<(SocketAddr, JoinHandle<()>)> {
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(ANSWERING_MAX)
        .thread_name("http")
        .enable_all()
        .build()?;
    let mine = Arc::clone(shared);
    let thread = named("http", move || {
        if let Err(error) = runtime.block_on(accept(&mine, listener)) {
            tracing::error!("HTTP server stopped: {error}");
        }
        runtime.shutdown_timeout(Duration::from_secs(1));
    })?;
    Ok((address, thread))
}

async fn accept(shared: &Arc<ServiceShared>, listener: TcpListener) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let places = ConnectionSlots::new();
    while !shared.is_stopping() {
        let Ok(accepted) = tokio::time::timeout(Duration::from_millis(200), listener.accept()).await else { continue };
        let socket = match accepted {
            Ok((socket, _)) => socket,
            Err(error) => {
                tracing::warn!("cannot accept an HTTP connection: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (place, shared) = (Arc::new(places.enter().await), Arc::clone(shared));
        tokio::spawn(async move {
            tokio::select! {
                served = serve(&shared, &place, socket) => match served {
                    Ok(()) => {}
                    Err(error) => tracing::debug!("HTTP connection ended: {error}"),
                },
                () = place.evicted() => tracing::debug!("HTTP connection without a request closed to free its slot"),
            }
        });
    }
    Ok(())
}

async fn serve(
    shared: &Arc<ServiceShared>,
    place: &Arc<ConnectionSlot>,
    socket: tokio::net::TcpStream,
) -> io::Result<()> {
    let peer = Peer { shared: Arc::clone(shared), local: socket.local_addr()?.ip(), address: socket.peer_addr()? };
    match &shared.config.protection.tls {
        None => converse(&peer, place, socket).await,
        Some(tls) => {
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            let session = tokio::time::timeout(HEAD_WAIT, tls.acceptor().accept(socket)).await.map_err(late)??;
            converse(&peer, place, session).await
        }
    }
}

async fn converse<S>(peer: &Peer, place: &Arc<ConnectionSlot>, socket: S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let answer = service_fn(|request| answer(peer.clone(), Arc::clone(place), request));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .serve_connection(TokioIo::new(socket), answer);
    served.await.map_err(io::Error::other)
}

/// The service, and the addresses of both ends of a connection.
#[derive(Clone)]
struct Peer {
    shared: Arc<ServiceShared>,
    local: IpAddr,
    address: SocketAddr,
}

async fn answer(peer: Peer, place: Arc<ConnectionSlot>, request: Request<Incoming>) -> Result<HttpAnswer, Infallible> {
    if let Err(denied) = peer.shared.hosts.check(request.uri(), request.headers(), peer.local) {
        return Ok(deny(&denied));
    }
    if let Err(refusal) = admit(&peer.shared, &request) {
        peer.shared.tries.add(&peer.address, request.uri().path());
        tokio::time::sleep(tries::DELAY).await;
        return Ok(refuse(&refusal));
    }
    Ok(route(peer.shared, &place, request).await.unwrap_or_else(|refusal| refuse(&refusal)))
}

fn deny(denied: &Denied) -> HttpAnswer {
    json(denied.status(), &ErrorBody { error: denied.code(), text: &denied.to_string() })
}

fn refuse(refusal: &StreamRefusal) -> HttpAnswer {
    let status = match refusal.code {
        ErrorCode::Token => StatusCode::UNAUTHORIZED,
        ErrorCode::Unknown => StatusCode::NOT_FOUND,
        ErrorCode::Busy | ErrorCode::Ended => StatusCode::CONFLICT,
        ErrorCode::Limit | ErrorCode::Stopping | ErrorCode::Full => StatusCode::SERVICE_UNAVAILABLE,
        ErrorCode::Failed => StatusCode::INTERNAL_SERVER_ERROR,
        ErrorCode::Protocol | ErrorCode::Version | ErrorCode::Description | ErrorCode::Vanished => {
            StatusCode::BAD_REQUEST
        }
    };
    json(status, &ErrorBody { error: refusal.code.name(), text: &refusal.text })
}

fn too_large() -> HttpAnswer {
    let text = format!("the request's body exceeds the limit of {BODY_BYTES_MAX} bytes");
    let mut refused = refuse(&StreamRefusal::new(ErrorCode::Limit, text));
    *refused.status_mut() = StatusCode::PAYLOAD_TOO_LARGE;
    refused
}

fn json<T: Serialize>(status: StatusCode, value: &T) -> HttpAnswer {
    let body = serde_json::to_vec(value).expect("what is answered is JSON");
    of(status, "application/json", body)
}

fn of(status: StatusCode, content: &'static str, body: impl Into<Bytes>) -> HttpAnswer {
    let mut answer = Response::new(Full::new(body.into()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content));
    answer
}

async fn route(
    shared: Arc<ServiceShared>,
    place: &ConnectionSlot,
    request: Request<Incoming>,
) -> Result<HttpAnswer, StreamRefusal> {
    let path = request.uri().path().trim_end_matches('/').to_owned();
    let parts: Vec<&str> = path.split('/').skip(1).collect();
    if request.method() == Method::GET && path == DESCRIPTION_PATH {
        return Ok(of(StatusCode::OK, "application/json", OPENAPI));
    }
    if let ["runs", name @ ..] = &parts[..]
        && !name.is_empty()
    {
        // Segments after the verb are taken for a name with slashes, which no run can have.
        let name = if name.len() > 2 { name.join("/") } else { name[0].to_owned() };
        check_run_name(&name).map_err(|error| StreamRefusal::new(ErrorCode::Description, error.to_string()))?;
    }
    if request.body().size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Ok(too_large());
    }
    let (head, body) = request.into_parts();
    let is_start = head.method == Method::POST && parts == ["runs"];
    let Some(body) = (if is_start { whole(body).await? } else { Some(Bytes::new()) }) else { return Ok(too_large()) };
    let Some(_answering) = place.asked() else {
        let text = format!("{ANSWERING_MAX} requests are in progress, the limit of this service; retry later");
        return Err(StreamRefusal::new(ErrorCode::Limit, text));
    };
    match (&head.method, &parts[..]) {
        (&Method::GET, ["runs"]) => {
            let runs: Vec<RunStatus> = shared.runs().iter().map(|run| run.status()).collect();
            Ok(json(StatusCode::OK, &serde_json::json!({ "runs": runs })))
        }
        (&Method::POST, ["runs"]) => begin(shared, &body).await,
        (&Method::GET, ["runs", name]) => Ok(json(StatusCode::OK, &find(&shared, name)?.status())),
        (&Method::GET, ["runs", name, "latest"]) => {
            let run = find(&shared, name)?;
            let wish = WatchRequest::read(head.uri.query().unwrap_or(""))?;
            Ok(json(StatusCode::OK, &latest(&shared, &run, wish).await))
        }
        (&Method::POST, ["runs", name, verb @ ("stop" | "abort")]) => {
            let how = if *verb == "stop" { EndKind::Finished } else { EndKind::Aborted };
            let run = find(&shared, name)?;
            blocking(move || {
                shared.end(&run, how);
                let run = shared.run(&run.request.name).unwrap_or(run);
                Ok(json(StatusCode::OK, &run.status()))
            })
            .await
        }
        (&Method::GET, ["metrics"]) => Ok(of(StatusCode::OK, "text/plain; version=0.0.4", metrics::text(&shared))),
        (_, ["runs" | "metrics", ..]) => {
            let text = format!("{} is not supported for {path}; see /openapi.json", head.method);
            let mut refused = refuse(&StreamRefusal::new(ErrorCode::Unknown, text));
            *refused.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
            Ok(refused)
        }
        _ => Err(StreamRefusal::new(ErrorCode::Unknown, format!("there is no {}; see /openapi.json", head.uri.path()))),
    }
}

/// Checks the token of a request. The request for the description needs none.
fn admit(shared: &ServiceShared, request: &Request<Incoming>) -> Result<(), StreamRefusal> {
    if request.method() == Method::GET && request.uri().path().trim_end_matches('/') == DESCRIPTION_PATH {
        return Ok(());
    }
    let given = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    shared.check_token(given.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or(""))
}

fn find(shared: &ServiceShared, name: &str) -> Result<Arc<Run>, StreamRefusal> {
    shared.run(name).ok_or_else(|| StreamRefusal::new(ErrorCode::Unknown, format!("there is no run `{name}`")))
}

/// Runs work that blocks on the store.
async fn blocking(
    work: impl FnOnce() -> Result<HttpAnswer, StreamRefusal> + Send + 'static,
) -> Result<HttpAnswer, StreamRefusal> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| Err(StreamRefusal::new(ErrorCode::Failed, format!("the request ended early: {error}"))))
}

/// Reads a request's body; `None` if it is too large.
async fn whole(body: Incoming) -> Result<Option<Bytes>, StreamRefusal> {
    let bad = |text: String| StreamRefusal::new(ErrorCode::Description, text);
    let body = tokio::time::timeout(HEAD_WAIT, Limited::new(body, BODY_BYTES_MAX).collect()).await;
    match body.map_err(|_| bad("timeout reading the request's body".into()))? {
        Ok(body) => Ok(Some(body.to_bytes())),
        Err(error) if error.is::<LengthLimitError>() => Ok(None),
        Err(error) => Err(bad(format!("cannot read the request's body: {error}"))),
    }
}

async fn begin(shared: Arc<ServiceShared>, body: &[u8]) -> Result<HttpAnswer, StreamRefusal> {
    let bad = |text: String| StreamRefusal::new(ErrorCode::Description, text);
    let wish: StartRequest = StartRequest::from_json(body).map_err(bad)?;
    blocking(move || {
        let name = wish.name.clone();
        if shared.run(&name).is_some_and(|run| run.request == wish && run.ended_as().is_none()) {
            let text = format!(
                "run `{name}` is already running with these parameters: send frames to it; or stop it first, and start \
                another with another name and file"
            );
            return Err(StreamRefusal::new(ErrorCode::Busy, text));
        }
        let run = shared.begin(wish)?;
        Ok(json(StatusCode::CREATED, &run.status()))
    })
    .await
}

/// The last frame that a watcher has seen, and how long it waits for a newer one.
struct WatchRequest {
    after: Option<u64>,
    wait: Duration,
}

impl WatchRequest {
    fn read(query: &str) -> Result<WatchRequest, StreamRefusal> {
        let mut wish = WatchRequest { after: None, wait: Duration::ZERO };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let bad =
                || StreamRefusal::new(ErrorCode::Protocol, format!("`{pair}`: give after=FRAME and wait_s=SECONDS"));
            match key {
                "after" => wish.after = Some(value.parse().map_err(|_| bad())?),
                "wait_s" => {
                    let seconds: f64 = value.parse().map_err(|_| bad())?;
                    wish.wait = Duration::try_from_secs_f64(seconds).map_err(|_| bad())?.min(WATCH_MAX);
                }
                _ => return Err(bad()),
            }
        }
        Ok(wish)
    }
}

async fn latest(shared: &ServiceShared, run: &Run, wish: WatchRequest) -> RunStatus {
    let deadline = Instant::now() + wish.wait;
    loop {
        let status = run.status();
        let newer = match (status.latest_durable, wish.after) {
            (Some(latest), Some(after)) => latest > after,
            (latest, None) => latest.is_some(),
            (None, Some(_)) => false,
        };
        if newer || run.ended_as().is_some() || shared.is_stopping() || Instant::now() >= deadline {
            return status;
        }
        tokio::time::sleep(WATCH_STEP).await;
    }
}
