//! The partitions of a shard that are in memory: their names and their current operations. Their rows are resident.

use super::names::{NAME_BYTES, PartitionNames};
use super::read_order::ReadOrder;
use super::resident::{BatchNumber, CacheBudget};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use varve_env::key_hash::KeyHashing;
use varve_env::random;
use varve_schema::{Key, PartitionRow, PartitionState};
use varve_types::{HashRange, InodeId, Name, NameHash, PartitionIndex};

pub(super) struct Partition {
    pub index: PartitionIndex,
    /// The range of hashes that it serves, as in its row; every request reads it. `None`: the partition is not live.
    range: Option<HashRange>,
    pub names: PartitionNames,
    pub changed_in: BatchNumber,
    names_version: NamesVersion,
    /// The row changed since it was last put into a batch; see [`Partitions::mark_dirty`].
    row_dirty: bool,
    /// Tallies in undecided intents.
    pub pending_tallies: u32,
    pub split: Option<Split>,
    pub order: ReadOrder,
    pub used: bool,
}

/// Identifies the set of names of a partition, with their inodes: while two are equal, no name was made, removed or
/// replaced between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamesVersion {
    /// A random number for each time that the partition was loaded: batches that changed it earlier are not known.
    pub loaded: u64,
    /// The batch of the last change of a name since then.
    pub batch: BatchNumber,
}

/// A split in progress, at its source.
pub(super) struct Split {
    /// The half that moves.
    pub range: HashRange,
    /// The last hash of that half whose row is copied or being copied now.
    pub copied_to: Option<NameHash>,
    /// Entries up to `copied_to` that changed since they were copied.
    pub changed: BTreeSet<Name>,
    /// The last rows are being copied: decisions on names of that half wait.
    pub held: bool,
}

impl Split {
    pub fn of(range: HashRange) -> Split {
        Split { range, copied_to: None, changed: BTreeSet::new(), held: false }
    }

    /// Records a change of an entry. An entry not yet copied is copied later in its current state.
    pub fn note(&mut self, name: &Name) {
        let hash = name.hash();
        if self.range.contains(hash) && self.copied_to.is_some_and(|last| hash <= last) {
            self.changed.insert(name.clone());
        }
    }
}

impl Partition {
    pub fn new(row: &PartitionRow, names: PartitionNames) -> Partition {
        Partition {
            index: row.index,
            range: range_of(row),
            names,
            changed_in: BatchNumber(0),
            names_version: NamesVersion { loaded: random::number(), batch: BatchNumber(0) },
            row_dirty: false,
            pending_tallies: 0,
            split: None,
            order: ReadOrder::default(),
            used: true,
        }
    }

    /// Updates the range from the partition's new row.
    pub fn follow(&mut self, row: &PartitionRow) {
        self.range = range_of(row);
    }

    pub fn names_version(&self) -> NamesVersion {
        self.names_version
    }

    /// Records that a name was made, removed or replaced in `batch`.
    pub fn names_changed(&mut self, batch: BatchNumber) {
        self.names_version.batch = batch;
    }

    /// Whether names with this hash are decided on here.
    pub fn serves(&self, hash: NameHash) -> bool {
        self.range.is_some_and(|range| range.contains(hash))
    }

    fn names_bytes(&self) -> usize {
        self.names.len() * NAME_BYTES
    }

    pub fn holds_name(&self, name: &Name) -> bool {
        self.split.as_ref().is_some_and(|split| split.held && split.range.contains(name.hash()))
    }
}

fn range_of(row: &PartitionRow) -> Option<HashRange> {
    (row.state != PartitionState::Incoming).then(|| row.index.range(row.depth))
}

pub(super) struct Partitions {
    loaded: HashMap<InodeId, Partition, KeyHashing>,
    /// Directories whose partition is marked dirty, including some that are no longer loaded.
    dirty: Vec<InodeId>,
    /// Batches until names are counted again.
    uncounted: u32,
    /// The bytes of names last reported to the budget.
    reported: usize,
    budget: Arc<CacheBudget>,
}

/// Interval between counts of names, in batches: a count visits every loaded partition.
const COUNTED_EVERY: u32 = 256;

/// Names below this size are kept while their partition is used: there may be very many such partitions, and dropping
/// one frees little.
const FORGOTTEN_BYTES_MIN: usize = 1024 * 1024;

impl Partitions {
    pub fn new(budget: Arc<CacheBudget>) -> Partitions {
        Partitions { loaded: HashMap::default(), dirty: Vec::new(), uncounted: 0, reported: 0, budget }
    }

    pub fn get(&self, directory: InodeId) -> Option<&Partition> {
        self.loaded.get(&directory)
    }

    pub fn get_mut(&mut self, directory: InodeId) -> Option<&mut Partition> {
        self.loaded.get_mut(&directory)
    }

