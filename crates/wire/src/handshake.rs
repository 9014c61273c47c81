//! The first words on a connection: server and client prove to each other that they can read the volume's key, and
//! agree on version and volume.
//!
//! ```text
//! server → client   Greeting   version, volume, nonce
//! client → server   Hello      version, session, purpose, nonce, proof of the key over both nonces, mailbox or not
//! server → client   Welcome    the server's proof, its settings and addresses, or Refused or Crowded with the reason
//! ```
//!
//! The key is 32 random bytes in the store, readable by the volume's owner only: whoever can read it could change the
//! volume's files anyway. The proof is BLAKE3 keyed with it over a label and both nonces.

use serde::{Deserialize, Serialize};

pub type Nonce = [u8; 16];
pub type Proof = [u8; 32];

/// The key of a volume: proof of the right to talk to its servers.
#[derive(Clone)]
pub struct VolumeKey(pub [u8; 32]);

impl VolumeKey {
    pub fn prove(&self, side: Side, client: &Nonce, server: &Nonce) -> Proof {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(match side {
            Side::Client => b"varve handshake client v1",
            Side::Server => b"varve handshake server v1",
        });
        hasher.update(client).update(server);
        *hasher.finalize().as_bytes()
    }

    /// Compared in constant time.
    pub fn verify(&self, side: Side, client: &Nonce, server: &Nonce, proof: &Proof) -> bool {
        blake3::Hash::from(self.prove(side, client, server)) == blake3::Hash::from(*proof)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

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

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    pub version: u16,
    pub session: u64,
    pub purpose: Purpose,
    pub nonce: Nonce,
    pub proof: Proof,
    /// Over a Unix socket: the client would take a mailbox (`varve_world::mailbox`), whose descriptor then comes with the
    /// first byte of the welcome.
    pub mailbox: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Welcome {
    Accepted {
        proof: Proof,
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
