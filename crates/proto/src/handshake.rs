//! The handshake of a connection: server and client prove to each other that they hold the same key, and agree on
//! version, volume, purpose, session and worker. `rfcs/0006-handshake.md` gives the reasons.
//!
//! ```text
//! server → client   Greeting   version, volume, nonce
//! client → server   Hello      version, volume, key id, purpose, session, worker; sealed: Offer
//! server → client   Answer     sealed: Welcome; or, in the clear, the reason of a refusal
//! ```
//!
//! `Offer` and `Welcome` are the payloads of the two messages of a Noise handshake ([`exchange`]). Its pre-shared key
//! is the volume's or the host's, and its prologue binds everything that was sent in the clear. Over TCP all further
//! bytes are records of that exchange ([`crate::record`]). Over a Unix socket they are frames in the clear, because
//! each side has obtained the other's uid from the kernel before it sent anything.

pub mod exchange;

use crate::WireShardMap;
use serde::{Deserialize, Serialize};

/// Chosen by the server for each connection. It is part of the prologue, so a recorded `Hello` cannot be replayed.
pub type Nonce = [u8; 16];

/// A key shared with a server: the volume's own, or a host's.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumeKey(pub [u8; 32]);

impl std::fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VolumeKey(..)")
    }
}

/// The number by which the server identifies the key that a client holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyId(pub u64);

impl KeyId {
    /// The volume's own key, `STORE/key`.
    pub const VOLUME: KeyId = KeyId(0);
}

impl std::fmt::Display for KeyId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// The largest `Hello`, in bytes: a server reads no more from an unauthenticated peer.
pub const HELLO_BYTES_MAX: usize = 512;

/// The largest `Answer`, in bytes: the largest Noise message and its frame.
pub const ANSWER_BYTES_MAX: usize = 66_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub version: u16,
    pub volume: [u8; 16],
    pub nonce: Nonce,
}

/// The access that a client requests. An embedded server, whose kernel caches without restriction, admits only
/// observers and administrators.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// May change the volume.
    Work,
    /// Reads status and attributes; changes are refused with EROFS.
    Observe,
    /// As `Observe`, and may move shards between workers. Needs the volume's own key.
    Administer,
    /// Another server of the volume, for the calls between their shards. Its `session` is its own number. Needs the
    /// volume's own key, and only the listener for servers admits it.
    Peer {
        /// The number of the server that the caller means to reach.
        server: u64,
    },
}

/// The transport of a connection. It is not sent: each side knows it, and the prologue binds it, so that a handshake
/// for a Unix socket, which no records follow, cannot be relayed to a TCP listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// A Unix socket.
    Local,
    /// TCP.
    Network,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// First in every version, so that a server can name its own version when it refuses the client.
    pub version: u16,
    pub volume: [u8; 16],
    pub key: KeyId,
    pub purpose: Purpose,
    pub session: u64,
    /// The worker to which the client connects.
    pub worker: u16,
    /// The first message of the exchange, with an [`Offer`].
    #[serde(with = "serde_bytes")]
    pub sealed: Vec<u8>,
}

impl Hello {
    /// The version in the body of a Hello of any version.
    pub fn version_in(body: &[u8]) -> Option<u16> {
        postcard::take_from_bytes(body).ok().map(|(version, _)| version)
    }
}

/// The client's message under the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Over a Unix socket: the client accepts a shared-memory slot (`varve_env::shm_slot`), whose descriptor then comes
    /// with the first byte of the answer.
    pub shm_slot: bool,
    /// Reserved for a proof of the user on whose behalf a client calls. Empty in this version; a server refuses any
    /// other value.
    #[serde(with = "serde_bytes")]
    pub credential: Vec<u8>,
}

/// The server's answer to a `Hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The second message of the exchange, with a [`Welcome`].
    Sealed(#[serde(with = "serde_bytes")] Vec<u8>),
    /// In the clear, because neither side is authenticated yet. The client logs the reason and does not act on it.
    Refused { reason: String },
    /// In the clear: the server has reached its limit of connections. The client may retry later.
    Crowded { reason: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    Accepted {
        /// A number that the server chose when it started. A different number means that the server was restarted and
        /// does not know which files the client has open.
        server: u64,
        shards: u16,
        inline_limit: u32,
        sync_interval_ms: u32,
        owner_uid: u32,
        /// It names this server, unless the server has left the others.
        map: WireShardMap,
        /// The server runs inside a mount and serves only that mount.
        embedded: bool,
    },
    Refused {
        reason: String,
    },
    /// The server has reached its limit of clients, or does not know the calling server yet. The peer may retry later.
    Crowded {
        reason: String,
    },
    /// To [`Purpose::Peer`]: the server accepts calls of the other server.
    Peer,
}

/// Longest part of a peer's reason that is shown, in characters.
const REASON_CHARS_MAX: usize = 600;

/// A peer's reason in a form that is safe to show: an unauthenticated peer might send terminal escapes or an
/// excessively long text.
pub fn printable(reason: &str) -> String {
    let shown = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    reason.chars().take(REASON_CHARS_MAX).map(shown).collect()
}
