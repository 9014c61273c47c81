//! A connection over a Unix socket, and through a shared-memory slot if its client has taken one. The worker watches
//! the socket for input only, not for buffer space.
//!
//! A Unix socket notifies its watchers of buffer space whenever the peer has read bytes, even if nobody waits for
//! space. Tokio's own stream watches for both, so each reply that the peer reads would wake the worker once more for
//! nothing. The worker watches for space only while a reply does not fit, on a second descriptor of the socket, because
//! the kernel keeps one watch per descriptor.

use super::shm_slots::ShmSlot;
use bytes::{BufMut, BytesMut};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use std::cell::OnceCell;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::UnixStream;
use varve_proto::handshake::Channel;
use varve_proto::record::Records;

pub struct LocalStream {
    socket: AsyncFd<OwnedFd>,
    shm_slot: OnceCell<Rc<ShmSlot>>,
}

pub struct LocalStreamReader<'a>(&'a LocalStream);

pub struct LocalStreamWriter<'a> {
    stream: &'a LocalStream,
    /// `Some` while a reply does not fit into the socket buffer.
    room: Option<AsyncFd<OwnedFd>>,
    /// Part of a reply has been sent through the socket, and the rest must follow it there.
    midway: bool,
}

impl LocalStream {
    pub fn new(stream: UnixStream) -> io::Result<LocalStream> {
        let socket = OwnedFd::from(stream.into_std()?);
        Ok(LocalStream { socket: watch(socket, Interest::READABLE)?, shm_slot: OnceCell::new() })
    }

    pub fn split(&self) -> (LocalStreamReader<'_>, LocalStreamWriter<'_>) {
        (LocalStreamReader(self), LocalStreamWriter { stream: self, room: None, midway: false })
    }
}

fn watch(socket: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an owned descriptor stays open and unchanged while it is owned, here by the returned value.
    Ok(unsafe { AsyncFd::register_with_interest(socket, interest) }?)
}

/// The reading side of a connection, which can poll the kernel for input, independently of the runtime's readiness
/// state.
pub trait AtHand {
    /// Takes the input that has arrived. `None` if there is none, or at the end or on an error, which a read reports.
    fn at_hand(&self, input: &mut BytesMut) -> Option<usize>;

    /// The shared-memory slot in which the client may post requests.
    fn shm_slot(&self) -> Option<&Rc<ShmSlot>> {
        None
    }

    /// An incomplete message has arrived.
    fn midway(&self) -> bool {
        false
    }
}

/// The writing side of a connection, which can share memory with a peer on the same host.
pub trait ShareMemory {
    /// Sends a complete message together with a shared-memory slot. `false`: there can be no slot, and nothing was
    /// sent.
    fn send_with_shm_slot(&mut self, message: &[u8]) -> io::Result<bool>;

    /// The channel that the handshake is bound to.
    fn channel(&self) -> Channel;

    /// Called at the end of the handshake. Over TCP, all bytes in both directions are in `records` from here on.
    fn protect(&mut self, records: Records);
}

impl ShareMemory for LocalStreamWriter<'_> {
    fn send_with_shm_slot(&mut self, message: &[u8]) -> io::Result<bool> {
        let (shm_slot, shared) = match ShmSlot::make() {
            Ok(made) => made,
            Err(error) => {
                tracing::debug!("a connection has no shared-memory slot: {error}");
                return Ok(false);
            }
        };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let descriptors = [shared.as_fd()];
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is space for one");
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let socket = self.stream.socket.get_ref();
        let sent = match rustix::net::sendmsg(socket, &[IoSlice::new(message)], &mut ancillary, flags) {
            Ok(sent) => sent,
            // An example is too many descriptors in flight: nothing was sent, and the message is sent without a slot.
            Err(error) => {
                tracing::debug!("a connection has no shared-memory slot: {error}");
                return Ok(false);
            }
        };
        if sent < message.len() {
            // The first reply on a connection always fits, unless the peer prevents it.
            return Err(io::ErrorKind::WriteZero.into());
        }
        self.stream.shm_slot.get_or_init(|| Rc::new(shm_slot));
        Ok(true)
    }

    fn channel(&self) -> Channel {
        Channel::Local
    }

    /// Nothing to do: no third party can interfere, and the kernel has named the peer's user.
    fn protect(&mut self, _: Records) {}
}

