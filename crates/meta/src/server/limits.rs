//! How much of a server one peer may use, and how long it may take.
//!
//! A *principal* stands for peers that the server cannot distinguish: the processes of one user on this host, the
//! holders of one host's key, the clients at one network address. Each limit exists for all peers together and,
//! smaller, for one principal. A principal at its limit gets an error, while others can still connect.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;
use varve_proto::handshake::KeyId;

/// The limits for peers. Tests lower them.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Deadline of a handshake, which has two short messages: a peer that has not sent its own by then is not a client.
    pub handshake: Duration,
    /// A connection is closed if the peer neither completes a frame or record nor reads a reply for this long.
    pub stall: Duration,
    /// Maximum unauthenticated connections of one worker: enough for the threads of some hosts that all reconnect at
    /// once when the server is back. Each costs a descriptor and some KiB.
    pub unauthenticated: usize,
    pub strangers_of_one: usize,
    /// Maximum authenticated connections of one worker. A client has one connection per thread to each worker, so a
    /// thousand connections are many hosts. Each costs a descriptor and some 20 KiB, a shared-memory slot costs 36 KiB
    /// of shared memory, and records over TCP cost up to 150 KiB.
    pub connections: usize,
    pub connections_of_one: usize,
    /// Maximum sessions of the server, including those within their grace period: far above the mounts of one host. It
    /// bounds the memory that clients can use by connecting and disconnecting.
    pub sessions: usize,
    pub sessions_of_one: usize,
    /// How often the server rereads the keys of connected hosts from the store. A revoked key ends its connections
    /// within this time, and its sessions within 5 s more.
    pub keys_checked_every: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            handshake: Duration::from_secs(10),
            stall: Duration::from_secs(60),
            unauthenticated: 512,
            strangers_of_one: 256,
            connections: 1536,
            connections_of_one: 1024,
            sessions: 4096,
            sessions_of_one: 1024,
            keys_checked_every: Duration::from_secs(5),
        }
    }
}

/// A set of peers that the server cannot distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Principal {
    /// The processes of a user on this host.
    User(u32),
    /// The clients at one network address.
    Source(Source),
    /// The holders of a host's key.
    Key(KeyId),
}

impl std::fmt::Display for Principal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Principal::User(uid) => write!(f, "user {uid}"),
            Principal::Source(source) => write!(f, "the network address {source}"),
            Principal::Key(key) => write!(f, "the key {key}"),
        }
    }
}

/// The origin of a TCP peer, as far as the peer cannot choose it freely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    Loopback,
    /// An IPv4 address, or the first 64 bits of an IPv6 address, because a host may use any number of addresses in its
    /// /64.
    Network(IpAddr),
}

impl Source {
    pub fn of(address: IpAddr) -> Source {
        let address = address.to_canonical();
        match address {
            _ if address.is_loopback() => Source::Loopback,
            IpAddr::V4(_) => Source::Network(address),
            IpAddr::V6(address) => Source::Network(Ipv6Addr::from_bits(address.to_bits() & (!0 << 64)).into()),
        }
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Source::Loopback => f.write_str("loopback"),
            Source::Network(IpAddr::V4(address)) => write!(f, "{address}"),
            Source::Network(IpAddr::V6(address)) => write!(f, "{address}/64"),
        }
    }
}

/// A count for each principal.
#[derive(Debug)]
pub struct Counts<S = Principal>(HashMap<S, usize>);

impl<S> Default for Counts<S> {
    fn default() -> Counts<S> {
        Counts(HashMap::new())
    }
}

impl<S: Copy + Eq + Hash> Counts<S> {
    pub fn of(&self, principal: S) -> usize {
        self.0.get(&principal).copied().unwrap_or_default()
    }

    pub fn add(&mut self, principal: S) {
        *self.0.entry(principal).or_default() += 1;
    }

    pub fn take(&mut self, principal: S) {
        if let Some(count) = self.0.get_mut(&principal) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&principal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: addresses that one host can choose freely are one source.
    #[test]
    fn a_host_is_one_source() {
        let source = |address: &str| Source::of(address.parse().unwrap());
        assert_eq!(source("127.0.0.1"), source("127.9.9.9"));
        assert_eq!(source("127.0.0.1"), source("::1"));
        assert_eq!(source("::ffff:127.0.0.1"), Source::Loopback);
        assert_eq!(source("::ffff:10.0.0.1"), source("10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff::9"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        assert_eq!(source("2001:db8:1:2::1").to_string(), "2001:db8:1:2::/64");
    }

    /// Promise: one principal reaches its limit before all peers together do.
    #[test]
    fn limits_of_one_principal_leave_room() {
        let limits = Limits::default();
        assert!(limits.strangers_of_one < limits.unauthenticated);
        assert!(limits.connections_of_one < limits.connections);
        assert!(limits.sessions_of_one < limits.sessions);
    }

    /// Promise: a count that returns to zero is removed.
    #[test]
    fn counts_forget_what_is_gone() {
        let mut counts = Counts::default();
        counts.add(Principal::User(1));
        counts.add(Principal::User(1));
        counts.take(Principal::User(1));
        assert_eq!((counts.of(Principal::User(1)), counts.of(Principal::User(2))), (1, 0));
        counts.take(Principal::User(1));
        assert!(counts.0.is_empty());
    }
}
