//! Replies to changes, kept so that a retry gets the first reply.
//!
//! A slot of a session has one call in progress at a time, so its latest reply is enough: one row per slot, written in
//! the batch of its change and read again at the next open. Later batches delete the rows of ended sessions.

use super::resident::BatchNumber;
use bytes::Bytes;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_schema::{Key, ReplyRecord};
use varve_types::{HashRange, InodeId, SessionId};

/// How long replies of an earlier epoch are kept if their slot is not used again: twice the longest deadline after
/// which a client gives up a call.
pub(super) const KEPT: Duration = Duration::from_secs(120);

/// Limit on slots remembered per shard. At 200 bytes per reply this is 20 MB; above it the oldest slots are forgotten.
const SLOTS_MAX: usize = 100_000;

type SlotKey = (SessionId, u32);

#[derive(Default)]
pub(super) struct Replies {
    latest: HashMap<SlotKey, Latest, KeyHashing>,
    order: VecDeque<SlotKey>,
    /// Rows left by an earlier epoch.
    restored: VecDeque<Restored>,
    /// Forgotten slots whose rows are still to be deleted.
    forgotten: VecDeque<SlotKey>,
}

/// A change that a session requested in one of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionChange {
    pub session: SessionId,
    pub slot: u32,
    pub number: u64,
}

struct Latest {
    record: ReplyRecord,
    /// The batch of its change.
    batch: BatchNumber,
}

/// A reply already given to a change. It must not be sent again before the change is in the log.
pub struct Replied {
    pub(super) body: Bytes,
    pub(super) batch: BatchNumber,
}

struct Restored {
    key: Key,
    /// The latest call whose reply the row holds.
    number: u64,
    found: Instant,
}

impl Replies {
    /// Remembers the reply to a change in `batch`. `None`: a later reply of the same slot is known.
    pub fn remember(&mut self, record: ReplyRecord, batch: BatchNumber) -> Option<&ReplyRecord> {
        let slot = (record.session, record.slot);
        if self.latest.len() >= SLOTS_MAX
            && !self.latest.contains_key(&slot)
            && let Some(oldest) = self.order.pop_front()
        {
            self.latest.remove(&oldest);
            self.forgotten.push_back(oldest);
        }
        match self.latest.entry(slot) {
            Entry::Occupied(known) if known.get().record.number > record.number => None,
            Entry::Occupied(known) => {
                let known = known.into_mut();
                *known = Latest { record, batch };
                Some(&known.record)
            }
            Entry::Vacant(new) => {
                self.order.push_back(slot);
                Some(&new.insert(Latest { record, batch }).record)
            }
        }
    }

    /// The reply already given to this call.
    pub fn find(&self, session: SessionId, slot: u32, number: u64) -> Option<Replied> {
        let Latest { record, batch } = self.latest.get(&(session, slot))?;
        (record.number == number).then(|| Replied { body: record.reply.clone(), batch: *batch })
    }

    /// Forgets the reply to a change that is cancelled. Returns the key of the row to delete.
    pub fn take_back(&mut self, asked: SessionChange) -> Option<Key> {
        let slot = (asked.session, asked.slot);
        self.latest.get(&slot).filter(|latest| latest.record.number == asked.number)?;
        self.latest.remove(&slot);
        self.order.retain(|known| *known != slot);
        Some(Key::Reply(asked.session, asked.slot))
    }

    pub fn end_session(&mut self, session: SessionId) {
        let Replies { latest, order, forgotten, .. } = self;
        order.retain(|slot| {
            let stays = slot.0 != session;
            if !stays {
                latest.remove(slot);
                forgotten.push_back(*slot);
            }
            stays
        });
    }

    /// Adds a row found at open.
    pub fn restore(&mut self, key: Key, records: Vec<ReplyRecord>, now: Instant) {
        let number = records.iter().map(|record| record.number).max().unwrap_or(0);
        self.restored.push_back(Restored { key, number, found: now });
        for record in records {
            self.remember(record, BatchNumber(0));
        }
    }

    /// A stored row that is no longer needed.
    pub fn obsolete(&mut self, now: impl Fn() -> Instant) -> Option<Key> {
        while let Some((session, slot)) = self.forgotten.pop_front() {
            // A call in progress when its session ended may have used the slot again.
            if !self.latest.contains_key(&(session, slot)) {
                return Some(Key::Reply(session, slot));
            }
        }
        while self.restored.front().is_some_and(|row| now().since(row.found) > KEPT) {
            let Restored { key, number, .. } = self.restored.pop_front()?;
            match key {
                Key::Reply(session, slot) => {
                    let unused = self.latest.get(&(session, slot)).is_some_and(|latest| latest.record.number == number);
                    if unused {
                        self.latest.remove(&(session, slot));
                        return Some(key);
                    }
                }
                key => return Some(key),
            }
        }
        None
    }

    /// Replies about names of `directory` in `range`, which a split moves along.
    pub fn about(&self, directory: InodeId, range: HashRange) -> Vec<ReplyRecord> {
        let concerns = |about: &Option<(InodeId, varve_types::NameHash)>| {
            about.is_some_and(|(id, hash)| id == directory && range.contains(hash))
        };
        self.latest.values().map(|latest| &latest.record).filter(|record| concerns(&record.about)).cloned().collect()
    }
}
