//! Listens, and authenticates clients.

use super::{Incoming, encoded, send, within};
use crate::event_loop::{LoopHandle, Watched};
use crate::link::slot::Slot;
use crate::link::stream::StreamLink;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::net::{self, PeerProcess, SocketPlace};
use varve_env::random;
use varve_env::readiness::Watch;
use varve_env::shm_slot::ServerSide;
use varve_proto::frame::{FrameError, HEADER_BYTES};
use varve_proto::handshake::exchange::{Binding, ExchangeError, Responder};
use varve_proto::handshake::{
    Answer, Channel, Greeting, HELLO_BYTES_MAX, Hello, KeyId, Nonce, Offer, VolumeKey, Welcome,
};

/// Deadline for the reply to a peer whose handshake has failed. It fits into the buffer of any socket that is read.
const FAREWELL_TIME: Duration = Duration::from_secs(1);

/// Bytes read from a peer that is turned away, such as a Hello in flight: if they stayed unread, TCP could discard the
/// reply.
const DRAINED_MAX: usize = 4096;

/// Accepts connections.
pub struct Listener {
    socket: Watched,
    channel: Channel,
}

/// The other end of a connection, as the kernel knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerOrigin {
    Process(PeerProcess),
    Host(SocketAddr),
}

/// A connection whose peer is not authenticated.
pub struct UnauthenticatedConnection {
    socket: Watched,
    pub origin: PeerOrigin,
}

