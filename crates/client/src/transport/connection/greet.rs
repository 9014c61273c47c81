//! The client's side of the handshake (`varve_proto::handshake`).

use super::{HANDSHAKE_TIMEOUT, ServerConnection, SocketStream, WAIT_SLICE, is_timeout};
use crate::transport::FindError;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use varve_env::clock::{Clock, Instant};
use varve_env::shm_slot::ClientSide;
use varve_proto::frame;
use varve_proto::handshake::exchange::{Binding, ExchangeError, Initiator};
use varve_proto::handshake::{Answer, Channel, Greeting, Hello, KeyId, Offer, Purpose, VolumeKey, Welcome, printable};
use varve_proto::record::Records;
use varve_types::{SessionId, VolumeId};

/// The identity of this client, and what it expects of a server.
#[derive(Clone)]
pub(in crate::transport) struct Identity {
    pub volume: VolumeId,
    pub key_id: KeyId,
    pub key: VolumeKey,
    pub session: SessionId,
    pub purpose: Purpose,
}

impl ServerConnection {
    /// Authenticates both sides, until `deadline` and not longer than the server waits. On success the connection is ready
    /// for requests to `worker`.
    pub fn shake_hands(
        &mut self,
        identity: &Identity,
        worker: usize,
        deadline: Instant,
        clock: &dyn Clock,
    ) -> Result<Welcome, FindError> {
        let broken = |error: io::Error| broken_handshake(&error);
        let deadline = clock.monotonic().after(HANDSHAKE_TIMEOUT).min(deadline);
        self.set_timeouts(HANDSHAKE_TIMEOUT).map_err(broken)?;
        let greeting: Greeting = self.receive_by(deadline, clock).map_err(broken)?;
        check_greeting(&greeting, identity)?;
        let shm_slot = matches!(self.stream, SocketStream::Unix(_));
        let binding = Binding {
            volume: identity.volume.0,
            key: identity.key_id,
            purpose: identity.purpose,
            session: identity.session.0,
            // A server has a few hundred workers at most.
            worker: worker as u16,
            channel: if shm_slot { Channel::Local } else { Channel::Network },
            nonce: greeting.nonce,
        };
        let offer = Offer { shm_slot, credential: Vec::new() };
        let (initiator, sealed) = Initiator::begin(&identity.key, &binding, &offer).map_err(unproved)?;
        let Binding { volume, key, purpose, session, worker, .. } = binding;
        let hello = Hello { version: varve_proto::VERSION, volume, key, purpose, session, worker, sealed };
        let answer = self.ask_for_answer(&hello, shm_slot, deadline, clock).map_err(broken)?;
        let (welcome, records) = opened(initiator, answer)?;
        match &welcome {
            Welcome::Refused { reason } => return Err(FindError::Refused(printable(reason))),
            Welcome::Crowded { reason } => return Err(FindError::Unready(printable(reason))),
            Welcome::Peer => return Err(FindError::Refused("the server takes this client for a server".into())),
            Welcome::Accepted { .. } => {}
        }
        self.open = true;
        if let SocketStream::Tcp(stream) = &mut self.stream {
            stream.protect(records);
        }
        self.set_timeouts(WAIT_SLICE).map_err(broken)?;
        Ok(welcome)
    }

    fn ask_for_answer(
        &mut self,
        hello: &Hello,
        shm_slot: bool,
        deadline: Instant,
        clock: &dyn Clock,
    ) -> io::Result<Answer> {
        self.output.clear();
        frame::encode(hello, &mut self.output).map_err(io::Error::other)?;
        match self.write() {
            // A server at its connection limit replies at once and closes the connection; its reply can still be read.
            Err(error) if matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                return self.receive_by(deadline, clock);
            }
            written => written?,
        }
        if shm_slot {
            self.wait = deadline.since(clock.monotonic());
            self.wait_for_bytes().and_then(|()| self.read_with_shm_slot())?;
        }
        self.receive_by(deadline, clock)
    }

    /// Receives one complete message before the deadline.
    fn receive_by<M: serde::de::DeserializeOwned>(&mut self, deadline: Instant, clock: &dyn Clock) -> io::Result<M> {
        loop {
            if let Some((message, _)) = frame::take(&self.greeted).map_err(io::Error::other)? {
                self.greeted.clear();
                return Ok(message);
            }
            self.wait = deadline.since(clock.monotonic());
            self.wait_for_bytes()?;
            match self.read_some(RecvFlags::DONTWAIT) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads the first available bytes, and takes the shared-memory slot that comes with them, if there is one. The
    /// peer's user was checked at connect, so descriptors of other users do not reach this point.
    fn read_with_shm_slot(&mut self) -> io::Result<()> {
        let SocketStream::Unix(stream) = &self.stream else { return Ok(()) };
        let mut bytes = [0; 512];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(stream, &mut [IoSliceMut::new(&mut bytes)], &mut ancillary, flags)?;
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.greeted.extend_from_slice(&bytes[..received.bytes]);
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                for shared in descriptors {
                    // Without the slot all messages go through the socket.
                    match ClientSide::open(&shared) {
                        Ok(shm_slot) => self.shm_slot = Some(shm_slot),
                        Err(error) => tracing::debug!("the server's shared-memory slot cannot be used: {error}"),
                    }
                }
            }
        }
        Ok(())
    }
}

fn check_greeting(greeting: &Greeting, identity: &Identity) -> Result<(), FindError> {
    if greeting.version != varve_proto::VERSION {
        return Err(FindError::Refused(format!(
            "the server speaks version {} of the protocol and this program version {}: use the same varve on both",
            greeting.version,
            varve_proto::VERSION
        )));
    }
    if greeting.volume != identity.volume.0 {
        // The socket belongs to the server of an earlier volume: the server record will be replaced or removed.
        return Err(FindError::Absent(format!(
            "the server serves volume {}, not {}",
            VolumeId(greeting.volume),
            identity.volume
        )));
    }
    Ok(())
}

/// Decodes the server's answer, sealed or in the clear.
fn opened(initiator: Initiator, answer: Answer) -> Result<(Welcome, Records), FindError> {
    match answer {
        Answer::Sealed(sealed) => initiator.finish(&sealed).map_err(unproved),
        Answer::Refused { reason } => Err(FindError::Refused(printable(&reason))),
        Answer::Crowded { reason } => Err(FindError::Unready(printable(&reason))),
    }
}

fn unproved(error: ExchangeError) -> FindError {
    FindError::Refused(match error {
        ExchangeError::Unauthentic => {
            "the server does not hold the volume's key, or its messages were changed on the way: the connection is not \
             trusted"
                .to_owned()
        }
        error => format!("the handshake failed: {error}"),
    })
}

/// An incomplete handshake. A server closes the connection if it may not reply, because its lease is late.
fn broken_handshake(error: &io::Error) -> FindError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            FindError::Unready(
                "the server closed the connection before the handshake was done: it is stopping, its lease is late, or it has \
                 too many unauthenticated connections"
                    .into(),
            )
        }
        _ if is_timeout(error) => FindError::Absent(format!(
            "the server has not answered the handshake within {} s: it hangs, or has too many connections",
            HANDSHAKE_TIMEOUT.as_secs()
        )),
        _ => FindError::Absent(format!("the handshake failed: {error}")),
    }
}

#[cfg(test)]
mod tests;
