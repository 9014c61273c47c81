//! The hashes of the names in a loaded partition, so that a create never reads the table to learn that a name is free.
//!
//! Two names may share a hash, so hashes are counted: one whose count is zero belongs to no name; one whose count is
//! not says only that the table must be asked.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use varve_types::{HashRange, NameHash};

/// The hashes are XXH3 already: hashing them again would only cost.
#[derive(Default)]
pub(super) struct Unhashed(u64);

impl Hasher for Unhashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys are hashed")
    }

    fn write_u64(&mut self, value: u64) {
        // hashbrown takes its control byte from the upper bits, which a partition's hashes have in common: bring the
        // lower ones there.
        self.0 = value.rotate_left(32);
    }
}

/// What one takes, a hash with its count, in a table that is filled between half and nearly whole.
pub const NAME_BYTES: usize = 28;

#[derive(Default)]
pub(super) struct NameSet {
    counts: HashMap<u64, u16, BuildHasherDefault<Unhashed>>,
}

impl NameSet {
    pub fn insert(&mut self, hash: NameHash) {
        *self.counts.entry(hash.0).or_insert(0) += 1;
    }

    pub fn remove(&mut self, hash: NameHash) {
        if let Some(count) = self.counts.get_mut(&hash.0) {
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&hash.0);
            }
        }
    }

    pub fn may_hold(&self, hash: NameHash) -> bool {
        self.counts.contains_key(&hash.0)
    }

    /// How many names have a hash in `range`.
    pub fn count(&self, range: HashRange) -> usize {
        let within = self.counts.iter().filter(|(hash, _)| range.contains(NameHash(**hash)));
        within.map(|(_, count)| usize::from(*count)).sum()
    }

    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Drops the hashes outside `range`.
    pub fn keep(&mut self, range: HashRange) {
        self.counts.retain(|hash, _| range.contains(NameHash(*hash)));
        self.counts.shrink_to_fit();
    }
}
