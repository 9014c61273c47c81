//! This client's stay with its server: slots that number its calls, and files whose last close the server must hear of.

use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_proto::CallId;
use varve_types::{InodeId, SessionId, ShardCount, ShardId};

/// A lane of the session that carries one call at a time and numbers them from 1.
struct SessionSlot {
    number: u32,
    calls: u64,
}

#[derive(Default)]
struct Slots {
    /// Last used first, so that a client with few threads keeps to few slots, for each of which the server remembers
    /// an answer.
    free: Vec<SessionSlot>,
    made: u32,
}

#[derive(Default)]
struct Releases {
    /// Closed files that the server has not been told of, by shard.
    waiting: Vec<Vec<InodeId>>,
    /// Where each of them waits.
    waiting_at: HashMap<InodeId, ShardId>,
    /// Told in a request that has not been answered.
    reported: HashSet<InodeId>,
    /// Files that the server may be about to have as open, with when and where it is to be told that they are closed.
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

/// What became of a release before its file is opened again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakenBack {
    /// None was waiting.
    Nothing,
    /// The server has the file as open in this session, or is about to, and is not told any more that it is closed, as it would
    /// have been from then on.
    Release(Instant),
    /// The server is being told at this moment, and might hear of the release after the open; ask again shortly.
    NotYet,
}

pub(crate) struct ClientSession {
    pub id: SessionId,
    slots: Mutex<Slots>,
    releases: Mutex<Releases>,
}

/// Releases that travel with one request: a request stays small, and the rest goes with the next one.
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

    /// The last handle of `inode`, which the server has as open, is closed; to be told to `shard`.
    pub fn release(&self, shard: ShardId, inode: InodeId) {
        self.releases.lock().wait(shard, inode);
    }

    /// The same of one that the server may yet come to have as open: to be told from `then` on.
    pub fn release_from(&self, then: Instant, shard: ShardId, inode: InodeId) {
        self.releases.lock().later.insert(inode, (then, shard));
    }

    /// What was to be told from before `now` on waits to be told.
    pub fn release_due(&self, now: Instant) {
        let mut releases = self.releases.lock();
        let due: Vec<_> = releases.later.extract_if(|_, (then, _)| *then <= now).collect();
        due.into_iter().for_each(|(inode, (_, shard))| releases.wait(shard, inode));
    }

    /// Before `inode` is opened again: takes back a release that waits.
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

    /// What a request to `shard` shall tell; given back with [`ClientSession::reported`].
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

    /// A request that told `inodes` to `shard` has been answered, or never will be: then they are told again, for it may not
    /// have arrived.
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

    /// Shards that have something to be told.
    pub fn untold(&self) -> Vec<ShardId> {
        let releases = self.releases.lock();
        let shards = releases.waiting.iter().enumerate().filter(|(_, waiting)| !waiting.is_empty());
        shards.map(|(shard, _)| ShardId(shard as u16)).collect()
    }
}

/// A slot in use; given back when dropped.
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
