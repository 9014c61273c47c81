//! A hash table of numbers that asks memory once. Of millions, neither what says where a number may be nor the number is in
//! the processor's cache, so here they are one: a bucket is a line of the cache, and a number lies in the bucket that its
//! hash says (its *home*), or in the first one after that which was not full.
//!
//! Invariant: of a number that is not at home, every bucket from its home to the one before its own is full. So a search
//! ends at the first one that is not.

use std::sync::OnceLock;

const SLOTS: usize = 8;

/// In a bucket, on average: with more, too many are not at home.
const FILLED_MAX: usize = 6;

/// What a number takes, in a table of which between three eighths and three quarters are filled.
pub const NUMBER_BYTES: usize = 16;

/// Zero is an empty slot.
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket([u64; SLOTS]);

impl Bucket {
    fn is_full(&self) -> bool {
        !self.0.contains(&0)
    }
}

/// Of numbers that are not zero. `HASH`: which bits of a number are its hash.
pub struct Buckets<const HASH: u64> {
    /// As many as a power of two, or none.
    buckets: Vec<Bucket>,
    len: usize,
    factor: u64,
}

impl<const HASH: u64> Default for Buckets<HASH> {
    fn default() -> Buckets<HASH> {
        Buckets { buckets: Vec::new(), len: 0, factor: factor() }
    }
}

/// Of the process: users choose names, and so hashes, but not which of them meet in a bucket.
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

    /// How many it can hold before it grows.
    pub fn capacity(&self) -> usize {
        FILLED_MAX * self.buckets.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().flat_map(|bucket| bucket.0).filter(|number| *number != 0)
    }

    /// Of the numbers with this `hash`, and some others, the one that `is` what is sought.
    pub fn find(&self, hash: u64, is: impl Fn(u64) -> bool) -> Option<u64> {
        let (bucket, slot) = self.seek(hash, is)?;
        Some(self.buckets[bucket].0[slot])
    }

    /// `number` is not there yet.
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

    /// Fills a slot that became empty in a bucket that was full with a number that has passed that bucket; and so on with
    /// the slot where that one was.
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

    /// There is room for `number`.
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

    /// From the upper bits of the product, for they depend on all bits of the hash. So a table that grows is read and
    /// written in order.
    fn home(&self, number: u64) -> usize {
        let product = (number & HASH).wrapping_mul(self.factor);
        ((u128::from(product) * self.buckets.len() as u128) >> 64) as usize
    }

    fn after(&self, bucket: usize) -> usize {
        (bucket + 1) & (self.buckets.len() - 1)
    }

    /// How many buckets it is from one to another; after the last comes the first.
    fn between(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.buckets.len() - 1)
    }
}

#[cfg(test)]
#[path = "buckets/tests.rs"]
mod tests;
