//! Rows in memory: the cache that verbs decide on.
//!
//! Invariants: a row with a change that is not appended yet is never dropped, and neither is a key that is being fetched
//! (a fetch that returns late must find what was decided meanwhile, not overwrite it). Bytes are bounded by a budget that
//! all shards of the server share and that only rows of these two kinds may exceed.

mod budget;
mod slot_map;

pub use budget::CacheBudget;

use crate::namespace::KeyState;
use crate::tables::{Key, Row};
use slot_map::SlotMap;
use std::collections::HashSet;
use std::sync::Arc;
use varve_env::key_hash::KeyHashing;
use varve_types::{HashRange, InodeId, Name};

/// Numbers the batches of a shard's epoch, from 1; a row says in which batch it last changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchNumber(pub(super) u64);

struct CachedRow {
    /// `None`: known to be absent. Apart, for a good many places are empty, and absent rows are many where much is removed.
    row: Option<Box<Row>>,
    bytes: u32,
    changed_in: BatchNumber,
    /// Second chance: set on use, cleared when the hand passes.
    used: std::cell::Cell<bool>,
}

pub(super) struct Resident {
    slots: SlotMap<CachedRow>,
    /// The place that is visited next.
    hand: usize,
    /// Places of rows that became absent in batches that were not appended yet, when last looked at.
    absent: Vec<usize>,
    fetching: HashSet<Key, KeyHashing>,
    bytes: usize,
    /// The bytes that the budget was last told of.
    reported: usize,
    budget: Arc<CacheBudget>,
}

/// What a slot costs besides its row: its place, of which a good part is empty, what finds it, and the name. A round figure
/// from their sizes.
const SLOT_BYTES: usize = 192;

/// Places that one call to shrink visits at most, so that no request waits long behind it. Each batch adds fewer.
const VISITS_MAX: usize = 2048;

