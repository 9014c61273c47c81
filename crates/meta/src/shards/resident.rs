//! Rows in memory: the row cache that verbs decide on.
//!
//! Invariants: a row with a change that is not appended yet is never dropped, and neither is a key that is being
//! fetched (a fetch that returns late must find the rows decided in the meantime and must not overwrite them). A budget
//! shared by all shards of the server limits the bytes; only rows of these two kinds may exceed it.

mod budget;
mod slot_map;

pub use budget::CacheBudget;

use slot_map::SlotMap;
use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use varve_env::key_hash::KeyHashing;
use varve_posix::KeyState;
use varve_schema::{Key, Row};
use varve_types::{HashRange, InodeId, Name};

/// Numbers the batches of a shard's epoch, from 1. Each row records the batch of its last change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BatchNumber(pub(crate) u64);

struct CachedRow {
    /// `None`: known to be absent. Boxed, because many slots are empty and, where much is removed, many rows are
    /// absent.
    row: Option<Box<Row>>,
    bytes: u32,
    changed_in: BatchNumber,
    /// For the clock algorithm (second chance): set on use, cleared when the hand passes.
    used: Cell<bool>,
}

pub(super) struct Resident {
    slots: SlotMap<CachedRow>,
    /// The slot that the clock hand visits next.
    hand: usize,
    /// Slots of rows that became absent in batches that were not yet appended at the last check.
    absent: Vec<usize>,
    fetching: HashSet<Key, KeyHashing>,
    bytes: usize,
    /// The bytes last reported to the budget.
    reported: usize,
    budget: Arc<CacheBudget>,
    uses: RowUses,
}

/// Uses of the cache since they were last taken, for metrics.
#[derive(Debug, Default)]
struct RowUses {
    hits: Cell<u64>,
    misses: Cell<u64>,
}

/// Memory of a slot besides its row: the slot itself, partly empty, its index entry and the name. Rounded from their
/// sizes.
const SLOT_BYTES: usize = 192;

/// Limit on slots that one call to shrink visits, so that no request waits long behind it. Each batch adds fewer.
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
            uses: RowUses::default(),
        }
    }

    /// The reads that found their row since the last call, and those that had to fetch it.
    pub fn take_uses(&self) -> (u64, u64) {
        (self.uses.hits.take(), self.uses.misses.take())
    }

    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// The names of a directory's resident entries, in no order.
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

    /// The row, and the batch of its last change.
    pub fn seen(&self, key: &Key) -> (KeyState<'_>, BatchNumber) {
        match self.slots.find(key).and_then(|place| self.slots.at(place)) {
            None => (KeyState::Unknown, BatchNumber(0)),
            Some((_, slot)) => {
                slot.used.set(true);
                self.uses.hits.set(self.uses.hits.get() + 1);
                (slot.row.as_deref().map_or(KeyState::Absent, KeyState::Present), slot.changed_in)
            }
        }
    }

    /// Returns the row for a change in place in `batch`.
    pub fn row_mut(&mut self, key: &Key, batch: BatchNumber) -> Option<&mut Row> {
        let place = self.slots.find(key)?;
        let slot = self.slots.at_mut(place)?;
        slot.changed_in = batch;
        slot.row.as_deref_mut()
    }

    /// Marks `key` as being read from the table; `false` if a read is in progress or the row is resident.
    pub fn begin_fetch(&mut self, key: &Key) -> bool {
        let begins = !self.knows(key) && self.fetching.insert(key.clone());
        self.uses.misses.set(self.uses.misses.get() + u64::from(begins));
        begins
    }

    pub fn is_fetching(&self, key: &Key) -> bool {
        self.fetching.contains(key)
    }

    /// Adds the row read from the table, unless a decision has set the row in the meantime.
    pub fn end_fetch(&mut self, key: &Key, row: Option<Row>) {
        self.fetching.remove(key);
        if !self.knows(key) {
            self.set(key.clone(), row.map(Box::new), BatchNumber(0));
        }
    }

    /// Adds a row read ahead, unless the row is resident or being fetched.
    pub fn take_readahead(&mut self, key: Key, row: Row) {
        if !self.knows(&key) && !self.fetching.contains(&key) {
            self.set(key, Some(Box::new(row)), BatchNumber(0));
        }
    }

    pub fn abandon_fetch(&mut self, key: &Key) {
        self.fetching.remove(key);
    }

    /// Sets the row as decided in `batch`. Returns whether there was a row in memory.
    pub fn set(&mut self, key: Key, row: Option<Box<Row>>, batch: BatchNumber) -> bool {
        let bytes = u32::try_from(SLOT_BYTES + row.as_deref().map_or(0, row_bytes)).unwrap_or(u32::MAX);
        // A loaded partition knows without the row that a name is absent.
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

    /// Drops rows that became absent in appended batches, if `may_go` allows it.
    pub fn forget_absent(&mut self, appended: BatchNumber, may_go: impl Fn(&Key) -> bool) {
        let mut absent = std::mem::take(&mut self.absent);
        absent.retain(|place| {
            // Another row may be in the slot by now.
            let Some((key, CachedRow { row: None, changed_in, .. })) = self.slots.at(*place) else { return false };
            let is_appended = *changed_in <= appended;
            if is_appended && !self.fetching.contains(key) && may_go(key) {
                self.drop_at(*place);
            }
            !is_appended
        });
        self.absent = absent;
    }

    /// Drops rows not used lately, as far as the budget requires it immediately. `pinned`: keys that must stay.
    pub fn shrink(&mut self, appended: BatchNumber, pinned: impl Fn(&Key) -> bool) {
        self.report_bytes();
        let bytes_max = self.budget.allows(self.bytes);
        self.shrink_to(bytes_max, appended, pinned);
    }

    /// Returns the size in bytes to shrink to when all caches shrink, and the number of steps. Each step visits
    /// [`VISITS_MAX`] slots: one visit marks a row, and the next one drops it.
    pub fn begin_give_back(&mut self) -> (usize, usize) {
        self.report_bytes();
        (self.budget.leaves(self.bytes), 2 * self.slots.end() / VISITS_MAX + 1)
    }

    /// Runs one step. Returns whether another is needed.
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

    /// Frees the slots of dropped rows once most are empty: the budget does not count them, and they are part of a
    /// row's memory.
    pub fn give_up_places(&mut self) {
        if self.slots.is_sparse() {
            // The hand finds the rows that were to be checked again.
            self.absent = Vec::new();
            self.slots.shrink();
        }
    }

    /// Switches to another budget.
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
