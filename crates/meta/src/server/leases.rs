//! Leases: how long a client may use a cached name or the cached attributes of a directory.
//!
//! A client resolves paths from its cache while it holds a lease on each directory of the path. A change that would
//! invalidate such a cache (rename, rmdir, chmod, chown of a directory) is delayed until the leases of *other* sessions
//! have ended; the session that makes the change knows about it. Leases are short and are never recalled, so a change
//! waits at most [`LEASE`]. They exist in memory only: a server that has just started waits one lease term instead of
//! persisting what its predecessor granted.
//!
//! Invariant: no lease is granted on data that was read before a change that had begun by the time of the grant. A
//! reader takes a [`LeaseTicket`] before it reads. A change raises the stripe's version when it begins, and holds its
//! keys until it has ended. A grant is refused if the version has changed or the key is held.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_env::key_hash::KeyHashing;
use varve_types::{InodeId, NameHash, SessionId};

/// Duration of a lease, which the client counts from the time when it sent the request. Long enough that walking a hot
/// path costs one lookup per second, short enough that a rename of a directory by another client causes a short delay
/// and not a hang.
pub const LEASE: Duration = Duration::from_secs(1);

/// Enough stripes that two workers seldom contend for one lock.
const STRIPES: usize = 64;

/// Limits the table to some tens of MiB. If a stripe is full of leases that have not expired, no more are granted.
const LEASES_PER_STRIPE_MAX: usize = 4096;

/// Sessions that may hold one lease at a time. A further session gets no lease and looks up again each time.
const HOLDERS_MAX: usize = 64;

/// The subject of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseKey {
    directory: InodeId,
    /// The name hash, or 0 for the directory itself; no name hashes to 0.
    hash: u64,
}

impl LeaseKey {
    /// The lease on the directory that a name in `parent` refers to.
    pub fn name(parent: InodeId, hash: NameHash) -> LeaseKey {
        LeaseKey { directory: parent, hash: hash.0 }
    }

    /// The lease on a directory's own attributes.
    pub fn attributes(directory: InodeId) -> LeaseKey {
        LeaseKey { directory, hash: 0 }
    }
}

/// Taken before a read whose result may be leased.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTicket {
    version: u64,
}

#[derive(Default)]
struct Lease {
    holders: Vec<(SessionId, Instant)>,
    /// Number of changes that have begun and not ended.
    held: u32,
}

#[derive(Default)]
struct Stripe {
    version: u64,
    leases: HashMap<LeaseKey, Lease, KeyHashing>,
}

pub struct Leases {
    clock: Arc<dyn Clock>,
    stripes: Vec<Mutex<Stripe>>,
    /// Leases granted by the previous server may last until this time.
    inherited_until: Instant,
}

impl Leases {
    /// `owned_since`: when this server took the volume's lock. No other server has granted leases since then.
    pub fn new(clock: Arc<dyn Clock>, owned_since: Instant) -> Leases {
        let stripes = (0..STRIPES).map(|_| Mutex::default()).collect();
        Leases { clock, stripes, inherited_until: owned_since.after(LEASE) }
    }

    /// Must be called before reading data that may be leased.
    pub fn ticket(&self, key: LeaseKey) -> LeaseTicket {
        LeaseTicket { version: self.stripe(key).lock().version }
    }

    /// Leases `key` to `session`. Returns the duration of the lease; zero means that the client must not cache the
    /// data.
    pub fn grant(&self, key: LeaseKey, session: SessionId, ticket: LeaseTicket) -> Duration {
        let now = self.clock.monotonic();
        let mut stripe = self.stripe(key).lock();
        if stripe.version != ticket.version {
            return Duration::ZERO;
        }
        if stripe.leases.len() >= LEASES_PER_STRIPE_MAX {
            stripe.leases.retain(|_, lease| {
                lease.holders.retain(|(_, until)| *until > now);
                lease.held > 0 || !lease.holders.is_empty()
            });
            if stripe.leases.len() >= LEASES_PER_STRIPE_MAX {
                return Duration::ZERO;
            }
        }
        let lease = stripe.leases.entry(key).or_default();
        if lease.held > 0 {
            return Duration::ZERO;
        }
        lease.holders.retain(|(holder, until)| *holder != session && *until > now);
        if lease.holders.len() >= HOLDERS_MAX {
            return Duration::ZERO;
        }
        lease.holders.push((session, now.after(LEASE)));
        LEASE
    }

    /// Waits until no session but `session` holds a lease on any of `keys`, and prevents new leases on them until the
    /// returned barrier is dropped. Waits at most [`LEASE`].
    pub async fn barrier(self: &Arc<Leases>, keys: &[LeaseKey], session: SessionId) -> LeaseBarrier {
        let (barrier, until) = self.begin_barrier(keys, session);
        loop {
            // No lease is granted on a held key, so `until` cannot increase.
            let left = until.since(self.clock.monotonic());
            if left.is_zero() {
                return barrier;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// Prevents new leases on `keys`. Returns the time when the last lease of another session ends.
    fn begin_barrier(self: &Arc<Leases>, keys: &[LeaseKey], session: SessionId) -> (LeaseBarrier, Instant) {
        let barrier = LeaseBarrier { leases: Arc::clone(self), keys: keys.to_vec() };
        let mut until = self.inherited_until;
        for &key in keys {
            let mut stripe = self.stripe(key).lock();
            stripe.version += 1;
            let lease = stripe.leases.entry(key).or_default();
            lease.held += 1;
            let others = lease.holders.iter().filter(|(holder, _)| *holder != session);
            until = others.map(|(_, end)| *end).fold(until, Instant::max);
        }
        (barrier, until)
    }

    fn stripe(&self, key: LeaseKey) -> &Mutex<Stripe> {
        // Inode numbers and name hashes both vary in their low bits.
        &self.stripes[(key.directory.0 ^ (key.directory.0 >> 48) ^ key.hash) as usize % STRIPES]
    }
}

/// Prevents leases on its keys while it lives.
pub struct LeaseBarrier {
    leases: Arc<Leases>,
    keys: Vec<LeaseKey>,
}

impl Drop for LeaseBarrier {
    fn drop(&mut self) {
        for &key in &self.keys {
            let mut stripe = self.leases.stripe(key).lock();
            let stripe = &mut *stripe;
            // Data that was read during the change may be from before it.
            stripe.version += 1;
            if let Some(lease) = stripe.leases.get_mut(&key) {
                lease.held -= 1;
                // The session that changed the directory may still hold its own lease.
                if lease.held == 0 && lease.holders.is_empty() {
                    stripe.leases.remove(&key);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
