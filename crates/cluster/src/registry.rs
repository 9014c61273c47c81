//! Servers find each other by shared records: a chain of map versions, and a chain of beats for each server.
//!
//! A registry gives each number of a chain to one writer. All else follows from that:
//!
//! - **A change of the map** is the version after the one it was made from. If two servers change the same version, one
//!   of them is told so and starts again from the other's.
//! - **A server renews** by taking the next number of its own chain. **A kill** takes that same number. So a killed
//!   server cannot renew, and a server that renewed was not killed, whatever any cache shows.

use crate::map::{ClusterMap, ServerId};
use async_trait::async_trait;
use std::fmt;
use std::time::Duration;

/// A number in a server's chain of beats. The first one is 1; 0 stands for none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Beat(pub u64);

impl Beat {
    pub fn next(self) -> Beat {
        Beat(self.0 + 1)
    }
}

/// The holder of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    Ours,
    /// Somebody else has it, or a later number exists.
    Others,
}

/// The newest record in a server's chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pulse {
    Beats(Beat),
    Killed,
}

#[async_trait]
pub trait Registry: Send + Sync + fmt::Debug {
    /// The newest map. `None`: no server has ever joined the volume.
    async fn newest_map(&self) -> Result<Option<ClusterMap>, RegistryError>;

    /// The newest map once it is later than version `than`. `None` if it is not within `wait`.
    async fn later_map(&self, than: u64, wait: Duration) -> Result<Option<ClusterMap>, RegistryError>;

    /// Publishes `map`, made from the version before it.
    async fn publish(&self, map: &ClusterMap) -> Result<Taken, RegistryError>;

    /// Takes `beat`, the number after the last one taken, for `server` itself.
    async fn renew(&self, server: ServerId, beat: Beat) -> Result<Taken, RegistryError>;

    /// Takes `beat`, the number after the last one seen, so that `server` cannot renew any more.
    async fn kill(&self, server: ServerId, beat: Beat) -> Result<Taken, RegistryError>;

    /// The newest record in the chain of `server`.
    async fn pulse(&self, server: ServerId) -> Result<Pulse, RegistryError>;

    /// Removes what is not needed any more of a server that has left. A kill stays.
    async fn forget(&self, server: ServerId) -> Result<(), RegistryError>;
}

/// The registry did not do what it was asked, or its answer is lost.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// It may work later.
    #[error("the registry {registry} does not answer: {reason}")]
    Unavailable { registry: String, reason: String },
    /// It refuses, and will go on to do so.
    #[error("the registry {registry} refuses: {reason}")]
    Refused { registry: String, reason: String },
    /// Its store is read-only or full.
    #[error("the registry {registry} takes no writes: {reason}")]
    Unwritable { registry: String, reason: String },
    /// It holds something that no server of this version writes.
    #[error("the registry {registry} holds {what}, which this version of varve cannot read: {reason}")]
    Unreadable { registry: String, what: String, reason: String },
}

/// The bytes of a map, as both registries keep it.
pub(crate) fn encode_map(map: &ClusterMap) -> Vec<u8> {
    serde_json::to_vec(map).expect("a map has string keys and no fallible parts")
}

/// Reads version `version` of the map.
pub(crate) fn decode_map(bytes: &[u8], version: u64) -> Result<ClusterMap, String> {
    let map: ClusterMap = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    if map.version != version {
        return Err(format!("it is marked as version {}", map.version));
    }
    if !map.is_consistent() {
        return Err("it contradicts itself".to_owned());
    }
    Ok(map)
}
