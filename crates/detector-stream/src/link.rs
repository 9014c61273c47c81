//! Messages on a connection: reading and writing for both sides, with deadlines.

use super::answers::FromService;
use super::bad_message::BadMessage;
use super::message::{BodyChecksum, HEAD_BYTES_MAX, HEADER_BYTES, Header, send};
use super::socket::Socket;
use super::to_service::ToService;
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Buffer for heads; bodies bypass it.
const BUFFER_BYTES: usize = 64 << 10;
/// Bodies are received in pieces of this size, whose checksum is computed while they are in the CPU's own cache.
pub const PIECE_BYTES: usize = 512 << 10;
/// Socket buffer sizes for connections within a host, for each end; the kernel doubles them for its own overhead.
const NEAR_SEND_BYTES: usize = 128 << 10;
const NEAR_RECEIVE_BYTES: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error(transparent)]
    Message(#[from] BadMessage),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl LinkError {
    /// Whether nothing arrived within the connection's deadline.
    pub fn is_silence(&self) -> bool {
        // Error kinds of a read timeout on different systems.
        matches!(self, LinkError::Io(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}

/// The receiving side of a connection.
pub struct Incoming {
    from: BufReader<Within>,
    head: Vec<u8>,
}

/// A socket with an optional deadline for all reads together.
struct Within {
    socket: Socket,
    deadline: Option<Instant>,
}

impl Read for Within {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(deadline) = self.deadline {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
        }
        self.socket.read(into)
    }
}

impl Incoming {
    pub fn new(from: impl Into<Socket>) -> Incoming {
        let from = Within { socket: from.into(), deadline: None };
        Incoming { from: BufReader::with_capacity(BUFFER_BYTES, from), head: Vec::new() }
    }

    /// Sets the deadline for everything read from here on. `None`: the socket's own timeout applies to each read, and
    /// the caller must set it again. The deadline does not cover bodies.
    pub fn expect_until(&mut self, deadline: Option<Instant>) {
        self.from.get_mut().deadline = deadline;
    }

    /// Whether bytes of the next message have arrived.
    pub fn has_more(&self) -> bool {
        !self.from.buffer().is_empty()
            || rustix::io::ioctl_fionread(&self.from.get_ref().socket).is_ok_and(|more| more > 0)
    }

    /// Whether the peer has closed the connection, or it is broken. Discards data that still arrives and does not
    /// block; for callers that need no more messages.
    pub fn has_ended(&mut self) -> bool {
        /// Further data are read by the next call.
        const PIECES_MAX: usize = 16;
        let mut piece = [0; 4096];
        for _ in 0..PIECES_MAX {
            match rustix::net::recv(&self.from.get_ref().socket, &mut piece, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return true,
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return error != Errno::AGAIN,
            }
        }
        false
    }

    /// Header and head of the next message; `None` if the peer has closed the connection in order.
    fn next(&mut self) -> Result<Option<Header>, LinkError> {
        if self.from.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut bytes = [0; HEADER_BYTES];
        self.from.read_exact(&mut bytes)?;
        let header = Header::decode(&bytes)?;
        debug_assert!(header.head_bytes as usize <= HEAD_BYTES_MAX, "a header is checked");
        self.head.resize(header.head_bytes as usize, 0);
        self.from.read_exact(&mut self.head)?;
        header.check_head(&self.head)?;
        Ok(Some(header))
    }

    /// Reads the next message from a client without its body, which must be read with [`Incoming::body`].
    ///
    /// # Errors
    /// If the connection breaks, is silent for too long, or receives an invalid message.
    pub fn from_client(&mut self) -> Result<Option<(Header, ToService)>, LinkError> {
        let Some(header) = self.next()? else { return Ok(None) };
        let message = ToService::decode(&header, &self.head)?;
        Ok(Some((header, message)))
    }

    /// Reads the next message from the service.
    ///
    /// # Errors
    /// Same as [`Incoming::from_client`].
    pub fn from_service(&mut self) -> Result<Option<FromService>, LinkError> {
        let Some(header) = self.next()? else { return Ok(None) };
        Ok(Some(FromService::decode(&header, &self.head)?))
    }

    /// Replaces `body` by the body of this header's message, and returns whether its checksum matches.
    ///
    /// # Errors
    /// Same as [`Incoming::from_client`].
    pub fn body(&mut self, header: &Header, checksum: BodyChecksum, body: &mut Vec<u8>) -> Result<bool, LinkError> {
        let wanted = header.body_bytes as usize;
        if body.capacity() < wanted {
            // New memory comes zeroed from the kernel.
            *body = vec![0; wanted];
        }
        // Existing content is not cleared again.
        body.resize(wanted, 0);
        let mut sum = checksum.begin();
        for piece in body.chunks_mut(PIECE_BYTES) {
            self.fill(piece)?;
            sum.add(piece);
        }
        Ok(sum.end() == header.checksum)
    }

    /// Reads the body of this header's message in pieces. Each piece overwrites `piece`, and all but the last have its
    /// full length. Returns whether the checksum matches; if not, results computed from the pieces must be discarded.
    ///
    /// # Errors
    /// Same as [`Incoming::from_client`].
    pub fn pieces(
        &mut self,
        header: &Header,
        checksum: BodyChecksum,
        piece: &mut [u8],
        mut take: impl FnMut(&[u8]),
    ) -> Result<bool, LinkError> {
        let (mut left, mut sum) = (header.body_bytes as usize, checksum.begin());
        while left > 0 {
            let bytes = left.min(piece.len());
            let piece = &mut piece[..bytes];
            self.fill(piece)?;
            sum.add(piece);
            take(piece);
            left -= bytes;
        }
        Ok(sum.end() == header.checksum)
    }

    /// Reads the next part of a body.
    fn fill(&mut self, piece: &mut [u8]) -> Result<(), LinkError> {
        let buffered = self.from.buffer();
        let mut filled = buffered.len().min(piece.len());
        piece[..filled].copy_from_slice(&buffered[..filled]);
        self.from.consume(filled);
        while filled < piece.len() {
            // The kernel collects the whole piece, which saves system calls.
            match rustix::net::recv(&self.from.get_ref().socket, &mut piece[filled..], RecvFlags::WAITALL) {
                Ok((0, _)) => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
                Ok((count, _)) => filled += count,
                Err(Errno::INTR) => {}
                Err(error) => return Err(io::Error::from(error).into()),
            }
        }
        Ok(())
    }
}

/// Makes the kernel close a connection whose peer host has been unreachable for `wait`. A service that does not read is
/// not unreachable.
///
/// # Errors
/// If the kernel does not support the options.
pub fn notice_loss(socket: &TcpStream, wait: Duration) -> io::Result<()> {
    let milliseconds = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, milliseconds)?;
    sockopt::set_socket_keepalive(socket, true)?;
    Ok(sockopt::set_tcp_keepidle(socket, wait / 2)?)
}

/// Limits the socket buffers of a connection within one host. Its latency is short, and megabytes of buffered data
/// would leave the CPU's cache before they are read. For other hosts the kernel sizes the buffers by measurement.
///
/// # Errors
/// If the socket is not connected.
pub fn hold_little(socket: &TcpStream) -> io::Result<()> {
    if socket.local_addr()?.ip() == socket.peer_addr()?.ip() {
        sockopt::set_socket_send_buffer_size(socket, NEAR_SEND_BYTES)?;
        sockopt::set_socket_recv_buffer_size(socket, NEAR_RECEIVE_BYTES)?;
    }
    Ok(())
}

/// Sends a message of the service.
///
/// # Errors
/// If the connection breaks or accepts no data for too long.
pub fn send_to_client(to: &mut impl Write, message: &FromService) -> io::Result<()> {
    send(to, message.encode(), &[], 0)
}

/// Sends a message of a client with its body in parts.
///
/// # Errors
/// Same as [`send_to_client`].
pub fn send_to_service(to: &mut impl Write, message: &ToService, body: &[&[u8]], sum: u64) -> io::Result<()> {
    send(to, message.encode(), body, sum)
}
