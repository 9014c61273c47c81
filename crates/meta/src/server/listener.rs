//! The listening sockets of a worker and their accept loops.

use super::connection::{self, ConnectionError};
use super::handshake::HandshakeError;
use super::limits::Source;
use super::local_stream::LocalStream;
use super::remote_stream::RemoteStream;
use super::sessions::Peer;
use super::turned_away::turn_away;
use super::unauthenticated::UnauthenticatedConnections;
use super::worker::{About, Worker};
use rustix::fs::Mode;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};
use varve_proto::handshake::Answer;
use varve_types::WorkerAddress;

/// Length of the queue of connections that wait to be accepted: the default of Linux.
pub const BACKLOG: u32 = 4096;

/// Pause after a failed accept (usually because no descriptors are left), so that the loop does not spin.
pub(super) const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Keepalive: the kernel probes a silent TCP peer after one minute, and gives the connection up half a minute later.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// A Unix socket whose file is removed when the worker stops listening.
pub struct UnixSocket {
    pub listener: UnixListener,
    path: PathBuf,
}

impl UnixSocket {
    /// Listens on `path`. An existing file of that name belongs to a dead server: the caller holds the volume's lock
    /// and owns the directory.
    pub fn bind(path: PathBuf, mode: u32) -> io::Result<UnixSocket> {
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // The file gets the mode of the socket, less the umask: no other user can connect in between, whatever the
        // umask.
        rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(&path)?)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode))?;
        rustix::net::listen(&socket, BACKLOG as i32)?;
        Ok(UnixSocket { listener: UnixListener::from_std(socket.into())?, path })
    }
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
pub fn listen(unix: Option<&(PathBuf, u32)>, tcp: Option<SocketAddr>) -> io::Result<Listeners> {
    let unix = unix.map(|(path, mode)| UnixSocket::bind(path.clone(), *mode)).transpose()?;
    let tcp = tcp.map(bind_tcp).transpose()?;
    Ok(Listeners { unix, tcp })
}

fn bind_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // A restarted server must not wait until the connections of its predecessor have left TIME_WAIT.
    socket.set_reuseaddr(true)?;
    let reported = |error: io::Error| io::Error::new(error.kind(), format!("on {address}: {error}"));
    socket.bind(address).map_err(reported)?;
    socket.listen(BACKLOG).map_err(reported)
}

/// The listening sockets of a worker.
#[derive(Default)]
pub struct Listeners {
    pub unix: Option<UnixSocket>,
    pub tcp: Option<TcpListener>,
}

impl Listeners {
    /// The address that clients connect to.
    pub fn address(&self) -> io::Result<WorkerAddress> {
        let unix = self.unix.as_ref().map(|socket| socket.path.to_string_lossy().into_owned());
        let tcp = self.tcp.as_ref().map(TcpListener::local_addr).transpose()?.map(advertised);
        Ok(WorkerAddress { unix, tcp })
    }

    /// Accepts until the worker stops.
    pub async fn accept(self, worker: Rc<Worker>) {
        let unix = async {
            match &self.unix {
                Some(socket) => accept_unix(&socket.listener, &worker).await,
                None => std::future::pending().await,
            }
        };
        let tcp = async {
            match &self.tcp {
                Some(listener) => accept_tcp(listener, &worker).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = unix => {}
            () = tcp => {}
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

async fn accept_unix(listener: &UnixListener, worker: &Rc<Worker>) {
    loop {
        worker.unauthenticated.room(worker.shared.limits.unauthenticated, || worker.shared.clock.monotonic()).await;
        match listener.accept().await {
            Ok((stream, _)) => spawn_unix(stream, worker),
            Err(error) => pause(error).await,
        }
    }
}

fn spawn_unix(stream: UnixStream, worker: &Rc<Worker>) {
    let peer = match stream.peer_cred() {
        Ok(of) => Peer::Local { uid: of.uid(), gid: of.gid(), pid: of.pid() },
        Err(error) => return tracing::warn!("connection closed: cannot read the peer's credentials: {error}"),
    };
    if let Err(reason) = worker.shared.sessions.check_peer(peer) {
        log_error(worker, About::Connections, &peer, &reason);
        return turn_away(worker, stream, Answer::Refused { reason });
    }
    match UnauthenticatedConnections::enter(worker, peer.principal()) {
        Err(max) => turn_away(worker, stream, crowded(worker, peer, max)),
        Ok(pending) => spawn(worker, peer, |worker| async move {
            let stream = LocalStream::new(stream)?;
            let (reader, writer) = stream.split();
            connection::serve(reader, writer, peer, worker, pending).await
        }),
    }
}

/// The reply for a principal that has reached its limit of unauthenticated connections.
fn crowded(worker: &Worker, peer: Peer, max: usize) -> Answer {
    let principal = peer.principal();
    let reason = format!("{principal} has {max} unauthenticated connections to this worker: try again later");
    log_error(worker, About::Crowd, &peer, &reason);
    Answer::Crowded { reason }
}

async fn accept_tcp(listener: &TcpListener, worker: &Rc<Worker>) {
    loop {
        worker.unauthenticated.room(worker.shared.limits.unauthenticated, || worker.shared.clock.monotonic()).await;
        match listener.accept().await {
            Ok((stream, address)) => match tune(&stream) {
                Ok(()) => spawn_tcp(stream, address, worker),
                Err(error) => tracing::warn!("TCP connection closed: cannot set its options: {error}"),
            },
            Err(error) => pause(error).await,
        }
    }
}

fn spawn_tcp(stream: TcpStream, address: SocketAddr, worker: &Rc<Worker>) {
    let peer = Peer::Remote { source: Source::of(address.ip()) };
    match UnauthenticatedConnections::enter(worker, peer.principal()) {
        Err(max) => turn_away(worker, stream, crowded(worker, peer, max)),
        Ok(pending) => spawn(worker, peer, |worker| async move {
            let stream = RemoteStream::new(stream);
            let (reader, writer) = stream.split();
            connection::serve(reader, writer, peer, worker, pending).await
        }),
    }
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    rustix::net::sockopt::set_socket_keepalive(stream, true)?;
    rustix::net::sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    rustix::net::sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    rustix::net::sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    Ok(())
}

fn spawn<C>(worker: &Rc<Worker>, peer: Peer, connection: impl FnOnce(Rc<Worker>) -> C)
where
    C: Future<Output = Result<(), ConnectionError>> + 'static,
{
    let task = connection(Rc::clone(worker));
    let reported = Rc::clone(worker);
    worker.spawn_connection(async move {
        match task.await {
            Ok(()) => tracing::debug!(%peer, "connection ended"),
            Err(ConnectionError::Handshake(HandshakeError::Ended(0))) => {
                tracing::debug!(%peer, "connection ended before the handshake");
            }
            Err(error @ ConnectionError::Handshake(HandshakeError::Crowded(_) | HandshakeError::Evicted(_))) => {
                log_error(&reported, About::Crowd, &peer, &error.to_string());
            }
            Err(error) => log_error(&reported, About::Connections, &peer, &error.to_string()),
        }
    });
}

fn log_error(worker: &Worker, about: About, peer: &Peer, why: &str) {
    if let Some(suppressed) = worker.error_log.due(about, worker.shared.clock.monotonic()) {
        tracing::warn!(%peer, "connection closed{suppressed}: {why}");
    }
}

async fn pause(error: io::Error) {
    tracing::warn!("cannot accept a connection: {error}");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}