    pub fn insert(&mut self, directory: InodeId, partition: Partition) {
        self.loaded.insert(directory, partition);
    }

    pub fn remove(&mut self, directory: InodeId) {
        self.loaded.remove(&directory);
    }

    pub fn len(&self) -> usize {
        self.loaded.len()
    }

    pub fn names(&self) -> usize {
        self.loaded.values().map(|partition| partition.names.len()).sum()
    }

    /// Records that the row of `directory`'s partition changed in `batch` and must be written to it.
    pub fn mark_dirty(&mut self, directory: InodeId, batch: BatchNumber) {
        if let Some(partition) = self.loaded.get_mut(&directory) {
            partition.changed_in = batch;
            partition.used = true;
            if !std::mem::replace(&mut partition.row_dirty, true) {
                self.dirty.push(directory);
            }
        }
    }

    pub fn has_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Calls `write` for each dirty partition, which puts its row into `batch`. The partitions are clean afterwards.
    pub fn clean(&mut self, batch: BatchNumber, mut write: impl FnMut(InodeId, PartitionIndex)) {
        for directory in self.dirty.drain(..) {
            let Some(partition) = self.loaded.get_mut(&directory) else { continue };
            partition.changed_in = batch;
            if std::mem::take(&mut partition.row_dirty) {
                write(directory, partition.index);
            }
        }
    }

    /// Whether the row of `key` must stay resident: a partition's while it is loaded, an entry's while a readahead may
    /// read it.
    pub fn hold(&self, key: &Key) -> bool {
        match key {
            Key::Partition(directory, _) => self.loaded.contains_key(directory),
            Key::Entry(directory, name) => {
                self.loaded.get(directory).is_some_and(|partition| partition.order.is_being_read(name.hash()))
            }
            _ => false,
        }
    }

    /// Whether the names of its partition show, without its row, that the entry of `key` is absent.
    pub fn know_absent(&self, key: &Key) -> bool {
        match key {
            Key::Entry(directory, name) => {
                self.loaded.get(directory).is_some_and(|partition| !partition.names.may_hold(name.hash()))
            }
            _ => false,
        }
    }

    /// Whether the budget allows the names of a partition with this many entries, if all other names are dropped.
    pub fn has_room_for(&self, entries: u64) -> bool {
        usize::try_from(entries).is_ok_and(|entries| entries.saturating_mul(NAME_BYTES) <= self.budget.bytes_max())
    }

    /// Shrinks as far as the budget requires immediately. It checks the budget once in [`COUNTED_EVERY`] calls.
    pub fn shrink(&mut self, appended: BatchNumber) {
        if self.uncounted > 0 {
            self.uncounted -= 1;
            return;
        }
        self.uncounted = COUNTED_EVERY;
        let bytes = self.count();
        self.shrink_to(self.budget.allows(bytes), bytes, appended);
    }

    /// Gives back this shard's part of the excess of all shards together.
    pub fn give_back(&mut self, appended: BatchNumber) {
        if self.budget.is_exceeded() {
            let bytes = self.count();
            self.shrink_to(self.budget.leaves(bytes), bytes, appended);
        }
    }

    fn count(&mut self) -> usize {
        let bytes = self.names() * NAME_BYTES;
        self.report_bytes(bytes);
        bytes
    }

    /// Unloads partitions not used since the last call until the names of all partitions are within the budget. If that
    /// is not enough, drops the names of large partitions in use, the largest first. A partition with unappended
    /// changes, undecided tallies or a split stays, and names that are being read stay until the read ends.
    fn shrink_to(&mut self, bytes_max: usize, mut bytes: usize, appended: BatchNumber) {
        if bytes <= bytes_max {
            return;
        }
        self.loaded.retain(|_, partition| {
            let idle = partition.changed_in <= appended
                && !partition.row_dirty
                && partition.pending_tallies == 0
                && partition.split.is_none()
                && !partition.names.are_gathered()
                && !std::mem::take(&mut partition.used);
            if bytes > bytes_max && idle {
                bytes -= partition.names_bytes();
                return false;
            }
            true
        });
        self.report_bytes(bytes);
        while bytes > bytes_max && self.budget.is_far_exceeded() {
            let large = |partition: &&mut Partition| {
                matches!(partition.names, PartitionNames::Known(_)) && partition.names_bytes() >= FORGOTTEN_BYTES_MIN
            };
            let largest = self.loaded.values_mut().filter(large).max_by_key(|partition| partition.names_bytes());
            let Some(largest) = largest else { break };
            bytes -= largest.names_bytes();
            largest.names = PartitionNames::Unknown;
            self.report_bytes(bytes);
        }
    }

    fn report_bytes(&mut self, bytes: usize) {
        self.budget.change(self.reported, bytes);
        self.reported = bytes;
    }
}

impl Drop for Partitions {
    fn drop(&mut self) {
        self.budget.change(self.reported, 0);
    }
}
