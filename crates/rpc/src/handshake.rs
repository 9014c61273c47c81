//! The handshake of `varve_proto::handshake` on a socket of a loop: its messages, a byte at a time, none beyond them.

pub mod accept;
pub mod dial;

use crate::event_loop::{LoopHandle, Watched};
use futures::future::{Either, select};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use varve_env::clock::Instant;
use varve_env::net;
use varve_proto::frame::{self, HEADER_BYTES};

/// The result of `work`, or an error of the kind `TimedOut`.
async fn within<T>(event_loop: &LoopHandle, at: Instant, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    match select(pin!(work), pin!(event_loop.timer(at))).await {
        Either::Left((done, _)) => done,
        Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

fn encoded(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    frame::encode(message, &mut out).map_err(io::Error::other)?;
    Ok(out)
}

async fn send(socket: &Watched, bytes: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        socket.room().await;
        match net::send(socket, &bytes[sent..])? {
            Some(count) => sent += count,
            None => socket.no_room()?,
        }
    }
    socket.all_written()
}

/// The bytes of one message, and the descriptor that came with its first byte.
#[derive(Default)]
struct Incoming {
    bytes: Vec<u8>,
    descriptor: Option<OwnedFd>,
}

impl Incoming {
    /// Receives one message of at most `bytes_max` bytes without its header.
    async fn receive(&mut self, socket: &Watched, bytes_max: usize) -> io::Result<()> {
        self.bytes.clear();
        self.fill(socket, HEADER_BYTES).await?;
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let body = self.bytes.first_chunk().map(frame::body_len).transpose().map_err(invalid)?.unwrap_or(0);
        if body > bytes_max {
            let text = format!("a message of {body} bytes is too long for the handshake");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        self.fill(socket, HEADER_BYTES + body).await
    }

    async fn fill(&mut self, socket: &Watched, until: usize) -> io::Result<()> {
        while self.bytes.len() < until {
            socket.input().await;
            let wanted = until - self.bytes.len();
            let (received, descriptor) = net::receive_with(socket, &mut self.bytes, wanted)?;
            self.descriptor = self.descriptor.take().or(descriptor);
            match received {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(_) => {}
                None => socket.no_input(),
            }
        }
        Ok(())
    }

    fn decode<M: DeserializeOwned>(&self) -> Result<M, frame::FrameError> {
        match frame::take(&self.bytes)? {
            Some((message, _)) => Ok(message),
            None => Err(frame::FrameError::Checksum(self.bytes.len())),
        }
    }
}
