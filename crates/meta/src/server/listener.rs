//! The listening sockets of a worker and their accept loops.

use super::connection::{self, ConnectionError};
use super::limits::Source;
use super::sessions::Peer;
use super::unauthenticated::UnauthenticatedConnections;
use super::worker::{About, ConnectionCount, Worker};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use varve_env::net::SocketPlace;
use varve_proto::handshake::Answer;
use varve_rpc::{AdmitError, Listener, LoopHandle, PeerOrigin, UnauthenticatedConnection};
use varve_types::WorkerAddress;

/// Connections may come as fast as they are refused.
const ACCEPTED_IN_A_ROW: usize = 16;

/// Pause after a failed accept (usually because no descriptors are left), so that the loop does not spin.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Maximum connections of one worker that are being refused at a time; further ones are closed without a reply.
const TURNED_AWAY_MAX: usize = 64;

/// A Unix socket whose file is removed when the worker stops listening.
pub struct UnixSocket {
    listener: Listener,
    path: PathBuf,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!("cannot remove the socket {}: {error}", self.path.display());
        }
    }
}

/// Whether the process that made the Unix socket at `path` is certainly gone. Does not wait.
pub fn nobody_listens(path: &Path) -> bool {
    let (family, flags) = (AddressFamily::UNIX, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC);
    let Ok(address) = SocketAddrUnix::new(path) else { return false };
    let Ok(socket) = rustix::net::socket_with(family, SocketType::STREAM, flags, None) else { return false };
    matches!(rustix::net::connect(&socket, &address), Err(rustix::io::Errno::CONNREFUSED))
}

/// Listens on a Unix socket with this path and mode, and on a TCP address.
pub fn listen(
    event_loop: &LoopHandle,
    unix: Option<&(PathBuf, u32)>,
    tcp: Option<SocketAddr>,
) -> io::Result<Listeners> {
    let open = |place: SocketPlace, mode| {
        let with_place = |error: io::Error| io::Error::new(error.kind(), format!("on {place}: {error}"));
        Listener::new(event_loop, &place, mode).map_err(with_place)
    };
    let unix = unix.map(|(path, mode)| {
        let listener = open(SocketPlace::Unix(path.clone()), *mode)?;
        io::Result::Ok(UnixSocket { listener, path: path.clone() })
    });
    let tcp = tcp.map(|address| open(SocketPlace::Tcp(address), 0));
    Ok(Listeners { unix: unix.transpose()?, tcp: tcp.transpose()? })
}

/// The listening sockets of a worker.
pub struct Listeners {
    unix: Option<UnixSocket>,
    tcp: Option<Listener>,
}

impl Listeners {
    /// The address that clients connect to.
    pub fn address(&self) -> io::Result<WorkerAddress> {
        let unix = self.unix.as_ref().map(|socket| socket.path.to_string_lossy().into_owned());
        let tcp = self.tcp.as_ref().map(Listener::tcp_address).transpose()?.map(advertised);
        Ok(WorkerAddress { unix, tcp })
    }

    /// Accepts until the worker stops.
    pub async fn accept(self, worker: Rc<Worker>) {
        tokio::select! {
            () = accept_at(self.unix.as_ref().map(|socket| &socket.listener), &worker) => {}
            () = accept_at(self.tcp.as_ref(), &worker) => {}
            () = worker.stopping() => {}
        }
    }
}

/// The address to publish: the host's name if the listener is bound to all addresses.
pub(super) fn advertised(address: SocketAddr) -> String {
    if address.ip().is_unspecified() {
        format!("{}:{}", rustix::system::uname().nodename().to_string_lossy(), address.port())
    } else {
        address.to_string()
    }
}

async fn accept_at(listener: Option<&Listener>, worker: &Rc<Worker>) {
    let Some(listener) = listener else { return std::future::pending().await };
    let mut accepted_so_far = 0_usize;
    loop {
        accepted_so_far += 1;
        if accepted_so_far.is_multiple_of(ACCEPTED_IN_A_ROW) {
            varve_rpc::yield_now().await;
        }
        worker.unauthenticated.room(worker.shared.limits.unauthenticated, || worker.shared.clock.monotonic()).await;
        match listener.accept().await {
            Ok(accepted) => serve(accepted, worker),
            Err(error) => {
                tracing::warn!("cannot accept a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn serve(accepted: UnauthenticatedConnection, worker: &Rc<Worker>) {
    let peer = peer_of(accepted.origin);
    if let Err(reason) = worker.shared.sessions.check_peer(peer) {
        log_error(worker, About::Connections, &peer, &reason);
        return turn_away(worker, accepted, Answer::Refused { reason });
    }
    let pending = match UnauthenticatedConnections::enter(worker, peer.principal()) {
        Ok(pending) => pending,
        Err(max) => return turn_away(worker, accepted, crowded(worker, peer, max)),
    };
    let (served, count) = (Rc::clone(worker), ConnectionCount::new(Rc::clone(worker)));
    worker.spawn(async move {
        match connection::serve(accepted, peer, Rc::clone(&served), pending, count).await {
            Ok(()) => tracing::debug!(%peer, "connection ended"),
            Err(ConnectionError::Handshake(AdmitError::Ended(0))) => {
                tracing::debug!(%peer, "connection ended before the handshake");
            }
            Err(error @ (ConnectionError::Handshake(AdmitError::Crowded(_)) | ConnectionError::Evicted(_))) => {
                log_error(&served, About::Crowd, &peer, &error.to_string());
            }
            Err(error) => log_error(&served, About::Connections, &peer, &error.to_string()),
        }
    });
}

fn peer_of(origin: PeerOrigin) -> Peer {
    match origin {
        PeerOrigin::Process(of) => Peer::Local { uid: of.uid, gid: of.gid, pid: (of.pid != 0).then_some(of.pid) },
        PeerOrigin::Host(address) => Peer::Remote { source: Source::of(address.ip()) },
    }
}

/// Sends `answer` to a peer in the background, and closes its connection.
fn turn_away(worker: &Rc<Worker>, accepted: UnauthenticatedConnection, answer: Answer) {
    let turned_away = worker.turned_away.get();
    if turned_away >= TURNED_AWAY_MAX {
        return;
    }
    worker.turned_away.set(turned_away + 1);
    let counted = Rc::clone(worker);
    worker.spawn(async move {
        accepted.turn_away(counted.shared.settings.id.0, &answer).await;
        counted.turned_away.set(counted.turned_away.get() - 1);
    });
}

/// The reply for a principal that has reached its limit of unauthenticated connections.
fn crowded(worker: &Worker, peer: Peer, max: usize) -> Answer {
    let principal = peer.principal();
    let reason = format!("{principal} has {max} unauthenticated connections to this worker: try again later");
    log_error(worker, About::Crowd, &peer, &reason);
    Answer::Crowded { reason }
}

fn log_error(worker: &Worker, about: About, peer: &Peer, why: &str) {
    if let Some(suppressed) = worker.error_log.due(about, worker.shared.clock.monotonic()) {
        tracing::warn!(%peer, "connection closed{suppressed}: {why}");
    }
}
