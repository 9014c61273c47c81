//! Leases: how long a client may use a cached name or the cached attributes of a directory.
//!
//! A client resolves paths from its cache while it holds a lease on each directory of the path. A change that would
//! invalidate such a cache (rename, rmdir, chmod, chown of a directory) is decided when the leases of *other* sessions
//! have ended; the session that makes the change knows about it. Leases are short and end by themselves, so a change
//! waits at most [`LEASE`]; meanwhile their holders are served, and no new ones are granted. A shard grants the leases
//! on its own rows, in memory only: its next owner waits one lease term instead of persisting what was granted.
//!
//! Invariant: no lease is granted on data that was read before a change that has been decided by the time of the grant.
//! A reader takes a [`LeaseTicket`] before it reads. A change raises the version of its keys when it is decided. A grant
//! is refused if the version has changed.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_posix::KeyState;
use varve_schema::{Change, DirectoryRow, EntryBody, Key, Row};
use varve_types::{InodeId, NameHash, SessionId};

/// Duration of a lease, which the client counts from the time when it sent the request. Long enough that walking a hot
/// path costs one lookup per second, short enough that a rename of a directory by another client causes a short delay
/// and not a hang.
pub const LEASE: Duration = Duration::from_secs(1);

/// How long after the end of a lease that a change waited for no new one is granted: the change is decided meanwhile.
const PAUSE: Duration = Duration::from_millis(250);

/// Enough versions that changes seldom refuse leases on other keys.
const VERSIONS: usize = 64;

/// Limits the table of one shard to a few MiB. If it is full of leases that have not expired, no more are granted.
const LEASES_MAX: usize = 16_384;

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

    /// The lease that a change of a row invalidates, if its row is now `before`.
    pub fn changed_by(change: &Change, before: KeyState<'_>) -> Option<LeaseKey> {
        let KeyState::Present(before) = before else { return None };
        let (key, after) = match change {
            Change::Put(key, row) => (key, Some(&**row)),
            Change::Delete(key) => (key, None),
            Change::Tally { .. } => return None,
        };
        match (key, before, after) {
            (Key::Entry(directory, name), Row::Entry(before), after) => {
                let stays = matches!(after, Some(Row::Entry(after)) if after.inode == before.inode);
                let leased = matches!(before.body, EntryBody::Directory(_)) && !stays;
                leased.then(|| LeaseKey::name(*directory, name.hash()))
            }
            (Key::Directory(inode), Row::Directory(before), Some(Row::Directory(after))) => {
                let rights = |row: &DirectoryRow| (row.mode, row.uid, row.gid);
                (rights(before) != rights(after)).then(|| LeaseKey::attributes(*inode))
            }
            _ => None,
        }
    }

    fn version(self) -> usize {
        // Inode numbers and name hashes both vary in their low bits.
        (self.directory.0 ^ (self.directory.0 >> 48) ^ self.hash) as usize % VERSIONS
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
    /// No session gets the lease before this time.
    paused_until: Option<Instant>,
}

/// The leases that one shard has granted. All clones are the same table.
#[derive(Clone)]
pub struct Leases(Rc<RefCell<LeaseTable>>);

/// The leases of a shard that moves to another worker.
pub struct LeaseTable {
    versions: Vec<u64>,
    leases: HashMap<LeaseKey, Lease, KeyHashing>,
    /// Leases granted by earlier owners may last until this time.
    inherited_until: Instant,
    /// Whether changes wait for leases.
    waits: bool,
}

impl Leases {
    /// `owned_since`: no other owner of the shard has granted leases since then. `None`: changes need not wait, because
    /// one client alone changes the volume. Observers may see stale data.
    pub fn new(owned_since: Option<Instant>) -> Leases {
        let inherited_until = owned_since.map_or(Instant(Duration::ZERO), |since| since.after(LEASE));
        let (waits, leases) = (owned_since.is_some(), HashMap::default());
        Leases(Rc::new(RefCell::new(LeaseTable { versions: vec![0; VERSIONS], leases, inherited_until, waits })))
    }

    /// Takes the table away and leaves an empty one to the clones.
    pub fn move_away(&self) -> LeaseTable {
        let mut table = self.0.borrow_mut();
        let (waits, inherited_until) = (table.waits, table.inherited_until);
        let empty = LeaseTable { versions: vec![0; VERSIONS], leases: HashMap::default(), inherited_until, waits };
        std::mem::replace(&mut table, empty)
    }

    /// From now on this shard holds rows on which another one may have granted leases.
    pub fn inherit(&self, now: Instant) {
        let mut table = self.0.borrow_mut();
        table.inherited_until = table.inherited_until.max(now.after(LEASE));
    }

    /// Leases that are not forgotten yet; some may have ended.
    pub fn held(&self) -> usize {
        self.0.borrow().leases.len()
    }

    /// Must be called before reading data that may be leased.
    pub fn ticket(&self, key: LeaseKey) -> LeaseTicket {
        LeaseTicket { version: self.0.borrow().versions[key.version()] }
    }

    /// Leases `key` to `session`. Returns the duration of the lease; zero means that the client must not cache the
    /// data.
    pub fn grant(&self, key: LeaseKey, session: SessionId, ticket: LeaseTicket, now: Instant) -> Duration {
        let mut table = self.0.borrow_mut();
        if table.versions[key.version()] != ticket.version {
            return Duration::ZERO;
        }
        if table.leases.len() >= LEASES_MAX {
            table.leases.retain(|_, lease| {
                lease.holders.retain(|(_, until)| *until > now);
                lease.paused_until > Some(now) || !lease.holders.is_empty()
            });
            if table.leases.len() >= LEASES_MAX {
                return Duration::ZERO;
            }
        }
        let lease = table.leases.entry(key).or_default();
        lease.holders.retain(|(holder, until)| *holder != session && *until > now);
        if lease.paused_until > Some(now) || lease.holders.len() >= HOLDERS_MAX {
            return Duration::ZERO;
        }
        lease.holders.push((session, now.after(LEASE)));
        LEASE
    }

    /// Must be called in the step in which a change of `keys` by `session` is decided. `Err`: a session other than
    /// `session` may hold a lease until that time, at which the change is to be decided again.
    pub fn change(&self, keys: &[LeaseKey], session: Option<SessionId>, now: Instant) -> Result<(), Instant> {
        let mut table = self.0.borrow_mut();
        let table = &mut *table;
        if keys.is_empty() || !table.waits {
            return Ok(());
        }
        let ends = |key: &LeaseKey| {
            let holders = table.leases.get(key).into_iter().flat_map(|lease| &lease.holders);
            holders.filter(|(holder, _)| Some(*holder) != session).map(|(_, end)| *end).max()
        };
        let until = keys.iter().filter_map(ends).fold(table.inherited_until, Instant::max);
        if until > now {
            for key in keys {
                let lease = table.leases.entry(*key).or_default();
                lease.paused_until = lease.paused_until.max(Some(until.after(PAUSE)));
            }
            return Err(until);
        }
        for key in keys {
            table.versions[key.version()] += 1;
            // The session that changes the directory may still hold its own lease.
            table.leases.remove(key);
        }
        Ok(())
    }
}

impl From<LeaseTable> for Leases {
    fn from(table: LeaseTable) -> Leases {
        Leases(Rc::new(RefCell::new(table)))
    }
}

#[cfg(test)]
mod tests;
