//! Connects to a server and authenticates both sides.

use super::{Incoming, encoded, send, within};
use crate::client::Connection;
use crate::event_loop::{LoopHandle, Watched};
use crate::limits::Limits;
use crate::link::slot::Slot;
use crate::link::stream::StreamLink;
use crate::pool::BlockingPool;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;
use varve_env::identity::is_nobody;
use varve_env::net::{self, SocketPlace};
use varve_env::readiness::Watch;
use varve_env::shm_slot::ClientSide;
use varve_proto::handshake::exchange::{Binding, ExchangeError, Initiator};
use varve_proto::handshake::{
    ANSWER_BYTES_MAX, Answer, Channel, Greeting, Hello, KeyId, Offer, Purpose, VolumeKey, Welcome, printable,
};
use varve_proto::record::Records;

/// A server on the same host or network accepts a connection within this time, or is not there.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// The server allows as long for the whole handshake.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// The reason why there is no connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DialError {
    /// Nobody accepts connections at the address.
    #[error("{1}")]
    NotConnected(io::ErrorKind, String),
    /// The server may come back.
    #[error("{0}")]
    Unreachable(String),
    /// A server lives and takes no client now: it is at a limit, its lease is late, or it is stopping.
    #[error("{0}")]
    Unready(String),
    /// The process at the address may not serve the volume. Nothing was sent to it.
    #[error("{0}")]
    Untrusted(String),
    /// The server refuses this client, or is not the expected one.
    #[error("{0}")]
    Refused(String),
}

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    Unix(PathBuf),
    /// `host:port`, looked up for each connection.
    Tcp(String),
}

/// This client, and what it expects of a server.
#[derive(Clone, Debug)]
pub struct Identity {
    pub volume: [u8; 16],
    pub key_id: KeyId,
    pub key: VolumeKey,
    pub session: u64,
    pub purpose: Purpose,
    /// Users whose processes may serve the volume at a Unix socket. Nothing is sent to others, and nothing of them is
    /// trusted, least of all descriptors.
    pub trusted: Vec<u32>,
}

/// Makes connections to one worker of a server.
#[derive(Clone)]
pub struct Dialer {
    pub event_loop: LoopHandle,
    /// Looks names up.
    pub pool: BlockingPool,
    pub address: ServerAddress,
    pub worker: u16,
    pub identity: Identity,
    pub limits: Limits,
}

impl Dialer {
    /// Connects, and authenticates both sides.
    ///
    /// # Errors
    /// If there is no server, or the two do not accept each other.
    pub async fn dial(&self) -> Result<(Connection, Welcome), DialError> {
        let at = |error: io::Error| DialError::NotConnected(error.kind(), format!("{}: {error}", self.place()));
        let socket = match &self.address {
            ServerAddress::Unix(path) => {
                let socket = self.connect(&SocketPlace::Unix(path.clone())).await.map_err(at)?;
                self.check_process(&socket)?;
                socket
            }
            ServerAddress::Tcp(name) => self.connect_tcp(name).await.map_err(at)?,
        };
        let deadline = self.event_loop.now().after(HANDSHAKE_TIME);
        let shaken = within(&self.event_loop, deadline, async { Ok(self.shake_hands(&socket).await) }).await;
        let (welcome, records, slot) = shaken.unwrap_or_else(|error| Err(broken(&error)))?;
        match &welcome {
            Welcome::Refused { reason } => return Err(DialError::Refused(printable(reason))),
            Welcome::Crowded { reason } => return Err(DialError::Unready(printable(reason))),
            Welcome::Accepted { .. } | Welcome::Peer => {}
        }
        let records = (self.channel() == Channel::Network).then_some(records);
        let link = StreamLink::new(socket, records, slot);
        Ok((Connection::new(&self.event_loop, link, self.limits), welcome))
    }

    fn place(&self) -> String {
        match &self.address {
            ServerAddress::Unix(path) => path.display().to_string(),
            ServerAddress::Tcp(name) => name.clone(),
        }
    }

    fn channel(&self) -> Channel {
        match &self.address {
            ServerAddress::Unix(_) => Channel::Local,
            ServerAddress::Tcp(_) => Channel::Network,
        }
    }

    async fn connect(&self, place: &SocketPlace) -> io::Result<Watched> {
        let socket = self.event_loop.watch(net::connect(place)?, Watch::InputAndRoom)?;
        let deadline = self.event_loop.now().after(CONNECT_TIME);
        within(&self.event_loop, deadline, async {
            // Room that was assumed says nothing; the kernel reports when the connection is made or has failed.
            socket.no_room()?;
            socket.room().await;
            net::connected(&socket)
        })
        .await?;
        Ok(socket)
    }

