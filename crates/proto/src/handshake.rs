//! The handshake of a connection: server and client prove to each other that they hold the same key, and agree on version,
//! volume, purpose, session and worker. `rfcs/0006-handshake.md` has the reasons.
//!
//! ```text
//! server → client   Greeting   version, volume, nonce
//! client → server   Hello      version, volume, key id, purpose, session, worker; sealed: Offer
//! server → client   Answer     sealed: Welcome; or, in the clear, the reason of a refusal
//! ```
//!
//! `Offer` and `Welcome` are the payloads of the two messages of a Noise handshake ([`exchange`]) whose pre-shared key is the
//! volume's or the host's, and whose prologue binds everything that was said in the clear. Over TCP all further bytes are
//! records of that exchange ([`crate::record`]). Over a Unix socket they are frames in the clear, because there each side has
//! asked the kernel for the other's user before it sent anything.

pub mod exchange;

use serde::{Deserialize, Serialize};

/// Chosen by the server for each connection: with it in the prologue, a recorded `Hello` is of no use.
pub type Nonce = [u8; 16];

/// A key that is shared with a server: the volume's own, or that of a host.
#[derive(Clone, PartialEq, Eq)]
pub struct VolumeKey(pub [u8; 32]);

impl std::fmt::Debug for VolumeKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("VolumeKey(..)")
    }
}

/// Which key a client holds, by the number that the server knows it by.
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

/// The largest `Hello`, in bytes: a server reads no more from a peer that has proved nothing.
pub const HELLO_BYTES_MAX: usize = 512;

/// The largest `Answer`, in bytes: a Noise message of the largest size, and its frame.
pub const ANSWER_BYTES_MAX: usize = 66_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    pub version: u16,
    pub volume: [u8; 16],
    pub nonce: Nonce,
}

/// Why a client comes. An embedded server, whose kernel caches freely, admits observers only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Purpose {
    /// May change the volume.
    Work,
    /// Reads status and attributes; changes are refused with EROFS.
    Observe,
}

/// What a connection runs over. It is not sent: each side knows, and the prologue binds it, so that a handshake for a Unix
/// socket, which no records follow, cannot be relayed to a TCP listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    /// A Unix socket.
    Local,
    /// TCP.
    Network,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// First in every version, so that a server can name another one in its refusal.
    pub version: u16,
    pub volume: [u8; 16],
    pub key: KeyId,
    pub purpose: Purpose,
    pub session: u64,
    /// The worker that the client wants to talk to.
    pub worker: u16,
    /// The first message of the exchange, with an [`Offer`].
    #[serde(with = "crate::octets")]
    pub sealed: Vec<u8>,
}

/// What a client says under the key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// Over a Unix socket: the client would take a shared-memory slot (`varve_env::shm_slot`), whose descriptor then
    /// comes with the first byte of the answer.
    pub shm_slot: bool,
    /// Reserved for a proof of the user that a client speaks for. Empty in this version; a server refuses any other.
    #[serde(with = "crate::octets")]
    pub credential: Vec<u8>,
}

/// The server's answer to a `Hello`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The second message of the exchange, with a [`Welcome`].
    Sealed(#[serde(with = "crate::octets")] Vec<u8>),
    /// In the clear: nobody has proved anything yet. A client reports it and does nothing else on the strength of it.
    Refused { reason: String },
    /// In the clear: there is no room for the connection now; there may be when the client comes again.
    Crowded { reason: String },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    Accepted {
        /// A number that the server has chosen at its start: another one is another server, which has not heard of what the
        /// client has open.
        server: u64,
        shards: u16,
        inline_limit: u32,
        sync_interval_ms: u32,
        owner_uid: u32,
        /// Which worker owns each shard: an index into `workers`.
        owners: Vec<u16>,
        /// Where each worker listens.
        workers: Vec<WorkerAddress>,
        /// The server is inside a mount and serves it alone.
        embedded: bool,
    },
    Refused {
        reason: String,
    },
    /// There is no room for the client now; there may be when it comes again.
    Crowded {
        reason: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerAddress {
    /// Path of the worker's Unix socket, for clients of the same host.
    pub unix: Option<String>,
    /// `host:port` of the worker's TCP listener.
    pub tcp: Option<String>,
}

/// Longest reason that is shown of a peer's, in characters.
const REASON_CHARS_MAX: usize = 600;

/// A peer's reason as it may be shown: a peer that has proved nothing might send escapes for the terminal, or a book.
pub fn printable(reason: &str) -> String {
    let shown = |char: char| if char.is_control() { '\u{fffd}' } else { char };
    reason.chars().take(REASON_CHARS_MAX).map(shown).collect()
}
