//! Answers given to changes, so that a retry gets the first one.
//!
//! A slot of a session has one call under way at a time, so its latest answer is enough: one row a slot, written in the
//! batch of its change and found again at the next open. The rows of sessions that have ended go with later batches.

use super::resident::BatchNumber;
use crate::tables::{Key, ReplyRecord};
use bytes::Bytes;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_types::{HashRange, InodeId, SessionId};

/// How long answers that an earlier epoch gave are kept if their slot is not used again: twice the longest deadline after
/// which a client gives up a call.
pub(super) const KEPT: Duration = Duration::from_secs(120);

/// Slots remembered a shard. At 200 bytes an answer this is 20 MB; past it the oldest slots are forgotten.
const SLOTS_MAX: usize = 100_000;

type SlotKey = (SessionId, u32);

#[derive(Default)]
pub(super) struct Replies {
    latest: HashMap<SlotKey, Latest, KeyHashing>,
    order: VecDeque<SlotKey>,
    /// Rows that an earlier epoch left.
    restored: VecDeque<Restored>,
    /// Slots that were forgotten and whose rows are still to be deleted.
    forgotten: VecDeque<SlotKey>,
}

/// The change that a session asked for in one of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionChange {
    pub session: SessionId,
    pub slot: u32,
    pub number: u64,
}

struct Latest {
    record: ReplyRecord,
    /// That of its change.
    batch: BatchNumber,
}

/// An answer already given to a change, which may not be given again before the change is in the log.
pub struct Replied {
    pub(super) body: Bytes,
    pub(super) batch: BatchNumber,
}

struct Restored {
    key: Key,
    /// The latest call whose answer it holds.
    number: u64,
    found: Instant,
}

impl Replies {
    /// Of a change that is in `batch`. `None`: a later answer of the same slot is known.
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

    /// The answer already given to this call.
    pub fn find(&self, session: SessionId, slot: u32, number: u64) -> Option<Replied> {
        let Latest { record, batch } = self.latest.get(&(session, slot))?;
        (record.number == number).then(|| Replied { body: record.reply.clone(), batch: *batch })
    }

    /// Forgets the answer to a change that is not made after all; the row to be deleted.
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

    /// Takes in a row found at open.
    pub fn restore(&mut self, key: Key, records: Vec<ReplyRecord>, now: Instant) {
        let number = records.iter().map(|record| record.number).max().unwrap_or(0);
        self.restored.push_back(Restored { key, number, found: now });
        for record in records {
            self.remember(record, BatchNumber(0));
        }
    }

    /// A stored row that is of no use any more.
    pub fn obsolete(&mut self, now: impl Fn() -> Instant) -> Option<Key> {
        while let Some((session, slot)) = self.forgotten.pop_front() {
            // A call that was under way when its session ended may have used it again.
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

    /// Answers about names of `directory` in `range`, which a split takes along.
    pub fn about(&self, directory: InodeId, range: HashRange) -> Vec<ReplyRecord> {
        let concerns = |about: &Option<(InodeId, varve_types::NameHash)>| {
            about.is_some_and(|(id, hash)| id == directory && range.contains(hash))
        };
        self.latest.values().map(|latest| &latest.record).filter(|record| concerns(&record.about)).cloned().collect()
    }
}
