//! The client's session with its server: slots that number its calls, and releases, which notify the server of closed
//! files.

use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_proto::CallId;
use varve_types::{InodeId, SessionId, ShardCount, ShardId};

/// A slot of the session: it carries one call at a time and numbers its calls from 1.
struct SessionSlot {
    number: u32,
    calls: u64,
}

#[derive(Default)]
struct Slots {
    /// Last used first, so that a client with few threads uses few slots. The server stores a reply for each slot.
    free: Vec<SessionSlot>,
    made: u32,
}

#[derive(Default)]
struct Releases {
    /// Closed files whose release was not sent yet, by shard.
    waiting: Vec<Vec<InodeId>>,
    /// The shard of each pending release.
    waiting_at: HashMap<InodeId, ShardId>,
    /// Sent in a request that has not been answered.
    reported: HashSet<InodeId>,
    /// Files that the server may still open, with the time and shard for their releases.
    later: HashMap<InodeId, (Instant, ShardId)>,
}

impl Releases {
    fn wait(&mut self, shard: ShardId, inode: InodeId) {
        if let Entry::Vacant(place) = self.waiting_at.entry(inode) {
            place.insert(shard);
            self.waiting[usize::from(shard.0)].push(inode);
        }
    }
}

/// The state of a release when its file is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    /// None was pending.
    Nothing,
    /// The server has the file open in this session, or may still open it. The pending release, which could have been
    /// sent from this time on, is withdrawn.
    Release(Instant),
    /// The release is in flight, and might arrive after the open; try again shortly.
    NotYet,
}

pub(crate) struct ClientSession {
    pub id: SessionId,
    slots: Mutex<Slots>,
    releases: Mutex<Releases>,
}

/// Releases in one request: a request stays small, and the rest goes with the next one.
const RELEASES_PER_REQUEST_MAX: usize = 512;

impl ClientSession {
    pub fn new(id: SessionId, shards: ShardCount) -> ClientSession {
        let waiting = vec![Vec::new(); usize::from(shards.get())];
        ClientSession { id, slots: Mutex::default(), releases: Mutex::new(Releases { waiting, ..Releases::default() }) }
    }

    /// Takes a slot and numbers its next call.
    pub fn begin(&self) -> SlotGuard<'_> {
        let mut slots = self.slots.lock();
        let mut slot = slots.free.pop().unwrap_or_else(|| {
            slots.made += 1;
            SessionSlot { number: slots.made, calls: 0 }
        });
        slot.calls += 1;
        SlotGuard { session: self, slot }
    }

    /// Queues a release of `inode`, whose last handle is closed and which the server has open, for `shard`.
    pub fn release(&self, shard: ShardId, inode: InodeId) {
        self.releases.lock().wait(shard, inode);
    }

    /// Queues a release of a file that the server may still open; it is sent from `then` on.
    pub fn release_from(&self, then: Instant, shard: ShardId, inode: InodeId) {
        self.releases.lock().later.insert(inode, (then, shard));
    }

    /// Makes the releases pending whose time is before `now`.
    pub fn release_due(&self, now: Instant) {
        let mut releases = self.releases.lock();
        let due: Vec<_> = releases.later.extract_if(|_, (then, _)| *then <= now).collect();
        due.into_iter().for_each(|(inode, (_, shard))| releases.wait(shard, inode));
    }

    /// Called before `inode` is opened again: withdraws a pending release.
    pub fn take_back(&self, inode: InodeId) -> TakenBack {
        let mut releases = self.releases.lock();
        if releases.reported.contains(&inode) {
            return TakenBack::NotYet;
        }
        if let Some((then, _)) = releases.later.remove(&inode) {
            return TakenBack::Release(then);
        }
        let Some(shard) = releases.waiting_at.remove(&inode) else { return TakenBack::Nothing };
        releases.waiting[usize::from(shard.0)].retain(|other| *other != inode);
        TakenBack::Release(Instant(Duration::ZERO))
    }

    /// The releases to send in a request to `shard`; the result goes to [`ClientSession::releases_sent`].
    pub fn releases_to_send(&self, shard: ShardId) -> Vec<u64> {
        let mut releases = self.releases.lock();
        let releases = &mut *releases;
        let waiting = &mut releases.waiting[usize::from(shard.0)];
        if waiting.is_empty() {
            return Vec::new();
        }
        let rest = waiting.split_off(waiting.len().min(RELEASES_PER_REQUEST_MAX));
        let telling = std::mem::replace(waiting, rest);
        releases.reported.extend(&telling);
        telling.iter().for_each(|inode| {
            releases.waiting_at.remove(inode);
        });
        telling.into_iter().map(|inode| inode.0).collect()
    }

    /// A request with the releases of `inodes` to `shard` has been answered or has failed. After a failure they are
    /// queued again, because the request may not have arrived.
    pub fn releases_sent(&self, shard: ShardId, inodes: &[u64], answered: bool) {
        if inodes.is_empty() {
            return;
        }
        let mut releases = self.releases.lock();
        for inode in inodes.iter().map(|inode| InodeId(*inode)) {
            releases.reported.remove(&inode);
            if !answered {
                releases.wait(shard, inode);
            }
        }
    }

    /// Shards with pending releases.
    pub fn untold(&self) -> Vec<ShardId> {
        let releases = self.releases.lock();
        let shards = releases.waiting.iter().enumerate().filter(|(_, waiting)| !waiting.is_empty());
        shards.map(|(shard, _)| ShardId(shard as u16)).collect()
    }
}

/// A slot in use; dropping it returns the slot.
pub(crate) struct SlotGuard<'a> {
    session: &'a ClientSession,
    slot: SessionSlot,
}

impl SlotGuard<'_> {
    pub fn id(&self) -> CallId {
        CallId { session: self.session.id.0, slot: self.slot.number, number: self.slot.calls }
    }
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        let slot = SessionSlot { number: self.slot.number, calls: self.slot.calls };
        self.session.slots.lock().free.push(slot);
    }
}

#[cfg(test)]
mod tests;
