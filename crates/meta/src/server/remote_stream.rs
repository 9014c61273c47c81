//! A TCP connection: the handshake is unencrypted, and all later bytes are in records of its key exchange
//! (`varve_proto::record`).
//!
//! An authenticated peer may still be slow or faulty. A connection buffers at most one incomplete record, the bytes of
//! the complete records before it, and [`SEALED_AT_ONCE`] bytes of replies.

use super::local_stream::{AtHand, ShareMemory, receive};
use bytes::BytesMut;
use rustix::buffer::spare_capacity;
use rustix::net::RecvFlags;
use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::TcpStream;
use varve_proto::handshake::Channel;
use varve_proto::record::{RecordError, Records};

/// Bytes requested from the kernel at a time: a record of the usual size and the beginning of the next one.
const RECEIVED_AT_ONCE: usize = 32 * 1024;

/// Bytes of replies that are sealed before they are written: few calls for large replies, and a limit on the bytes that
/// are buffered twice.
const SEALED_AT_ONCE: usize = 128 * 1024;

/// An empty buffer whose capacity exceeds this is freed.
const BUFFER_BYTES_KEPT: usize = 32 * 1024;

pub struct RemoteStream {
    socket: TcpStream,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// `Some` from the end of the handshake on.
    records: Option<Records>,
    /// Bytes of incomplete records.
    received: Vec<u8>,
    /// Decrypted bytes of records; the first `given` bytes have been taken.
    plain: Vec<u8>,
    given: usize,
    /// Why nothing more can be read.
    failed: Option<RecordError>,
}

pub struct Reader<'a>(&'a RemoteStream);

pub struct Writer<'a> {
    stream: &'a RemoteStream,
    sealed: Vec<u8>,
    /// How many bytes of `sealed` have been written.
    sent: usize,
    /// How many of the caller's bytes `sealed` holds.
    covers: usize,
}

impl RemoteStream {
    pub fn new(socket: TcpStream) -> RemoteStream {
        RemoteStream { socket, state: RefCell::default() }
    }

    pub fn split(&self) -> (Reader<'_>, Writer<'_>) {
        (Reader(self), Writer { stream: self, sealed: Vec::new(), sent: 0, covers: 0 })
    }
}

impl State {
    fn at_hand(&self) -> &[u8] {
        &self.plain[self.given..]
    }

    fn take(&mut self, count: usize) {
        self.given += count;
        if self.given == self.plain.len() {
            self.plain.clear();
            self.plain.shrink_to(BUFFER_BYTES_KEPT);
            self.given = 0;
        }
    }

    /// Opens the received records. An error is permanent; a read returns it after all earlier bytes.
    fn open(&mut self) {
        let Some(records) = &mut self.records else { return };
        if self.failed.is_none()
            && let Err(error) = records.open_all(&mut self.received, &mut self.plain)
        {
            self.received = Vec::new();
            self.failed = Some(error);
        }
        if self.received.is_empty() {
            self.received.shrink_to(BUFFER_BYTES_KEPT);
        }
    }

    /// Reads from the socket once, without waiting. Returns the number of bytes; 0 at its end.
    fn receive(&mut self, socket: &TcpStream) -> io::Result<usize> {
        self.received.reserve(RECEIVED_AT_ONCE);
        let (_, count) = rustix::net::recv(socket, spare_capacity(&mut self.received), RecvFlags::DONTWAIT)?;
        Ok(count)
    }
}

impl AtHand for Reader<'_> {
    fn at_hand(&self, input: &mut BytesMut) -> Option<usize> {
        let mut state = self.0.state.borrow_mut();
        if state.records.is_none() {
            return receive(&self.0.socket, input);
        }
        if state.at_hand().is_empty() && state.failed.is_none() && state.receive(&self.0.socket).is_ok() {
            state.open();
        }
        let count = state.at_hand().len();
        input.extend_from_slice(state.at_hand());
        state.take(count);
        (count > 0).then_some(count)
    }

    fn midway(&self) -> bool {
        !self.0.state.borrow().received.is_empty()
    }
}

impl AsyncRead for Reader<'_> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let RemoteStream { socket, state } = self.0;
        let mut state = state.borrow_mut();
        loop {
            let count = state.at_hand().len().min(buffer.remaining());
            if count > 0 {
                buffer.put_slice(&state.at_hand()[..count]);
                state.take(count);
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = &state.failed {
                return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, error.clone())));
            }
            ready!(socket.poll_read_ready(context))?;
            let handshake = state.records.is_none();
            let received = socket.try_io(Interest::READABLE, || match handshake {
                // Read no more than the caller asked for: a record may follow the handshake.
                true => {
                    let room = buffer.initialize_unfilled();
                    let (_, count) = rustix::net::recv(socket, room, RecvFlags::DONTWAIT)?;
                    Ok(count)
                }
                false => state.receive(socket),
            });
            match received {
                Ok(count) if handshake => {
                    buffer.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Ok(0) if state.received.is_empty() => return Poll::Ready(Ok(())),
                Ok(0) => {
                    let bytes = state.received.len();
                    let reason = format!("the connection ended in the middle of a record, after {bytes} bytes");
                    return Poll::Ready(Err(io::Error::new(io::ErrorKind::UnexpectedEof, reason)));
                }
                Ok(_) => state.open(),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl ShareMemory for Writer<'_> {
    fn send_with_shm_slot(&mut self, _: &[u8]) -> io::Result<bool> {
        Ok(false)
    }

    fn channel(&self) -> Channel {
        Channel::Network
    }

    fn protect(&mut self, records: Records) {
        self.stream.state.borrow_mut().records = Some(records);
    }
}

impl Writer<'_> {
    /// Seals as many of `bytes` as may be buffered. The previous sealed bytes must have been written.
    fn seal(&mut self, bytes: &[u8]) -> io::Result<()> {
        let piece = &bytes[..bytes.len().min(SEALED_AT_ONCE)];
        self.sealed.clear();
        self.sealed.shrink_to(BUFFER_BYTES_KEPT);
        match &mut self.stream.state.borrow_mut().records {
            Some(records) => records.seal(piece, &mut self.sealed).map_err(io::Error::other)?,
            None => self.sealed.extend_from_slice(piece),
        }
        (self.sent, self.covers) = (0, piece.len());
        Ok(())
    }
}

impl AsyncWrite for Writer<'_> {
    /// Ready when a piece of `bytes` was written completely. Until then the caller must pass the same bytes again,
    /// because they are already sealed; it may append more.
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.covers == 0 {
            self.seal(bytes)?;
        }
        debug_assert!(bytes.len() >= self.covers, "what was begun is ended");
        while self.sent < self.sealed.len() {
            ready!(self.stream.socket.poll_write_ready(context))?;
            match self.stream.socket.try_write(&self.sealed[self.sent..]) {
                Ok(0) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Ok(count) => self.sent += count,
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(std::mem::take(&mut self.covers)))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(rustix::net::shutdown(&self.stream.socket, rustix::net::Shutdown::Write).map_err(Into::into))
    }
}
