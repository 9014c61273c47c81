//! A hash table of numbers with one memory access per lookup. With millions of numbers, neither an index entry nor the
//! number is in the processor's cache, so this table combines them: a bucket is a cache line, and a number lies in the
//! bucket that its hash selects (its *home*), or in the first later one that was not full.
//!
//! Invariant: for a number that is not in its home bucket, every bucket from its home to the one before its own is
//! full. So a search ends at the first bucket that is not full.

use std::sync::OnceLock;

const SLOTS: usize = 8;

/// Average limit per bucket: with more, too many numbers are not in their home.
const FILLED_MAX: usize = 6;

/// Memory per number, in a table that is between three eighths and three quarters full.
pub const NUMBER_BYTES: usize = 16;

/// Zero marks an empty slot.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([u64; SLOTS]);

impl Bucket {
    fn is_full(&self) -> bool {
        !self.0.contains(&0)
    }
}

/// A set of non-zero numbers. `HASH`: mask of the bits of a number that are its hash.
pub struct Buckets<const HASH: u64> {
    /// The length is a power of two, or zero.
    buckets: Vec<Bucket>,
    len: usize,
    factor: u64,
}

impl<const HASH: u64> Default for Buckets<HASH> {
    fn default() -> Buckets<HASH> {
        Buckets { buckets: Vec::new(), len: 0, factor: factor() }
    }
}

/// Random per process: users choose names, and so hashes, but cannot choose which of them meet in a bucket.
fn factor() -> u64 {
    static FACTOR: OnceLock<u64> = OnceLock::new();
    *FACTOR.get_or_init(|| varve_env::random::number() | 1)
}

impl<const HASH: u64> Buckets<HASH> {
    pub fn with_capacity(numbers: usize) -> Buckets<HASH> {
        let buckets = if numbers == 0 { 0 } else { numbers.div_ceil(FILLED_MAX).next_power_of_two() };
        Buckets { buckets: vec![Bucket::default(); buckets], ..Buckets::default() }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The number of entries that fit before the table grows.
    pub fn capacity(&self) -> usize {
        FILLED_MAX * self.buckets.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().flat_map(|bucket| bucket.0).filter(|number| *number != 0)
    }

    /// Returns the number for which `is` returns true, among those with this `hash` and some others.
    pub fn find(&self, hash: u64, is: impl Fn(u64) -> bool) -> Option<u64> {
        let (bucket, slot) = self.seek(hash, is)?;
        Some(self.buckets[bucket].0[slot])
    }

    /// Inserts `number`, which must not be present.
    pub fn insert(&mut self, number: u64) {
        debug_assert_ne!(number, 0, "zero is an empty slot");
        if self.len >= self.capacity() {
            self.grow();
        }
        self.put(number);
    }

    pub fn remove(&mut self, number: u64) {
        let Some((bucket, slot)) = self.seek(number, |is| is == number) else { return };
        let passed = self.buckets[bucket].is_full();
        self.buckets[bucket].0[slot] = 0;
        self.len -= 1;
        if passed {
            self.call_back(bucket, slot);
        }
    }

    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let kept = self.iter().filter(|number| keep(*number)).count();
        let mut kept = Buckets { factor: self.factor, ..Buckets::with_capacity(kept) };
        self.iter().filter(|number| keep(*number)).for_each(|number| kept.put(number));
        *self = kept;
    }

    /// Fills a slot freed in a full bucket with a number that was displaced past that bucket, and repeats this with the
    /// slot that this number leaves.
    fn call_back(&mut self, mut bucket: usize, mut slot: usize) {
        let mut next = bucket;
        loop {
            next = self.after(next);
            let passed = self.buckets[next].is_full();
            let has_passed =
                |number: u64| number != 0 && self.between(self.home(number), next) >= self.between(bucket, next);
            if let Some(found) = self.buckets[next].0.iter().position(|number| has_passed(*number)) {
                self.buckets[bucket].0[slot] = std::mem::take(&mut self.buckets[next].0[found]);
                (bucket, slot) = (next, found);
            }
            if !passed {
                return;
            }
        }
    }

    fn grow(&mut self) {
        let buckets = vec![Bucket::default(); (2 * self.buckets.len()).max(1)];
        let mut grown = Buckets { buckets, len: 0, factor: self.factor };
        self.iter().for_each(|number| grown.put(number));
        *self = grown;
    }

    /// Stores `number`; a slot must be free.
    fn put(&mut self, number: u64) {
        let mut bucket = self.home(number);
        loop {
            if let Some(empty) = self.buckets[bucket].0.iter_mut().find(|slot| **slot == 0) {
                *empty = number;
                self.len += 1;
                return;
            }
            bucket = self.after(bucket);
        }
    }

    fn seek(&self, hash: u64, is: impl Fn(u64) -> bool) -> Option<(usize, usize)> {
        if self.buckets.is_empty() {
            return None;
        }
        let mut at = self.home(hash);
        loop {
            let bucket = &self.buckets[at];
            if let Some(slot) = bucket.0.iter().position(|number| *number != 0 && is(*number)) {
                return Some((at, slot));
            }
            if !bucket.is_full() {
                return None;
            }
            at = self.after(at);
        }
    }

    /// Uses the upper bits of the product, because they depend on all bits of the hash. A growing table is therefore
    /// read and written in order.
    fn home(&self, number: u64) -> usize {
        let product = (number & HASH).wrapping_mul(self.factor);
        ((u128::from(product) * self.buckets.len() as u128) >> 64) as usize
    }

    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }

    /// The number of buckets from one to another, wrapping from the last to the first.
    fn between(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
#[path = "buckets/tests.rs"]
mod tests;
