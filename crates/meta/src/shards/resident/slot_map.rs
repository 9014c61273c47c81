//! A map whose entries keep their slots. A walk over all entries reads memory in order; a lookup touches one entry and
//! one cache line of the index.

use crate::shards::buckets::Buckets;
use std::hash::BuildHasher;
use varve_env::key_hash::KeyHashing;
use varve_schema::Key;

/// The map is sparse when it keeps more than this many times as many slots as entries.
const SPARSE_TIMES: usize = 4;

/// Index numbers. Each combines a slot with, in its lower half, the hash of the key, so that neither growth nor a
/// lookup of another key reads the entry.
type SlotIndex = Buckets<{ u32::MAX as u64 }>;

pub(super) struct SlotMap<T> {
    table: SlotIndex,
    entries: Vec<Option<(Key, T)>>,
    /// Empty slots below the end of `entries`.
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

    /// One past the highest slot.
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

    /// Stores `entry` under `key`. Returns its slot and the entry that was there.
    pub fn insert(&mut self, key: Key, entry: T) -> (usize, Option<T>) {
        let hash = self.hash(&key);
        if let Some(at) = self.find_hashed(hash, &key) {
            return (at, self.entries[at].replace((key, entry)).map(|(_, old)| old));
        }
        let at = self.free.pop().unwrap_or(self.entries.len() as u32);
        match self.entries.get_mut(at as usize) {
            Some(empty) => {
                debug_assert!(empty.is_none(), "a free place has an entry");
                // Nothing is dropped: checking for a value would read memory that is in no cache.
                std::mem::forget(empty.replace((key, entry)));
            }
            None => self.entries.push(Some((key, entry))),
        }
        self.table.insert(number(hash, at));
        (at as usize, None)
    }

    /// Empties a slot.
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

    /// Whether more than three quarters of the kept capacity is empty.
    pub fn is_sparse(&self) -> bool {
        let kept = self.entries.capacity().max(self.table.capacity()).max(self.free.capacity());
        kept > SPARSE_TIMES * (self.len() + 1)
    }

    /// Moves all entries to the beginning, in their order, and frees the rest.
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

/// The number stores the slot plus one, out of four thousand million, because zero is not a valid number.
fn number(hash: u32, place: u32) -> u64 {
    (u64::from(place) + 1) << 32 | u64::from(hash)
}

fn place_of(number: u64) -> usize {
    (number >> 32) as usize - 1
}