impl Resident {
    pub fn new(budget: Arc<CacheBudget>) -> Resident {
        Resident {
            slots: SlotMap::new(),
            hand: 0,
            absent: Vec::new(),
            fetching: HashSet::default(),
            bytes: 0,
            reported: 0,
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
    pub fn seen(&self, key: &Key) -> (KeyState<'_>, BatchNumber) {
        match self.slots.find(key).and_then(|place| self.slots.at(place)) {
            None => (KeyState::Unknown, BatchNumber(0)),
            Some((_, slot)) => {
                slot.used.set(true);
                (slot.row.as_deref().map_or(KeyState::Absent, KeyState::Present), slot.changed_in)
            }
        }
    }

    /// For changing a row in place; the caller says in which batch.
    pub fn row_mut(&mut self, key: &Key, batch: BatchNumber) -> Option<&mut Row> {
        let place = self.slots.find(key)?;
        let slot = self.slots.at_mut(place)?;
        slot.changed_in = batch;
        slot.row.as_deref_mut()
    }

    /// Marks `key` as being read from the table; `false` if it already is, or is resident.
    pub fn begin_fetch(&mut self, key: &Key) -> bool {
        !self.knows(key) && self.fetching.insert(key.clone())
    }

    pub fn is_fetching(&self, key: &Key) -> bool {
        self.fetching.contains(key)
    }

    /// Takes in what the table said, unless a decision has set the row meanwhile.
    pub fn end_fetch(&mut self, key: &Key, row: Option<Row>) {
        self.fetching.remove(key);
        if !self.knows(key) {
            self.set(key.clone(), row.map(Box::new), BatchNumber(0));
        }
    }

    /// Takes in a row that may be asked for, unless more is known of it.
    pub fn take_readahead(&mut self, key: Key, row: Row) {
        if !self.knows(&key) && !self.fetching.contains(&key) {
            self.set(key, Some(Box::new(row)), BatchNumber(0));
        }
    }

    pub fn abandon_fetch(&mut self, key: &Key) {
        self.fetching.remove(key);
    }

    /// Sets what a decision made of the row, in `batch`; whether there was one in memory.
    pub fn set(&mut self, key: Key, row: Option<Box<Row>>, batch: BatchNumber) -> bool {
        let bytes = u32::try_from(SLOT_BYTES + row.as_deref().map_or(0, row_bytes)).unwrap_or(u32::MAX);
        // A loaded partition knows without it that a name is absent.
        let used = std::cell::Cell::new(row.is_some());
        let slot = CachedRow { row, bytes, changed_in: batch, used };
        let is_absent = slot.row.is_none();
        self.bytes += bytes as usize;
        let (place, old) = self.slots.insert(key, slot);
        if is_absent && batch > BatchNumber(0) {
            self.absent.push(place);
        }
        old.is_some_and(|old| {
            self.bytes -= old.bytes as usize;
            old.row.is_some()
        })
    }

    fn knows(&self, key: &Key) -> bool {
        self.slots.find(key).is_some()
    }

    fn drop_at(&mut self, place: usize) {
        self.bytes -= self.slots.remove(place).map_or(0, |slot| slot.bytes as usize);
    }

    pub fn forget(&mut self, keep: impl Fn(&Key) -> bool) {
        for place in 0..self.slots.end() {
            if self.slots.at(place).is_some_and(|(key, _)| !keep(key)) {
                self.drop_at(place);
            }
        }
    }

    /// Drops rows that became absent in batches that are appended, of those that `may_go`.
    pub fn forget_absent(&mut self, appended: BatchNumber, may_go: impl Fn(&Key) -> bool) {
        let mut absent = std::mem::take(&mut self.absent);
        absent.retain(|place| {
            // Another row may be in the place by now.
            let Some((key, CachedRow { row: None, changed_in, .. })) = self.slots.at(*place) else { return false };
            let is_appended = *changed_in <= appended;
            if is_appended && !self.fetching.contains(key) && may_go(key) {
                self.drop_at(*place);
            }
            !is_appended
        });
        self.absent = absent;
    }

    /// Drops what was not used lately, as far as the budget wants it at once. `pinned`: keys that must stay.
    pub fn shrink(&mut self, appended: BatchNumber, pinned: impl Fn(&Key) -> bool) {
        self.report_bytes();
        let bytes_max = self.budget.allows(self.bytes);
        self.shrink_to(bytes_max, appended, pinned);
    }

    /// To how many bytes it is to shrink, as all are, and in how many steps, each of which visits [`VISITS_MAX`] places: one
    /// visit marks a row, and the next one drops it.
    pub fn begin_give_back(&mut self) -> (usize, usize) {
        self.report_bytes();
        (self.budget.leaves(self.bytes), 2 * self.slots.end() / VISITS_MAX + 1)
    }

    /// One step; whether one more is needed.
    pub fn shrink_to(&mut self, bytes_max: usize, appended: BatchNumber, pinned: impl Fn(&Key) -> bool) -> bool {
        let mut visits = VISITS_MAX.min(2 * self.slots.end());
        while self.bytes > bytes_max && visits > 0 {
            visits -= 1;
            if self.hand >= self.slots.end() {
                self.hand = 0;
            }
            let place = self.hand;
            self.hand += 1;
            let Some((key, slot)) = self.slots.at(place) else { continue };
            let stays =
                slot.used.replace(false) || slot.changed_in > appended || self.fetching.contains(key) || pinned(key);
            if !stays {
                self.drop_at(place);
            }
        }
        self.report_bytes();
        self.bytes > bytes_max
    }

    /// Gives up the places of what was dropped, once most are empty: they are not counted, and are some of a row's memory.
    pub fn give_up_places(&mut self) {
        if self.slots.is_sparse() {
            // What was to be looked at again is found by the hand.
            self.absent = Vec::new();
            self.slots.shrink();
        }
    }

    /// Has another budget from here on.
    #[cfg(test)]
    pub fn measure_by(&mut self, budget: Arc<CacheBudget>) {
        self.budget.change(self.reported, 0);
        (self.reported, self.budget) = (0, budget);
    }

    fn report_bytes(&mut self) {
        self.budget.change(self.reported, self.bytes);
        self.reported = self.bytes;
    }
}

impl Drop for Resident {
    fn drop(&mut self) {
        self.budget.change(self.reported, 0);
    }
}

fn row_bytes(row: &Row) -> usize {
    std::mem::size_of::<Row>() + row.content_bytes()
}

#[cfg(test)]
#[path = "resident/tests.rs"]
mod tests;
