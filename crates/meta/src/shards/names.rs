//! The hashes of the names in a loaded partition, so that a create never reads the table to check that a name is free.
//!
//! Two names may share a hash, so hashes are counted. A hash whose count is zero belongs to no name. For any other
//! hash, the table must be read.

use super::buckets::{Buckets, NUMBER_BYTES};
use std::collections::HashMap;
use varve_env::key_hash::KeyHashing;
use varve_types::{HashRange, NameHash};

/// Memory per name.
pub const NAME_BYTES: usize = NUMBER_BYTES;

/// A growing set is moved as a whole, and its worker does nothing else meanwhile. So a set of this size is cut into
/// [`SETS`] sets, which grow one by one.
const SET_MAX: usize = 32 * 1024;
const SETS: usize = 64;

/// Each number is a hash.
type Hashes = Buckets<{ u64::MAX }>;

#[derive(Default)]
pub(super) struct NameSet {
    /// Each hash once, in the set that its lowest bits select. There is no set, one, or [`SETS`].
    sets: Vec<Hashes>,
    /// The number of further names with a hash.
    more: HashMap<u64, u16, KeyHashing>,
}

impl NameSet {
    pub fn insert(&mut self, hash: NameHash) {
        if self.sets.is_empty() {
            self.sets.push(Hashes::default());
        }
        let (at, hash) = (self.place(hash), hash.0);
        if has(&self.sets[at], hash) {
            let count = self.more.entry(hash).or_insert(0);
            *count = count.saturating_add(1);
            return;
        }
        self.sets[at].insert(hash);
        if self.sets.len() == 1 && self.sets[at].len() > SET_MAX {
            self.cut();
        }
    }

    pub fn remove(&mut self, hash: NameHash) {
        if self.sets.is_empty() {
            return;
        }
        let (at, hash) = (self.place(hash), hash.0);
        match self.more.get_mut(&hash) {
            // The counter is saturated, so the real count is unknown: the hash stays.
            Some(&mut u16::MAX) => {}
            Some(1) => {
                self.more.remove(&hash);
            }
            Some(count) => *count -= 1,
            None => self.sets[at].remove(hash),
        }
    }

    pub fn may_hold(&self, hash: NameHash) -> bool {
        if self.sets.is_empty() {
            return false;
        }
        let (at, hash) = (self.place(hash), hash.0);
        has(&self.sets[at], hash)
    }

    /// The number of names with a hash in `range`.
    pub fn count(&self, range: HashRange) -> usize {
        let within = |hash: &u64| range.contains(NameHash(*hash));
        let once = self.sets.iter().flat_map(Hashes::iter).filter(within).count();
        once + self.more.iter().filter(|(hash, _)| within(hash)).map(|(_, more)| usize::from(*more)).sum::<usize>()
    }

    /// The number of hashes.
    pub fn len(&self) -> usize {
        self.sets.iter().map(Hashes::len).sum()
    }

    /// Drops the hashes outside `range`.
    pub fn keep(&mut self, range: HashRange) {
        for set in &mut self.sets {
            set.retain(|hash| range.contains(NameHash(hash)));
        }
        self.more.retain(|hash, _| range.contains(NameHash(*hash)));
    }

    fn place(&self, hash: NameHash) -> usize {
        hash.0 as usize & (self.sets.len() - 1)
    }

    fn cut(&mut self) {
        let whole = std::mem::take(&mut self.sets);
        let mut lens = [0; SETS];
        whole.iter().flat_map(Hashes::iter).for_each(|hash| lens[hash as usize & (SETS - 1)] += 1);
        // The hashes come in the order of their homes: in a set without capacity for all, the first buckets would hold
        // them.
        let room = |len: &usize| Hashes::with_capacity(2 * len.max(&(SET_MAX / SETS)));
        self.sets = lens.iter().map(room).collect();
        for hash in whole.iter().flat_map(Hashes::iter) {
            let at = self.place(NameHash(hash));
            self.sets[at].insert(hash);
        }
    }
}

fn has(set: &Hashes, hash: u64) -> bool {
    set.find(hash, |is| is == hash).is_some()
}

/// Knowledge of the names in a loaded partition.
pub(super) enum PartitionNames {
    Known(NameSet),
    /// A task reads the names from the table while requests continue. The set holds all names read, and all names
    /// changed since, because a changed name may be read or not. `number` identifies this read.
    Gathered {
        number: u64,
        so_far: NameSet,
    },
    /// The names would take too much memory, or could not be read.
    Unknown,
}

impl PartitionNames {
    /// `false`: no name has this hash.
    pub fn may_hold(&self, hash: NameHash) -> bool {
        match self {
            PartitionNames::Known(names) => names.may_hold(hash),
            PartitionNames::Gathered { .. } | PartitionNames::Unknown => true,
        }
    }

    pub fn insert(&mut self, hash: NameHash) {
        match self {
            PartitionNames::Known(names) | PartitionNames::Gathered { so_far: names, .. } => names.insert(hash),
            PartitionNames::Unknown => {}
        }
    }

    pub fn remove(&mut self, hash: NameHash) {
        match self {
            PartitionNames::Known(names) => names.remove(hash),
            // The name may not be read yet, and then it never will be; or another name has this hash. One name too many
            // only causes a read of the table.
            PartitionNames::Gathered { so_far, .. } => so_far.insert(hash),
            PartitionNames::Unknown => {}
        }
    }

    /// The number of names with a hash in `range`, if known.
    pub fn count(&self, range: HashRange) -> Option<usize> {
        match self {
            PartitionNames::Known(names) => Some(names.count(range)),
            PartitionNames::Gathered { .. } | PartitionNames::Unknown => None,
        }
    }

    /// The number of hashes in memory.
    pub fn len(&self) -> usize {
        match self {
            PartitionNames::Known(names) | PartitionNames::Gathered { so_far: names, .. } => names.len(),
            PartitionNames::Unknown => 0,
        }
    }

    pub fn keep(&mut self, range: HashRange) {
        match self {
            PartitionNames::Known(names) | PartitionNames::Gathered { so_far: names, .. } => names.keep(range),
            PartitionNames::Unknown => {}
        }
    }

    pub fn are_gathered(&self) -> bool {
        matches!(self, PartitionNames::Gathered { .. })
    }

    /// The set of the read with this number so far, if it is still needed.
    pub fn gathered(&mut self, reading: u64) -> Option<&mut NameSet> {
        match self {
            PartitionNames::Gathered { number, so_far } if *number == reading => Some(so_far),
            _ => None,
        }
    }
}
