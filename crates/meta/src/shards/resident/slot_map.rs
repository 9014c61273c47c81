//! A map whose entries keep their place: what walks over them all reads memory in order, and what is looked up touches one
//! entry, and one line of the table that finds it.

use crate::shards::buckets::Buckets;
use crate::tables::Key;
use std::hash::BuildHasher;
use varve_env::key_hash::KeyHashing;

/// How many times as many places as entries are kept.
const SPARSE_TIMES: usize = 4;

/// Numbers that say in which place an entry is and, in their lower half, the hash of its key: so neither growth nor a look for
/// another key reads the entry.
type SlotIndex = Buckets<{ u32::MAX as u64 }>;

pub(super) struct SlotMap<T> {
    table: SlotIndex,
    entries: Vec<Option<(Key, T)>>,
    /// Places below the end of `entries` that are empty.
    free: Vec<u32>,
    hashing: KeyHashing,
}

impl<T> SlotMap<T> {
    pub fn new() -> SlotMap<T> {
        SlotMap { table: SlotIndex::default(), entries: Vec::new(), free: Vec::new(), hashing: KeyHashing::default() }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// One past the highest place.
    pub fn end(&self) -> usize {
        self.entries.len()
    }

    pub fn find(&self, key: &Key) -> Option<usize> {
        self.find_hashed(self.hash(key), key)
    }

    pub fn at(&self, place: usize) -> Option<&(Key, T)> {
        self.entries.get(place)?.as_ref()
    }

    pub fn at_mut(&mut self, place: usize) -> Option<&mut T> {
        self.entries.get_mut(place)?.as_mut().map(|(_, entry)| entry)
    }

    /// Puts `entry` in the place of `key`; returns the place, and what was there.
    pub fn insert(&mut self, key: Key, entry: T) -> (usize, Option<T>) {
        let hash = self.hash(&key);
        if let Some(at) = self.find_hashed(hash, &key) {
            return (at, self.entries[at].replace((key, entry)).map(|(_, old)| old));
        }
        let at = self.free.pop().unwrap_or(self.entries.len() as u32);
        match self.entries.get_mut(at as usize) {
            Some(empty) => {
                debug_assert!(empty.is_none(), "a free place has an entry");
                // Nothing is dropped: to look whether there is something would read memory that is in no cache.
                std::mem::forget(empty.replace((key, entry)));
            }
            None => self.entries.push(Some((key, entry))),
        }
        self.table.insert(number(hash, at));
        (at as usize, None)
    }

    /// Empties a place.
    pub fn remove(&mut self, place: usize) -> Option<T> {
        let (key, entry) = self.entries.get_mut(place)?.take()?;
        let hash = self.hash(&key);
        self.table.remove(number(hash, place as u32));
        self.free.push(place as u32);
        Some(entry)
    }

    pub fn iter(&self) -> impl Iterator<Item = &(Key, T)> {
        self.entries.iter().flatten()
    }

    /// Whether more than three quarters of what is kept is empty.
    pub fn is_sparse(&self) -> bool {
        let kept = self.entries.capacity().max(self.table.capacity()).max(self.free.capacity());
        kept > SPARSE_TIMES * (self.len() + 1)
    }

    /// Brings all entries together at the beginning, in their order, and gives up the rest.
    pub fn shrink(&mut self) {
        self.entries.retain(Option::is_some);
        self.entries.shrink_to(2 * self.entries.len());
        self.free = Vec::new();
        let SlotMap { table, entries, hashing, .. } = self;
        *table = SlotIndex::with_capacity(entries.len());
        for (at, (key, _)) in entries.iter().flatten().enumerate() {
            table.insert(number(hashing.hash_one(key) as u32, at as u32));
        }
    }

    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.entries.capacity().max(self.table.capacity())
    }

    fn find_hashed(&self, hash: u32, key: &Key) -> Option<usize> {
        let is_at = |place: usize| self.entries[place].as_ref().is_some_and(|(its, _)| its == key);
        self.table.find(hash.into(), |number| number as u32 == hash && is_at(place_of(number))).map(place_of)
    }

    fn hash(&self, key: &Key) -> u32 {
        self.hashing.hash_one(key) as u32
    }
}

/// One more than the place, of four thousand million, for no number is zero.
fn number(hash: u32, place: u32) -> u64 {
    (u64::from(place) + 1) << 32 | u64::from(hash)
}

fn place_of(number: u64) -> usize {
    (number >> 32) as usize - 1
}
