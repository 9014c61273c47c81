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
    Killed(KillReason),
}

/// Why a server was killed, for the messages of that server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KillReason {
    /// It had not renewed.
    Silent,
    /// An administrator asked for it.
    Evicted,
}

const ALIVE: &[u8] = b"alive";
const KILLED: &[u8] = b"killed";
const EVICTED: &[u8] = b"evicted";

impl KillReason {
    /// The bytes of a kill, as both registries keep it.
    pub(crate) fn record(self) -> &'static [u8] {
        match self {
            KillReason::Silent => KILLED,
            KillReason::Evicted => EVICTED,
        }
    }
}

/// The bytes of a renewal.
pub(crate) const RENEWAL: &[u8] = ALIVE;

impl Pulse {
    /// Reads the newest record of a chain, number `beat`. `None`: it is neither a renewal nor a kill.
    pub(crate) fn decode(record: &[u8], beat: Beat) -> Option<Pulse> {
        match record {
            ALIVE => Some(Pulse::Beats(beat)),
            KILLED => Some(Pulse::Killed(KillReason::Silent)),
            EVICTED => Some(Pulse::Killed(KillReason::Evicted)),
            _ => None,
        }
    }

    pub fn is_killed(self) -> bool {
        matches!(self, Pulse::Killed(_))
    }
}

#[async_trait]
pub trait Registry: Send + Sync + fmt::Debug {
    /// The newest map. `None`: no server has ever joined the volume.
    async fn newest_map(&self) -> Result<Option<ClusterMap>, RegistryError>;

    /// The newest map once it is later than version `than`, which was there. `None` if it is not within `wait`.
    ///
    /// # Errors
    /// [`RegistryError::Lost`] if the newest map is an earlier one, or there is none.
    async fn later_map(&self, than: u64, wait: Duration) -> Result<Option<ClusterMap>, RegistryError>;

    /// Publishes `map`, made from the version before it.
    async fn publish(&self, map: &ClusterMap) -> Result<Taken, RegistryError>;

    /// Takes `beat`, the number after the last one taken, for `server` itself.
    async fn renew(&self, server: ServerId, beat: Beat) -> Result<Taken, RegistryError>;

    /// Takes `beat`, the number after the last one seen, so that `server` cannot renew any more.
    async fn kill(&self, server: ServerId, beat: Beat, reason: KillReason) -> Result<Taken, RegistryError>;

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
    /// Its content was removed, or replaced by an earlier one.
    #[error(
        "the registry {registry} has lost the cluster's map: version {known} was there, and {found}; stop all servers of the \
         volume, then start them again"
    )]
    Lost { registry: String, known: u64, found: FoundVersion },
    /// It holds something that no server of this version writes.
    #[error("the registry {registry} holds {what}, which this version of varve cannot read: {reason}")]
    Unreadable { registry: String, what: String, reason: String },
}

/// The newest version of the map in a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundVersion(pub Option<u64>);

impl fmt::Display for FoundVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(version) => write!(f, "now the newest is {version}"),
            None => f.write_str("now there is none"),
        }
    }
}

/// Fails if the newest map is earlier than one that was there.
pub(crate) fn check_not_lost(registry: &str, known: u64, newest: Option<u64>) -> Result<(), RegistryError> {
    match newest.unwrap_or(0) >= known {
        true => Ok(()),
        false => Err(RegistryError::Lost { registry: registry.to_owned(), known, found: FoundVersion(newest) }),
    }
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
