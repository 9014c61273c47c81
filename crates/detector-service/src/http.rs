//! Control over HTTP/JSON: start, stop, abort, status, watch, metrics. `docs/record-service.openapi.json` describes the
//! interface and is also served. This file accepts connections; [`routes`] checks and answers their requests.

mod connection_slots;
mod http_error;
mod routes;
mod watch;

pub use routes::OPENAPI;

use super::shared::ServiceShared;
use super::threads::named;
use connection_slots::{ANSWERING_MAX, ConnectionSlots, HEAD_WAIT};
use hyper::body::Incoming;
use hyper::service::{Service, service_fn};
use hyper::{Request, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use routes::HttpPeer;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

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
            let served = async {
                let (local, address) = (socket.local_addr()?.ip(), socket.peer_addr()?);
                serve(HttpPeer { shared, local, address, place: Arc::clone(&place) }, socket).await
            };
            tokio::select! {
                served = served => match served {
                    Ok(()) => {}
                    Err(error) => tracing::debug!("HTTP connection ended: {error}"),
                },
                () = place.evicted() => tracing::debug!("HTTP connection without a request closed to free its slot"),
            }
        });
    }
    Ok(())
}

async fn serve(peer: HttpPeer, socket: tokio::net::TcpStream) -> io::Result<()> {
    match peer.shared.config.protection.tls.as_ref().map(|tls| tls.acceptor()) {
        None => converse(peer, socket).await,
        Some(tls) => {
            let late = |_| io::Error::from(io::ErrorKind::TimedOut);
            let session = tokio::time::timeout(HEAD_WAIT, tls.accept(socket)).await.map_err(late)??;
            converse(peer, session).await
        }
    }
}

async fn converse<S>(peer: HttpPeer, socket: S) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let router = TowerToHyperService::new(routes::router(peer));
    let answer = service_fn(|request| router.call(without_trailing_slashes(request)));
    let served = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WAIT)
        .serve_connection(TokioIo::new(socket), answer);
    served.await.map_err(io::Error::other)
}

/// `/runs/` is `/runs`. The router compares paths as they are, so they are shortened before it.
fn without_trailing_slashes(mut request: Request<Incoming>) -> Request<Incoming> {
    let path = request.uri().path().trim_end_matches('/');
    if !path.is_empty() && path.len() < request.uri().path().len() {
        let query = request.uri().query().map_or_else(String::new, |query| format!("?{query}"));
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = format!("{path}{query}").parse().ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
    }
    request
}