/// The reason why a client was not admitted.
#[derive(Debug, thiserror::Error)]
pub enum AdmitError {
    #[error("the handshake did not complete within {0:?}")]
    Deadline(Duration),
    #[error("the connection ended in the handshake, after {0} bytes of a message")]
    Ended(usize),
    #[error("the first frame is not a Hello message: {0}")]
    Garbage(FrameError),
    #[error("refused: {0}")]
    Refused(String),
    #[error("limit reached: {0}")]
    Crowded(String),
    #[error("cannot encrypt the server's reply: {0}")]
    Unsealed(#[from] ExchangeError),
    #[error("the connection failed in the handshake: {0}")]
    Io(#[from] io::Error),
}

/// A server's decisions about clients.
pub trait Admission {
    /// Held while an admitted client is connected.
    type Admitted;

    fn volume(&self) -> [u8; 16];

    fn worker(&self) -> u16;

    /// The volume, in replies to clients.
    fn volume_name(&self) -> String;

    /// The key of this number; `None` if there is none. The error is a reason that the client is told.
    fn key(&self, id: KeyId) -> impl Future<Output = Result<Option<VolumeKey>, String>>;

    /// Decides about a client that has proved `key`, and returns the reply. The error is the refusal.
    fn admit(
        &self,
        hello: &Hello,
        offer: &Offer,
        key: VolumeKey,
        origin: PeerOrigin,
    ) -> Result<(Self::Admitted, Welcome), Welcome>;
}

impl Listener {
    /// Listens at `place`; a Unix socket has the permissions `mode`.
    ///
    /// # Errors
    /// If the address is in use or not this host's, or the path cannot be made.
    pub fn new(event_loop: &LoopHandle, place: &SocketPlace, mode: u32) -> io::Result<Listener> {
        let socket = event_loop.watch(net::listen(place, mode)?, Watch::Input)?;
        let channel = match place {
            SocketPlace::Unix(_) => Channel::Local,
            SocketPlace::Tcp(_) => Channel::Network,
        };
        Ok(Listener { socket, channel })
    }

    /// The address of a TCP listener.
    ///
    /// # Errors
    /// If it is a Unix socket.
    pub fn tcp_address(&self) -> io::Result<SocketAddr> {
        net::tcp_address(&self.socket)
    }

    /// The next connection. The caller limits how many are unauthenticated at a time.
    ///
    /// # Errors
    /// Usually because no descriptors are left: the caller pauses.
    pub async fn accept(&self) -> io::Result<UnauthenticatedConnection> {
        loop {
            self.socket.input().await;
            let Some(accepted) = net::accept(&self.socket)? else {
                self.socket.no_input();
                continue;
            };
            let origin = match self.channel {
                Channel::Local => PeerOrigin::Process(net::peer_process(&accepted)?),
                Channel::Network => {
                    let tuned =
                        net::tune(&accepted, net::TCP_SILENCE_OF_CLIENTS).and_then(|()| net::tcp_peer(&accepted));
                    // It is gone already.
                    let Ok(address) = tuned else { continue };
                    PeerOrigin::Host(address)
                }
            };
            let socket = self.socket.event_loop().watch(accepted, Watch::Input)?;
            return Ok(UnauthenticatedConnection { socket, origin });
        }
    }
}

impl UnauthenticatedConnection {
    fn channel(&self) -> Channel {
        match self.origin {
            PeerOrigin::Process(_) => Channel::Local,
            PeerOrigin::Host(_) => Channel::Network,
        }
    }

    /// Authenticates the peer until `deadline`, or tells it why not.
    ///
    /// # Errors
    /// If the peer is not admitted.
    pub async fn admit<A: Admission>(
        self,
        admission: &A,
        deadline: Instant,
    ) -> Result<(StreamLink, A::Admitted), AdmitError> {
        let event_loop = self.socket.event_loop().clone();
        let time = deadline.since(event_loop.now());
        let admitted = within(&event_loop, deadline, async { Ok(self.shake_hands(admission).await) }).await;
        match admitted.unwrap_or(Err(AdmitError::Deadline(time))) {
            Ok((records, slot, admitted)) => {
                let records = (self.channel() == Channel::Network).then_some(records);
                Ok((StreamLink::new(self.socket, records, slot), admitted))
            }
            Err(error) => {
                // A peer that made a mistake can read the reason.
                if matches!(error, AdmitError::Deadline(_) | AdmitError::Garbage(_) | AdmitError::Ended(1..)) {
                    self.refuse(&Answer::Refused { reason: error.to_string() }).await;
                }
                Err(error)
            }
        }
    }

    /// Sends an answer in the clear, and closes the connection.
    pub async fn refuse(self, answer: &Answer) {
        self.farewell(&[encoded(answer)]).await;
    }

    /// Sends the greeting and an answer in the clear to a peer that waits for the greeting, and closes the connection.
    pub async fn turn_away(self, volume: [u8; 16], answer: &Answer) {
        let greeting = Greeting { version: varve_proto::VERSION, volume, nonce: random::bytes() };
        self.farewell(&[encoded(&greeting), encoded(answer)]).await;
    }

    async fn farewell(self, messages: &[io::Result<Vec<u8>>]) {
        let event_loop = self.socket.event_loop().clone();
        let deadline = event_loop.now().after(FAREWELL_TIME);
        let told = within(&event_loop, deadline, async {
            for message in messages.iter().flatten() {
                send(&self.socket, message).await?;
            }
            net::end_output(&self.socket)?;
            let mut drained = Vec::new();
            while drained.len() < DRAINED_MAX {
                self.socket.input().await;
                match net::receive(&self.socket, &mut drained, DRAINED_MAX)? {
                    Some(0) => break,
                    Some(_) => {}
                    None => self.socket.no_input(),
                }
            }
            Ok(())
        });
        // The peer may be gone, or not read.
        let _ = told.await;
    }

    async fn shake_hands<A: Admission>(
        &self,
        admission: &A,
    ) -> Result<(varve_proto::record::Records, Option<Slot>, A::Admitted), AdmitError> {
        let nonce = random::bytes();
        let (version, volume) = (varve_proto::VERSION, admission.volume());
        send(&self.socket, &encoded(&Greeting { version, volume, nonce })?).await?;
        let proved = match self.receive_hello().await? {
            Ok(hello) => self.prove(admission, &hello, nonce).await.map(|proved| (hello, proved)),
            Err(reason) => Err(reason),
        };
        let (hello, (responder, offer, key)) = match proved {
            Ok(proved) => proved,
            Err(reason) => {
                send(&self.socket, &encoded(&Answer::Refused { reason: reason.clone() })?).await?;
                return Err(AdmitError::Refused(reason));
            }
        };
        let (admitted, welcome) = match admission.admit(&hello, &offer, key, self.origin) {
            Ok((admitted, welcome)) => (Ok(admitted), welcome),
            Err(refusal) => (Err(refused(&refusal)), refusal),
        };
        let (sealed, records) = responder.finish(&welcome)?;
        let answer = encoded(&Answer::Sealed(sealed))?;
        let wants_slot = admitted.is_ok() && offer.shm_slot && self.channel() == Channel::Local;
        let slot = if wants_slot { self.send_with_slot(&answer)? } else { None };
        if slot.is_none() {
            send(&self.socket, &answer).await?;
        }
        Ok((records, slot, admitted?))
    }

    /// The inner error is a reason that the peer is told.
    async fn receive_hello(&self) -> Result<Result<Hello, String>, AdmitError> {
        let mut incoming = Incoming::default();
        if let Err(error) = incoming.receive(&self.socket, HELLO_BYTES_MAX).await {
            return Err(match error.kind() {
                io::ErrorKind::InvalidData => AdmitError::Garbage(FrameError::Malformed(0, error.to_string())),
                io::ErrorKind::UnexpectedEof => AdmitError::Ended(incoming.bytes.len()),
                _ => AdmitError::Io(error),
            });
        }
        let decoded = incoming.decode::<Hello>();
        let version = match &decoded {
            Ok(hello) => Some(hello.version),
            Err(FrameError::Malformed(..)) => Hello::version_in(&incoming.bytes[HEADER_BYTES..]),
            Err(_) => None,
        };
        match (version, decoded) {
            (Some(version), _) if version != varve_proto::VERSION => Ok(Err(format!(
                "the server speaks version {} of the protocol and the client version {version}: use the same varve on \
                 both",
                varve_proto::VERSION
            ))),
            (_, Ok(hello)) => Ok(Ok(hello)),
            (_, Err(error)) => Err(AdmitError::Garbage(error)),
        }
    }

    /// Verifies that the client holds the key that it names. The error is a reason that it is told in the clear.
    async fn prove<A: Admission>(
        &self,
        admission: &A,
        hello: &Hello,
        nonce: Nonce,
    ) -> Result<(Responder, Offer, VolumeKey), String> {
        if hello.volume != admission.volume() {
            return Err(format!("the server serves {}, not the client's volume", admission.volume_name()));
        }
        if hello.worker != admission.worker() {
            return Err(format!("this is worker {} of the server, not worker {}", admission.worker(), hello.worker));
        }
        // The work is the same for an unknown key as for a wrong one, so that nobody can learn which keys exist.
        let key = admission.key(hello.key).await?.unwrap_or_else(|| VolumeKey(random::bytes()));
        let binding = Binding {
            volume: hello.volume,
            key: hello.key,
            purpose: hello.purpose,
            session: hello.session,
            worker: hello.worker,
            channel: self.channel(),
            nonce,
        };
        match Responder::accept(&key, &binding, &hello.sealed) {
            Ok((responder, offer)) => Ok((responder, offer, key)),
            Err(ExchangeError::Unauthentic) => Err(format!(
                "the proof does not fit the key of {}: is the client's key of another volume, was it revoked, or was the \
                 volume formatted again?",
                admission.volume_name()
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Sends a whole message with a shared-memory slot; `None` if there can be none, and then nothing was sent.
    fn send_with_slot(&self, message: &[u8]) -> io::Result<Option<Slot>> {
        let made = ServerSide::make().and_then(|(side, shared)| {
            let sent = net::send_with(&self.socket, message, shared.as_fd())?;
            Ok((side, sent))
        });
        match made {
            Ok((side, Some(sent))) if sent == message.len() => Ok(Some(Slot::Server(side))),
            // The first reply on a connection fits, unless the peer prevents it.
            Ok((_, Some(_))) => Err(io::ErrorKind::WriteZero.into()),
            Ok((_, None)) => Ok(None),
            Err(error) => {
                tracing::debug!("a connection has no shared-memory slot: {error}");
                Ok(None)
            }
        }
    }
}

fn refused(welcome: &Welcome) -> AdmitError {
    match welcome {
        Welcome::Refused { reason } => AdmitError::Refused(reason.clone()),
        Welcome::Crowded { reason } => AdmitError::Crowded(reason.clone()),
        Welcome::Accepted { .. } | Welcome::Peer => AdmitError::Refused("the server refused by a welcome".into()),
    }
}