    async fn connect_tcp(&self, name: &str) -> io::Result<Watched> {
        let lookup = name.to_owned();
        let looked_up = self.pool.run(move || lookup.to_socket_addrs().map(Vec::from_iter)).await;
        let found: Vec<SocketAddr> = looked_up.map_err(io::Error::other)??;
        let mut last = io::Error::other("the name has no address");
        for address in found {
            match self.connect(&SocketPlace::Tcp(address)).await {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn check_process(&self, socket: &Watched) -> Result<(), DialError> {
        let uid = net::peer_process(socket).map_err(|error| DialError::Unreachable(error.to_string()))?.uid;
        if !is_nobody(uid) && self.identity.trusted.contains(&uid) {
            return Ok(());
        }
        Err(DialError::Untrusted(format!(
            "the process that listens at {} runs as user {uid}, which may not serve the volume: nothing was sent to it",
            self.place()
        )))
    }

    async fn shake_hands(&self, socket: &Watched) -> Result<(Welcome, Records, Option<Slot>), DialError> {
        let mut incoming = Incoming::default();
        incoming.receive(socket, ANSWER_BYTES_MAX).await.map_err(|error| broken(&error))?;
        let greeting: Greeting = incoming.decode().map_err(|error| broken(&io::Error::other(error)))?;
        self.check_greeting(&greeting)?;
        let Identity { volume, key_id, ref key, session, purpose, .. } = self.identity;
        let (worker, channel) = (self.worker, self.channel());
        let binding = Binding { volume, key: key_id, purpose, session, worker, channel, nonce: greeting.nonce };
        let offer = Offer { shm_slot: channel == Channel::Local, credential: Vec::new() };
        let (initiator, sealed) = Initiator::begin(key, &binding, &offer).map_err(unproved)?;
        let hello = Hello { version: varve_proto::VERSION, volume, key: key_id, purpose, session, worker, sealed };
        let answered = async {
            match send(socket, &encoded(&hello)?).await {
                // A server that is full replies at once and closes the connection; its reply can still be read.
                Err(error) if !matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
                    Err(error)
                }
                _ => incoming.receive(socket, ANSWER_BYTES_MAX).await,
            }
        };
        answered.await.map_err(|error| broken(&error))?;
        let answer: Answer = incoming.decode().map_err(|error| broken(&io::Error::other(error)))?;
        let (welcome, records) = match answer {
            Answer::Sealed(sealed) => initiator.finish(&sealed).map_err(unproved)?,
            Answer::Refused { reason } => return Err(DialError::Refused(printable(&reason))),
            Answer::Crowded { reason } => return Err(DialError::Unready(printable(&reason))),
        };
        let slot = if offer.shm_slot { incoming.descriptor.and_then(opened) } else { None };
        Ok((welcome, records, slot))
    }

    fn check_greeting(&self, greeting: &Greeting) -> Result<(), DialError> {
        if greeting.version != varve_proto::VERSION {
            return Err(DialError::Refused(format!(
                "the server speaks version {} of the protocol and this program version {}: use the same varve on both",
                greeting.version,
                varve_proto::VERSION
            )));
        }
        if greeting.volume != self.identity.volume {
            // The address is that of an earlier server, and will be replaced.
            return Err(DialError::Unreachable("the server serves another volume".into()));
        }
        Ok(())
    }
}

/// Without the slot, all messages go through the socket.
fn opened(descriptor: OwnedFd) -> Option<Slot> {
    ClientSide::open(&descriptor)
        .inspect_err(|error| tracing::debug!("the server's shared-memory slot cannot be used: {error}"))
        .ok()
        .map(Slot::Client)
}

fn unproved(error: ExchangeError) -> DialError {
    DialError::Refused(match error {
        ExchangeError::Unauthentic => {
            "the server does not hold the volume's key, or its messages were changed on the way: the connection is not \
             trusted"
                .to_owned()
        }
        error => format!("the handshake failed: {error}"),
    })
}

/// An incomplete handshake. A server closes the connection if it may not reply, because its lease is late.
fn broken(error: &io::Error) -> DialError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => DialError::Unready(
            "the server closed the connection before the handshake was done: it is stopping, its lease is late, or it has \
             too many unauthenticated connections"
                .into(),
        ),
        io::ErrorKind::TimedOut => DialError::Unreachable(format!(
            "the server has not answered the handshake within {} s",
            HANDSHAKE_TIME.as_secs()
        )),
        _ => DialError::Unreachable(format!("the handshake failed: {error}")),
    }
}
