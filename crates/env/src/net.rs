//! Sockets: Unix and TCP streams that never block the calling thread.

use rustix::fs::Mode;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, ipproto, sockopt,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Length of the queue of connections that wait to be accepted: the default of Linux.
const BACKLOG: i32 = 4096;

/// A host that has vanished does not close its connections: TCP probes a silent peer after this time, and gives up data
/// that was not acknowledged for as long.
const TCP_SILENCE: Duration = Duration::from_secs(20);

/// The same for a server, whose clients may read nothing for that long.
pub const TCP_SILENCE_OF_CLIENTS: Duration = Duration::from_secs(60);

const FLAGS: SocketFlags = SocketFlags::NONBLOCK.union(SocketFlags::CLOEXEC);

/// Where a stream listens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SocketPlace {
    Unix(PathBuf),
    Tcp(SocketAddr),
}

impl std::fmt::Display for SocketPlace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            SocketPlace::Unix(path) => write!(f, "{}", path.display()),
            SocketPlace::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// The process at the other end of a Unix socket, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerProcess {
    pub uid: u32,
    pub gid: u32,
    /// 0 for a process of another PID namespace.
    pub pid: i32,
}

/// Begins a connection. It is made, or has failed, once there is room for output; [`connected`] tells which.
///
/// # Errors
/// If nobody listens, the queue of a Unix socket is full, or the address cannot be reached.
pub fn connect(place: &SocketPlace) -> io::Result<OwnedFd> {
    let (socket, begun) = match place {
        SocketPlace::Unix(path) => {
            let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
            let begun = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
            (socket, begun)
        }
        SocketPlace::Tcp(address) => {
            let socket = tcp_socket(*address)?;
            tune(&socket, TCP_SILENCE)?;
            let begun = rustix::net::connect(&socket, address);
            (socket, begun)
        }
    };
    match begun {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error.into()),
    }
}

/// Whether the connection that [`connect`] began was made.
///
/// # Errors
/// The reason why it was not.
pub fn connected(socket: impl AsFd) -> io::Result<()> {
    Ok(sockopt::socket_error(socket)??)
}

/// Listens. A Unix socket gets the permissions `mode` and replaces a file of its name, which belongs to a dead process:
/// the caller owns the directory.
///
/// # Errors
/// If the address is in use or not this host's, or the path cannot be made.
pub fn listen(place: &SocketPlace, mode: u32) -> io::Result<OwnedFd> {
    let socket = match place {
        SocketPlace::Unix(path) => listen_unix(path, mode)?,
        SocketPlace::Tcp(address) => {
            let socket = tcp_socket(*address)?;
            // A restarted server must not wait until the connections of its predecessor have left TIME_WAIT.
            sockopt::set_socket_reuseaddr(&socket, true)?;
            rustix::net::bind(&socket, address)?;
            socket
        }
    };
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn listen_unix(path: &Path, mode: u32) -> io::Result<OwnedFd> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    // The file gets the mode of the socket, less the umask: no other user can connect in between.
    rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?;
    Ok(socket)
}

fn tcp_socket(address: SocketAddr) -> io::Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    Ok(rustix::net::socket_with(family, SocketType::STREAM, FLAGS, Some(ipproto::TCP))?)
}

/// The address that a TCP listener got, if it asked for port 0.
///
/// # Errors
/// If it is no TCP socket.
pub fn tcp_address(socket: impl AsFd) -> io::Result<SocketAddr> {
    Ok(SocketAddr::try_from(rustix::net::getsockname(socket)?)?)
}

/// The address at the other end of a TCP connection.
///
/// # Errors
/// If it is not connected.
pub fn tcp_peer(socket: impl AsFd) -> io::Result<SocketAddr> {
    let peer = rustix::net::getpeername(socket)?.ok_or(Errno::NOTCONN)?;
    Ok(SocketAddr::try_from(peer)?)
}

/// Sets the options of a TCP connection.
///
/// # Errors
/// If the kernel refuses one.
pub fn tune(socket: impl AsFd, silence: Duration) -> io::Result<()> {
    let socket = socket.as_fd();
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, silence)?;
    sockopt::set_tcp_user_timeout(socket, silence.as_millis() as u32)?;
    Ok(())
}

