//! Hashing of keys of in-memory tables: fast, and seeded per process, because users choose the names in the keys.

use foldhash::SharedSeed;
use foldhash::quality::FoldHasher;
use std::hash::BuildHasher;
use std::sync::OnceLock;

/// foldhash with seeds from this crate's random numbers, in place of those that it would draw itself. Its quality variant:
/// with one seed of twenty, the fast one puts adjacent keys into few buckets.
#[derive(Clone, Copy)]
pub struct KeyHashing(&'static Seeds);

struct Seeds {
    start: u64,
    shared: SharedSeed,
}

impl Default for KeyHashing {
    fn default() -> KeyHashing {
        static SEEDS: OnceLock<Seeds> = OnceLock::new();
        KeyHashing(SEEDS.get_or_init(|| {
            let start = crate::random::number();
            Seeds { start, shared: SharedSeed::from_u64(start) }
        }))
    }
}

impl BuildHasher for KeyHashing {
    type Hasher = FoldHasher<'static>;

    #[inline]
    fn build_hasher(&self) -> FoldHasher<'static> {
        FoldHasher::with_seed(self.0.start, &self.0.shared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;
    use std::hash::{Hash, Hasher};

    /// Promise: keys with small differences differ in the bits that a map uses, the lowest and the highest seven.
    #[test]
    fn adjacent_keys_hash_apart() {
        // With foldhash's fast variant one of twenty seeds fails.
        for seed in 0..200 {
            let shared = SharedSeed::from_u64(seed);
            let hash = |key: (u64, u64)| {
                let mut hasher = FoldHasher::with_seed(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15), &shared);
                key.hash(&mut hasher);
                hasher.finish()
            };
            let low: HashSet<u64> = (0..10_000).map(|n| hash((7 << 48, n)) & 0xffff).collect();
            let high: HashSet<u64> = (0..10_000).map(|n| hash((n << 40, 3)) >> 57).collect();
            // 10,000 balls in 65,536 bins fill some 9,270 of them.
            assert!(low.len() > 9_000, "seed {seed}: {} values of the low bits", low.len());
            assert_eq!(high.len(), 128, "seed {seed}");
        }
    }
}
