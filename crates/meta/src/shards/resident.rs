//! Rows in memory: the cache that verbs decide on.
//!
//! Invariants: a row with a change that is not appended yet is never dropped, and neither is a key that is being fetched
//! (a fetch that returns late must find what was decided meanwhile, not overwrite it). Bytes are bounded by a budget that
//! all shards of the server share and that only rows of these two kinds may exceed.

mod budget;

pub use budget::CacheBudget;

use crate::namespace::Seen;
use crate::tables::{Key, Row};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use varve_types::{HashRange, InodeId, Name};
use varve_world::key_hash::KeyHashing;

/// Numbers the batches of a shard's epoch, from 1; a row says in which batch it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchNumber(pub(super) u64);

struct Slot {
    /// `None`: known to be absent. Apart, for the map has a good many places that are empty, and absent rows are many where
    /// much is removed.
    row: Option<Box<Row>>,
    bytes: usize,
    changed_in: BatchNumber,
    /// Second chance: set on use, cleared when the hand passes.
    used: std::cell::Cell<bool>,
}

pub(super) struct Resident {
    slots: HashMap<Key, Slot, KeyHashing>,
    /// Keys in the order in which the hand visits them. Each key of `slots` stands here once.
    hand: VecDeque<Key>,
    fetching: HashSet<Key, KeyHashing>,
    bytes: usize,
    /// The bytes that the budget was last told of.
    told: usize,
    budget: Arc<CacheBudget>,
}

/// What a slot costs besides its row: key with its name, place in the map and in the hand's queue, of which a good part is
/// empty. A round figure from their sizes.
const SLOT_BYTES: usize = 256;

/// Keys that one call to shrink visits at most, so that no request waits long behind it. Each batch adds fewer.
const VISITS_MAX: usize = 2048;

/// Places kept for a row, where they are counted.
const PLACES_TIMES: usize = 2;