impl AtHand for LocalStreamReader<'_> {
    fn at_hand(&self, input: &mut BytesMut) -> Option<usize> {
        match self.shm_slot() {
            Some(shm_slot) if shm_slot.is_polled() => shm_slot.take(input),
            _ => receive(self.0.socket.get_ref(), input),
        }
    }

    fn shm_slot(&self) -> Option<&Rc<ShmSlot>> {
        self.0.shm_slot.get()
    }
}

pub(super) fn receive(socket: impl AsFd, input: &mut BytesMut) -> Option<usize> {
    input.reserve(1);
    let room = input.chunk_mut();
    // SAFETY: uninitialised bytes stay uninitialised, except for those that recv(2) writes.
    let room = unsafe { room.as_uninit_slice_mut() };
    let (_, received) = rustix::net::recv(socket, room, RecvFlags::DONTWAIT).ok()?;
    // SAFETY: recv(2) has written `received` bytes.
    unsafe { input.advance_mut(received) };
    (received > 0).then_some(received)
}

impl AsyncRead for LocalStreamReader<'_> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let socket = &self.0.socket;
        if let Some(shm_slot) = self.shm_slot() {
            // SAFETY: uninitialised bytes stay uninitialised, except for those that are written.
            if let Poll::Ready(count) = shm_slot.poll_take(context, unsafe { buffer.unfilled_mut() }) {
                // SAFETY: `count` bytes were written.
                unsafe { buffer.assume_init(count) };
                buffer.advance(count);
                return Poll::Ready(Ok(()));
            }
        }
        loop {
            let mut ready = ready!(socket.poll_read_ready(context))?;
            let room = buffer.remaining();
            // SAFETY: uninitialised bytes stay uninitialised, except for those that recv(2) writes.
            let unfilled = unsafe { buffer.unfilled_mut() };
            match rustix::net::recv(socket.get_ref(), unfilled, RecvFlags::DONTWAIT) {
                Ok((_, received)) => {
                    // Fewer bytes than the buffer had space for: the socket is empty, and the kernel notifies again of
                    // the next bytes.
                    if received > 0 && received < room {
                        ready.clear_ready();
                    }
                    // SAFETY: recv(2) has written `received` bytes.
                    unsafe { buffer.assume_init(received) };
                    buffer.advance(received);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(Errno::INTR) => {}
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for LocalStreamWriter<'_> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if !self.midway
            && let Some(shm_slot) = self.stream.shm_slot.get()
            && shm_slot.answer(bytes)
        {
            return Poll::Ready(Ok(bytes.len()));
        }
        loop {
            match rustix::net::send(self.stream.socket.get_ref(), bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(sent) => {
                    self.room = None;
                    self.midway = sent < bytes.len();
                    return Poll::Ready(Ok(sent));
                }
                Err(Errno::AGAIN) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
            let room = match self.room.take() {
                Some(room) => room,
                None => watch(self.stream.socket.get_ref().try_clone()?, Interest::WRITABLE)?,
            };
            let room = self.room.insert(room);
            ready!(room.poll_write_ready(context))?.clear_ready();
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(
            rustix::net::shutdown(self.stream.socket.get_ref(), rustix::net::Shutdown::Write).map_err(Into::into),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    /// Promise: replies that do not fit wait for buffer space, and all of them arrive.
    #[tokio::test]
    async fn unsent_bytes_wait_for_buffer_space() {
        const BYTES: usize = 8 << 20;
        let (near, far) = UnixStream::pair().unwrap();
        let (near, far) = (LocalStream::new(near).unwrap(), LocalStream::new(far).unwrap());
        let sent: Vec<u8> = (0..BYTES).map(|at| (at % 251) as u8).collect();
        let (_, mut writer) = near.split();
        let (mut reader, _) = far.split();
        let mut received = Vec::new();
        let (written, read) = tokio::join!(
            async {
                let written = writer.write_all(&sent).await;
                writer.shutdown().await.and(written)
            },
            async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                reader.read_to_end(&mut received).await
            },
        );
        written.unwrap();
        read.unwrap();
        assert_eq!(received, sent);
    }
}
