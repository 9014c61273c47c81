//! For how long a client may believe the name or the attributes of a directory without asking.
//!
//! A client walks paths from memory while it holds a lease on each directory of the path. What would belie such a
//! memory (rename, rmdir, chmod, chown of a directory) is held back until the leases of *other* sessions have ended;
//! the session that asks knows what it does. Leases are short and nobody recalls them, so a change waits at most
//! [`LEASE`], and they are kept in memory only: a server that has just started waits one lease term instead of
//! remembering what its predecessor granted.
//!
//! Invariant: no lease is granted on what was read before a change that had begun by the time of the grant. A reader
//! takes a [`LeaseTicket`] before it reads; a change raises the stripe's version when it begins and keeps its keys held
//! until it has ended; a grant is refused where the version has moved or the key is held.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::{Clock, Instant};
use varve_env::key_hash::KeyHashing;
use varve_types::{InodeId, NameHash, SessionId};

/// How long a lease lasts, counted by the client from when it sent the request. Long enough that walking a hot path
/// costs one lookup a second, short enough that the renaming of a directory elsewhere is a hiccup and not a hang.
pub const LEASE: Duration = Duration::from_secs(1);

/// Enough that two workers seldom meet at one lock.
const STRIPES: usize = 64;

/// Bounds the table to some tens of MiB; where a stripe is full of leases that still run, no more are granted.
const LEASES_PER_STRIPE_MAX: usize = 4096;

/// Sessions that may hold one lease at a time; a further one asks again each time.
const HOLDERS_MAX: usize = 64;

/// What a lease is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseKey {
    directory: InodeId,
    /// 0, which no name hashes to, for the directory itself.
    hash: u64,
}

impl LeaseKey {
    /// That a name in `parent` means a certain directory.
    pub fn name(parent: InodeId, hash: NameHash) -> LeaseKey {
        LeaseKey { directory: parent, hash: hash.0 }
    }

    /// A directory's own attributes.
    pub fn attributes(directory: InodeId) -> LeaseKey {
        LeaseKey { directory, hash: 0 }
    }
}

/// Taken before a read whose answer may be leased.
#[derive(Clone, Copy, Debug)]
pub struct LeaseTicket {
    version: u64,
}

#[derive(Default)]
struct Lease {
    holders: Vec<(SessionId, Instant)>,
    /// Changes that have begun and not ended.
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
    /// Leases of the server before this one may run until then.
    inherited_until: Instant,
}

impl Leases {
    /// `owned_since`: when the volume's lock was taken; nobody else has granted leases after it.
    pub fn new(clock: Arc<dyn Clock>, owned_since: Instant) -> Leases {
        let stripes = (0..STRIPES).map(|_| Mutex::default()).collect();
        Leases { clock, stripes, inherited_until: owned_since.after(LEASE) }
    }

    /// To be called before reading what may be leased.
    pub fn ticket(&self, key: LeaseKey) -> LeaseTicket {
        LeaseTicket { version: self.stripe(key).lock().version }
    }

    /// Leases `key` to `session`. Returns how long it lasts: zero where it may not be believed at all.
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

    /// Waits until no session but `session` holds a lease on any of `keys`, and keeps them from being leased until the
    /// answer is dropped. Waits at most [`LEASE`].
    pub async fn barrier(self: &Arc<Leases>, keys: &[LeaseKey], session: SessionId) -> LeaseBarrier {
        let (barrier, until) = self.begin_barrier(keys, session);
        loop {
            // Nothing is granted on a held key, so `until` cannot move away.
            let left = until.since(self.clock.monotonic());
            if left.is_zero() {
                return barrier;
            }
            tokio::time::sleep(left).await;
        }
    }

    /// The same where nobody need be waited for.
    pub fn try_barrier(self: &Arc<Leases>, keys: &[LeaseKey], session: SessionId) -> Option<LeaseBarrier> {
        let (barrier, until) = self.begin_barrier(keys, session);
        (until <= self.clock.monotonic()).then_some(barrier)
    }

    /// Keeps `keys` from being leased; and until when leases of others run.
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
        // Inode counters and name hashes both vary in their low bits.
        &self.stripes[(key.directory.0 ^ (key.directory.0 >> 48) ^ key.hash) as usize % STRIPES]
    }
}

/// Keys that may not be leased while this lives.
pub struct LeaseBarrier {
    leases: Arc<Leases>,
    keys: Vec<LeaseKey>,
}

impl Drop for LeaseBarrier {
    fn drop(&mut self) {
        for &key in &self.keys {
            let mut stripe = self.leases.stripe(key).lock();
            let stripe = &mut *stripe;
            // What was read while this lived may be from before the change.
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
