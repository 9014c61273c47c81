//! Connects to a worker, and checks whether the listening process may be the volume's server.

use super::{CONNECT_TIMEOUT, TCP_SILENCE};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use varve_env::identity::{NOBODY, is_nobody};
use varve_types::WorkerAddress;

/// How this client reaches a server.
#[derive(Clone, Copy, Debug)]
pub(in crate::transport) struct Reach {
    /// The server is on this host, by its boot id.
    pub local: bool,
    /// The user requested TCP.
    pub tcp: bool,
    /// The owner of the store: besides root, the only user whose process may serve it.
    pub owner: u32,
}

/// The process behind a Unix socket may not be the volume's server.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the process that listens at {path} runs as user {peer}, which is neither root nor the store's owner, user \
     {owner}: nothing was sent to it; if the volume is served, that socket is not its server's"
)]
pub(in crate::transport) struct Untrusted {
    path: String,
    peer: u32,
    owner: u32,
}

pub(super) enum Dialled {
    Unix(UnixStream),
    Tcp(TcpStream),
}

/// Connects to a worker: on the same host only by its Unix socket, unless TCP is requested; from another host by TCP.
pub(super) fn dial(address: &WorkerAddress, reach: Reach) -> io::Result<Dialled> {
    let Reach { local, tcp, owner } = reach;
    match (&address.unix, &address.tcp) {
        (Some(path), _) if local && !tcp => dial_unix(path, owner).map(Dialled::Unix),
        (None, Some(_)) if local && !tcp => Err(io::Error::other(
            "the server is on this host and listens only on TCP, which clients of this host use only on request: add \
             --tcp",
        )),
        (_, Some(tcp)) => dial_tcp(tcp).map(Dialled::Tcp),
        (_, None) => Err(io::Error::other(
            "the server listens only on the Unix sockets of its own host: serve the volume with --listen HOST:PORT to \
             reach it from other hosts and with --tcp",
        )),
    }
}

fn dial_unix(path: &str, owner: u32) -> io::Result<UnixStream> {
    let stream = open_unix(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => io::Error::new(
            error.kind(),
            format!(
                "there is no {path} here, where the server on this host listens: in a container, mount the directory \
                 of the server's sockets at the same place, or serve the volume with --listen HOST:PORT and connect \
                 with --tcp"
            ),
        ),
        kind => io::Error::new(kind, format!("{path}: {error}")),
    })?;
    let peer = peer_uid(&stream)?;
    match may_serve(peer, owner, rustix::process::geteuid().as_raw()) {
        true => Ok(stream),
        false => {
            let untrusted = Untrusted { path: path.to_owned(), peer, owner };
            Err(io::Error::new(io::ErrorKind::PermissionDenied, untrusted))
        }
    }
}

/// The user who called listen(2) on the other end. rustix cannot be used, because its credentials always have a
/// process, and a process in another PID namespace has the number 0 here.
fn peer_uid(stream: &UnixStream) -> io::Result<u32> {
    let mut found = libc::ucred { pid: 0, uid: NOBODY, gid: NOBODY };
    let mut bytes = std::mem::size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the kernel writes at most `bytes` bytes to `found`, for which every bit pattern is valid.
    let failed =
        unsafe { libc::getsockopt(stream.as_raw_fd(), level, name, std::ptr::from_mut(&mut found).cast(), &mut bytes) };
    if failed == 0 { Ok(found.uid) } else { Err(io::Error::last_os_error()) }
}

/// Whether a process of user `peer` may serve a store of `owner`, for a client of user `own`. The client sends nothing
/// to any other process, and trusts nothing from it, least of all descriptors.
pub(super) fn may_serve(peer: u32, owner: u32, own: u32) -> bool {
    peer == 0 || (!is_nobody(peer) && (peer == owner || peer == own))
}

/// Connects with a timeout: a server whose connection queue is full would otherwise block the caller for ever.
fn open_unix(path: &str) -> io::Result<UnixStream> {
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(CONNECT_TIMEOUT))?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(UnixStream::from(socket))
}

fn dial_tcp(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::other("it has no address");
    for candidate in address.to_socket_addrs().map_err(|error| at(address, &error))? {
        match TcpStream::connect_timeout(&candidate, CONNECT_TIMEOUT) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                sockopt::set_socket_keepalive(&stream, true)?;
                sockopt::set_tcp_keepidle(&stream, TCP_SILENCE)?;
                sockopt::set_tcp_user_timeout(&stream, TCP_SILENCE.as_millis() as u32)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(at(address, &last))
}

fn at(address: &str, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{address}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: only root, the store's owner and the client's own user may serve; the overflow user is none of them.
    #[test]
    fn a_server_is_roots_or_the_owners() {
        let cases = [
            (0, 1000, 1000, true),
            (0, 0, 0, true),
            (1000, 1000, 0, true),
            (1000, 1001, 1000, true),
            (1001, 1000, 0, false),
            (1001, 0, 0, false),
            (1001, 0, 1000, false),
            (NOBODY, NOBODY, NOBODY, false),
            (NOBODY, NOBODY, 0, false),
            (NOBODY, 0, 0, false),
        ];
        for (peer, owner, own, may) in cases {
            assert_eq!(may_serve(peer, owner, own), may, "peer {peer}, owner {owner}, own {own}");
        }
    }

    /// Promise: the client falls back to no address that was not requested, and each refusal says what to do.
    #[test]
    fn no_other_way_is_taken_unasked() {
        let directory = tempfile::tempdir().unwrap();
        let unix = directory.path().join("none").to_string_lossy().into_owned();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let tcp = listener.local_addr().unwrap().to_string();
        let (unix, tcp) = (Some(unix), Some(tcp));
        let both = WorkerAddress { unix: unix.clone(), tcp: tcp.clone() };
        let [by_unix, by_tcp] = [WorkerAddress { unix, tcp: None }, WorkerAddress { unix: None, tcp }];
        let reach = |local, tcp| Reach { local, tcp, owner: 0 };
        let refused = |address, reach, part: &str| {
            let error = dial(address, reach).err().expect("it is refused").to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(&both, reach(true, false), "there is no");
        refused(&by_tcp, reach(true, false), "add --tcp");
        refused(&by_unix, reach(true, true), "--listen HOST:PORT");
        refused(&by_unix, reach(false, false), "--listen HOST:PORT");
        for reach in [reach(true, true), reach(false, false), reach(false, true)] {
            assert!(matches!(dial(&both, reach), Ok(Dialled::Tcp(_))));
        }
    }
}
