//! A connection over TCP: the handshake in the clear, and records of its exchange from then on (`varve_proto::record`).
//!
//! A peer that has proved its key may still be slow or wrong. A connection buffers at most one incomplete record, the bytes
//! of the complete ones before it, and [`SEALED_AT_ONCE`] bytes of answers.

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

/// Asked of the kernel at a time: a record of the usual size, and the next one's beginning.
const RECEIVED_AT_ONCE: usize = 32 * 1024;

/// Bytes of answers that are sealed before they are written: few calls for large answers, and a bound on what waits twice.
const SEALED_AT_ONCE: usize = 128 * 1024;

/// Buffers that grew beyond this are given back once empty.
const BUFFER_BYTES_KEPT: usize = 32 * 1024;

pub struct RemoteStream {
    socket: TcpStream,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    /// From the end of the handshake on.
    records: Option<Records>,
    /// Records that are not all there.
    received: Vec<u8>,
    /// Bytes of records, up to `given` taken already.
    plain: Vec<u8>,
    given: usize,
    /// Why nothing more can be read.
    failed: Option<RecordError>,
}

pub struct Reader<'a>(&'a RemoteStream);

pub struct Writer<'a> {
    stream: &'a RemoteStream,
    sealed: Vec<u8>,
    /// How many bytes of `sealed` have gone.
    sent: usize,
    /// How many bytes of the caller's are in `sealed`.
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

    /// Opens what has come. An error stays, and is what is read when all before it was.
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

    /// One look at the socket, which does not wait. How many bytes came; 0 at its end.
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
                // No more than was asked for: what follows the handshake may be a record.
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
    /// Seals as much of `bytes` as may wait. Not before what was sealed has gone.
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
    /// Ready when a piece of `bytes` has gone as a whole. Until then the caller comes again with the same bytes, for they are sealed
    /// already, and perhaps some more behind them.
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
