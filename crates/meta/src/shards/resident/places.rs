//! A map whose entries keep their place: what walks over them all reads memory in order, and what is looked up touches one
//! entry. A place is as long as an entry, and the table that finds it is short, so that of a large cache most of that table
//! stays near the processor.

use crate::tables::Key;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use std::hash::BuildHasher;
use varve_world::key_hash::KeyHashing;

/// How many times as many places as entries are kept.
const SPARSE_TIMES: usize = 4;

/// Where an entry lies, of four thousand million places. The hash goes with it, so that neither growth nor a look for another key reads the entry.
struct Place {
    hash: u32,
    at: u32,
}

pub(super) struct Places<T> {
    table: HashTable<Place>,
    entries: Vec<Option<(Key, T)>>,
    /// Places below the end of `entries` that are empty.
    free: Vec<u32>,
    hashing: KeyHashing,
}

impl<T> Places<T> {
    pub fn new() -> Places<T> {
        Places { table: HashTable::new(), entries: Vec::new(), free: Vec::new(), hashing: KeyHashing::default() }
    }

    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// One past the highest place.
    pub fn end(&self) -> usize {
        self.entries.len()
    }

    pub fn find(&self, key: &Key) -> Option<usize> {
        let hash = self.hash(key);
        self.table.find(spread(hash), |place| is_at(&self.entries, place, hash, key)).map(|place| place.at as usize)
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
        let Places { table, entries, free, .. } = self;
        match table.entry(spread(hash), |place| is_at(entries, place, hash, &key), |place| spread(place.hash)) {
            Entry::Occupied(found) => {
                let at = found.get().at as usize;
                (at, entries[at].replace((key, entry)).map(|(_, old)| old))
            }
            Entry::Vacant(vacant) => {
                let at = free.pop().unwrap_or(entries.len() as u32);
                match entries.get_mut(at as usize) {
                    Some(empty) => {
                        debug_assert!(empty.is_none(), "a free place has an entry");
                        // Nothing is dropped: to look whether there is something would read memory that is in no cache.
                        std::mem::forget(empty.replace((key, entry)));
                    }
                    None => entries.push(Some((key, entry))),
                }
                vacant.insert(Place { hash, at });
                (at as usize, None)
            }
        }
    }

    /// Empties a place.
    pub fn remove(&mut self, place: usize) -> Option<T> {
        let (key, entry) = self.entries.get_mut(place)?.take()?;
        let hash = self.hash(&key);
        if let Ok(found) = self.table.find_entry(spread(hash), |found| found.at as usize == place) {
            found.remove();
        }
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
        let Places { table, entries, hashing, .. } = self;
        *table = HashTable::with_capacity(entries.len());
        for (at, (key, _)) in entries.iter().flatten().enumerate() {
            let hash = hashing.hash_one(key) as u32;
            table.insert_unique(spread(hash), Place { hash, at: at as u32 }, |place| spread(place.hash));
        }
    }

    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.entries.capacity().max(self.table.capacity())
    }

    fn hash(&self, key: &Key) -> u32 {
        self.hashing.hash_one(key) as u32
    }
}

fn is_at<T>(entries: &[Option<(Key, T)>], place: &Place, hash: u32, key: &Key) -> bool {
    place.hash == hash && entries[place.at as usize].as_ref().is_some_and(|(its, _)| its == key)
}

/// The table takes its bucket from the lowest bits and a mark from the highest ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