/// Accepts a connection; `None` if none waits.
///
/// # Errors
/// Usually because no descriptors are left.
pub fn accept(listener: impl AsFd) -> io::Result<Option<OwnedFd>> {
    match rustix::net::accept_with(listener, FLAGS) {
        Ok(socket) => Ok(Some(socket)),
        Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The process at the other end of a Unix socket. rustix cannot be used, because its credentials always have a process,
/// and a process of another PID namespace has the number 0 here.
///
/// # Errors
/// If it is no Unix socket.
pub fn peer_process(socket: impl AsFd) -> io::Result<PeerProcess> {
    let nobody = crate::identity::NOBODY;
    let mut found = libc::ucred { pid: 0, uid: nobody, gid: nobody };
    let mut bytes = std::mem::size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    let descriptor = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `bytes` bytes to `found`, for which every bit pattern is valid.
    let failed =
        unsafe { libc::getsockopt(descriptor, level, name, std::ptr::from_mut(&mut found).cast(), &mut bytes) };
    match failed {
        0 => Ok(PeerProcess { uid: found.uid, gid: found.gid, pid: found.pid }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sends as much of `bytes` as fits, and returns how much that was; `None` if there is no room.
///
/// # Errors
/// If the connection is gone.
pub fn send(socket: impl AsFd, bytes: &[u8]) -> io::Result<Option<usize>> {
    let socket = socket.as_fd();
    sent(retry_on_intr(|| rustix::net::send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)))
}

/// [`send`], with a descriptor that comes with the first byte.
///
/// # Errors
/// If the connection is gone, or the kernel passes on no descriptor.
pub fn send_with(socket: impl AsFd, bytes: &[u8], descriptor: BorrowedFd<'_>) -> io::Result<Option<usize>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one");
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let socket = socket.as_fd();
    sent(retry_on_intr(|| rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)))
}

fn sent(sent: rustix::io::Result<usize>) -> io::Result<Option<usize>> {
    match sent {
        Ok(count) => Ok(Some(count)),
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Ends the stream to the peer, which can still send.
///
/// # Errors
/// If the connection is gone.
pub fn end_output(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, rustix::net::Shutdown::Write)?)
}

/// Ends the stream in both directions, whatever threads use it.
///
/// # Errors
/// If the connection is gone.
pub fn sever(socket: impl AsFd) -> io::Result<()> {
    Ok(rustix::net::shutdown(socket, rustix::net::Shutdown::Both)?)
}

/// Appends what has arrived to `input`, at most `wanted` bytes. Returns how many those were, 0 at the end of the
/// stream; `None` if nothing has arrived.
///
/// # Errors
/// If the connection is gone.
pub fn receive(socket: impl AsFd, input: &mut Vec<u8>, wanted: usize) -> io::Result<Option<usize>> {
    input.reserve(wanted);
    let (held, socket) = (input.len(), socket.as_fd());
    let room = &mut input.spare_capacity_mut()[..wanted];
    let received = retry_on_intr(|| rustix::net::recv(socket, &mut *room, RecvFlags::DONTWAIT).map(|(_, count)| count));
    match received {
        Ok(count) => {
            // SAFETY: recv(2) has initialized that many bytes.
            unsafe { input.set_len(held + count) };
            Ok(Some(count))
        }
        Err(Errno::AGAIN) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// [`receive`], with the descriptor that came with the bytes. Further descriptors are closed.
///
/// # Errors
/// If the connection is gone.
pub fn receive_with(
    socket: impl AsFd,
    input: &mut Vec<u8>,
    wanted: usize,
) -> io::Result<(Option<usize>, Option<OwnedFd>)> {
    let mut bytes = vec![0; wanted];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let socket = socket.as_fd();
    let mut buffers = [IoSliceMut::new(&mut bytes)];
    let received = match retry_on_intr(|| rustix::net::recvmsg(socket, &mut buffers, &mut ancillary, flags)) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN) => return Ok((None, None)),
        Err(error) => return Err(error.into()),
    };
    input.extend_from_slice(&bytes[..received]);
    let mut passed = None;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(descriptors) = message {
            for descriptor in descriptors {
                passed.get_or_insert(descriptor);
            }
        }
    }
    Ok((Some(received), passed))
}
