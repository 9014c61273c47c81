//! Messages over a connection: what both sides read and write, with their deadlines.

use super::message::{HEAD_BYTES_MAX, HEADER_BYTES, Header, send};
use super::{BadMessage, BodyChecksum, FromService, Socket, ToService};
use rustix::io::Errno;
use rustix::net::{RecvFlags, sockopt};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// Heads are taken from here; bodies pass it by.
const BUFFER_BYTES: usize = 64 << 10;
/// A body is taken in such pieces, whose checksum is computed while they are still in the processor's own cache.
pub const PIECE_BYTES: usize = 512 << 10;
/// What the kernel may hold of a connection within a host, at either end; it takes twice as much for what it keeps with it.
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
    /// Whether nothing came within the connection's deadline.
    pub fn is_silence(&self) -> bool {
        // A read with a deadline ends so, by the name that each system has for it.
        matches!(self, LinkError::Io(error)
            if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }
}

/// The reading side of a connection.
pub struct Incoming {
    from: BufReader<Within>,
    head: Vec<u8>,
}

/// A socket, of which all reads together may have a deadline.
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

    /// Until when all that is read from here on must have come, however it comes; `None`: the socket's own wait holds
    /// of each read, and is the caller's to set again. Bodies are no part of it.
    pub fn expect_until(&mut self, deadline: Option<Instant>) {
        self.from.get_mut().deadline = deadline;
    }

    /// Whether some of the next message is there already.
    pub fn has_more(&self) -> bool {
        !self.from.buffer().is_empty()
            || rustix::io::ioctl_fionread(&self.from.get_ref().socket).is_ok_and(|more| more > 0)
    }

    /// Whether the other side has closed the connection, or it is broken. What still comes is let go of: for who expects nothing
    /// more that matters, and does not wait.
    pub fn has_ended(&mut self) -> bool {
        /// More is looked at the next time.
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

    /// Header and head of the next message; `None` if the other side has ended in order.
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

    /// What a client says next, without its body, which is to be taken by [`Incoming::body`].
    ///
    /// # Errors
    /// If the connection breaks, is silent for too long, or what comes is no message.
    pub fn from_client(&mut self) -> Result<Option<(Header, ToService)>, LinkError> {
        let Some(header) = self.next()? else { return Ok(None) };
        let message = ToService::decode(&header, &self.head)?;
        Ok(Some((header, message)))
    }

    /// What the service says next.
    ///
    /// # Errors
    /// As of [`Incoming::from_client`].
    pub fn from_service(&mut self) -> Result<Option<FromService>, LinkError> {
        let Some(header) = self.next()? else { return Ok(None) };
        Ok(Some(FromService::decode(&header, &self.head)?))
    }

    /// The body of the message whose header this is, in the place of what `body` held, and whether it is whole.
    ///
    /// # Errors
    /// As of [`Incoming::from_client`].
    pub fn body(&mut self, header: &Header, checksum: BodyChecksum, body: &mut Vec<u8>) -> Result<bool, LinkError> {
        let wanted = header.body_bytes as usize;
        if body.capacity() < wanted {
            // Comes cleared from the kernel.
            *body = vec![0; wanted];
        }
        // What it held is not cleared again.
        body.resize(wanted, 0);
        let mut sum = checksum.begin();
        for piece in body.chunks_mut(PIECE_BYTES) {
            self.fill(piece)?;
            sum.add(piece);
        }
        Ok(sum.end() == header.checksum)
    }

    /// The body of the message whose header this is, in pieces that each take the place of what `piece` held, all but the
    /// last of its length, and whether it was whole: what was made of them is of no worth otherwise.
    ///
    /// # Errors
    /// As of [`Incoming::from_client`].
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

    /// What comes next of a body.
    fn fill(&mut self, piece: &mut [u8]) -> Result<(), LinkError> {
        let buffered = self.from.buffer();
        let mut filled = buffered.len().min(piece.len());
        piece[..filled].copy_from_slice(&buffered[..filled]);
        self.from.consume(filled);
        while filled < piece.len() {
            // The kernel collects the whole piece: every return to here would cost a call.
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

/// Has the kernel end a connection whose other host is gone for `wait`. A service that does not read is not gone.
///
/// # Errors
/// If the kernel does not know how.
pub fn notice_loss(socket: &TcpStream, wait: Duration) -> io::Result<()> {
    let milliseconds = u32::try_from(wait.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(socket, milliseconds)?;
    sockopt::set_socket_keepalive(socket, true)?;
    Ok(sockopt::set_tcp_keepidle(socket, wait / 2)?)
}

/// Between two ends on one host nothing is on its way for long, and what the kernel holds of it, megabytes if it may, has left
/// the processor's cache before it is read: it holds little. Other hosts' connections are left to the kernel, which
/// measures what they need.
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

/// Sends a message of a service.
///
/// # Errors
/// If the connection breaks or takes nothing for too long.
pub fn send_to_client(to: &mut impl Write, message: &FromService) -> io::Result<()> {
    send(to, message.encode(), &[], 0)
}

/// Sends a message of a client with its body in parts.
///
/// # Errors
/// As of [`send_to_client`].
pub fn send_to_service(to: &mut impl Write, message: &ToService, body: &[&[u8]], sum: u64) -> io::Result<()> {
    send(to, message.encode(), body, sum)
}