impl Resident {
    pub fn new(budget: Arc<CacheBudget>) -> Resident {
        Resident {
            slots: HashMap::default(),
            hand: VecDeque::new(),
            fetching: HashSet::default(),
            bytes: 0,
            told: 0,
            budget,
        }
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The names of a directory's entries that are in memory, in no order.
    pub fn entries_of(&self, directory: InodeId, range: HashRange) -> impl Iterator<Item = &Name> {
        self.slots
            .iter()
            .filter_map(move |(key, slot)| match key {
                Key::Entry(id, name) if *id == directory && slot.row.is_some() => Some(name),
                _ => None,
            })
            .filter(move |name| range.contains(name.hash()))
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The row, and the batch in which it last changed.
    pub fn seen(&self, key: &Key) -> (Seen<'_>, BatchNumber) {
        match self.slots.get(key) {
            None => (Seen::Unknown, BatchNumber(0)),
            Some(slot) => {
                slot.used.set(true);
                (slot.row.as_deref().map_or(Seen::Absent, Seen::Present), slot.changed_in)
            }
        }
    }

    /// For changing a row in place; the caller says in which batch.
    pub fn row_mut(&mut self, key: &Key, batch: BatchNumber) -> Option<&mut Row> {
        let slot = self.slots.get_mut(key)?;
        slot.changed_in = batch;
        slot.row.as_deref_mut()
    }

    /// Marks `key` as being read from the table; `false` if it already is, or is resident.
    pub fn begin_fetch(&mut self, key: &Key) -> bool {
        !self.slots.contains_key(key) && self.fetching.insert(key.clone())
    }

    pub fn is_fetching(&self, key: &Key) -> bool {
        self.fetching.contains(key)
    }

    /// Takes in what the table said, unless a decision has set the row meanwhile.
    pub fn end_fetch(&mut self, key: &Key, row: Option<Row>) {
        self.fetching.remove(key);
        if !self.slots.contains_key(key) {
            self.set(key.clone(), row, BatchNumber(0));
        }
    }

    /// Takes in a row that may be asked for, unless more is known of it.
    pub fn take_ahead(&mut self, key: Key, row: Row) {
        if !self.slots.contains_key(&key) && !self.fetching.contains(&key) {
            self.set(key, Some(row), BatchNumber(0));
        }
    }

    pub fn abandon_fetch(&mut self, key: &Key) {
        self.fetching.remove(key);
    }

    /// Sets what a decision made of the row, in `batch`.
    pub fn set(&mut self, key: Key, row: Option<Row>, batch: BatchNumber) {
        let bytes = SLOT_BYTES + row.as_ref().map_or(0, row_bytes);
        // A loaded partition knows without it that a name is absent.
        let used = std::cell::Cell::new(row.is_some());
        let slot = Slot { row: row.map(Box::new), bytes, changed_in: batch, used };
        self.bytes += bytes;
        match self.slots.insert(key.clone(), slot) {
            Some(old) => self.bytes -= old.bytes,
            None => self.hand.push_back(key),
        }
    }

    pub fn forget(&mut self, keep: impl Fn(&Key) -> bool) {
        let Resident { slots, hand, bytes, .. } = self;
        hand.retain(|key| {
            keep(key) || {
                *bytes -= slots.remove(key).map_or(0, |slot| slot.bytes);
                false
            }
        });
    }

    /// Drops what was not used lately, as far as the budget wants it at once. `pinned`: keys that must stay.
    pub fn shrink(&mut self, appended: BatchNumber, pinned: impl Fn(&Key) -> bool) {
        self.tell();
        let bytes_max = self.budget.allows(self.bytes);
        self.shrink_to(bytes_max, appended, pinned);
    }

    /// To how many bytes it is to shrink, as all are, and in how many steps, each of which visits [`VISITS_MAX`] keys: one visit
    /// marks a row, and the next one drops it.
    pub fn begin_give_back(&mut self) -> (usize, usize) {
        self.tell();
        (self.budget.leaves(self.bytes), 2 * self.hand.len() / VISITS_MAX + 1)
    }

    /// One step; whether one more is needed.
    pub fn shrink_to(&mut self, bytes_max: usize, appended: BatchNumber, pinned: impl Fn(&Key) -> bool) -> bool {
        let mut visits = VISITS_MAX.min(2 * self.hand.len());
        while self.bytes > bytes_max && visits > 0 {
            visits -= 1;
            let Some(key) = self.hand.pop_front() else { break };
            let Some(slot) = self.slots.get(&key) else { continue };
            let stays =
                slot.used.replace(false) || slot.changed_in > appended || self.fetching.contains(&key) || pinned(&key);
            if stays {
                self.hand.push_back(key);
            } else {
                self.bytes -= slot.bytes;
                self.slots.remove(&key);
            }
        }
        self.tell();
        self.bytes > bytes_max
    }

    /// Gives up the places of what was dropped, once most are empty: they are not counted, and are some of a row's memory.
    pub fn give_up_places(&mut self) {
        let wanted = PLACES_TIMES * self.slots.len();
        if self.slots.capacity() > PLACES_TIMES * wanted {
            self.slots.shrink_to(wanted);
        }
        if self.hand.capacity() > PLACES_TIMES * wanted {
            self.hand.shrink_to(wanted);
        }
    }

    /// Has another budget from here on.
    #[cfg(test)]
    pub fn measure_by(&mut self, budget: Arc<CacheBudget>) {
        self.budget.change(self.told, 0);
        (self.told, self.budget) = (0, budget);
    }

    fn tell(&mut self) {
        self.budget.change(self.told, self.bytes);
        self.told = self.bytes;
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.budget.change(self.told, 0);
    }
}

fn row_bytes(row: &Row) -> usize {
    std::mem::size_of::<Row>() + row.content_bytes()
}

#[cfg(test)]
#[path = "resident/tests.rs"]
mod tests;
