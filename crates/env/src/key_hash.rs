//! Hashing of keys of in-memory tables: fast, and seeded per process, because users choose the names in the keys.

use std::hash::{BuildHasher, Hasher};
use std::sync::OnceLock;
use xxhash_rust::xxh3::xxh3_64_with_seed;

#[derive(Clone, Copy)]
pub struct KeyHashing {
    seed: u64,
}

impl Default for KeyHashing {
    fn default() -> KeyHashing {
        static SEED: OnceLock<u64> = OnceLock::new();
        KeyHashing { seed: *SEED.get_or_init(crate::random::number) }
    }
}

impl BuildHasher for KeyHashing {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(self.seed)
    }
}

pub struct KeyHasher(u64);

impl KeyHasher {
    /// Multiplies by an odd constant with evenly spread bits and folds both halves of the product: every bit of either
    /// operand affects the bits that a map uses.
    fn mix(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    fn write_u8(&mut self, value: u8) {
        self.mix(value.into());
    }

    fn write_u16(&mut self, value: u16) {
        self.mix(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.mix(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Promise: keys with small differences differ in the bits that a map uses, the lowest and the highest seven.
    #[test]
    fn adjacent_keys_hash_apart() {
        let hashing = KeyHashing::default();
        let low: HashSet<u64> = (0..10_000_u64).map(|n| hashing.hash_one((7_u64 << 48, n)) & 0xffff).collect();
        let high: HashSet<u64> = (0..10_000_u64).map(|n| hashing.hash_one((n << 40, 3_u16)) >> 57).collect();
        // 10,000 balls in 65,536 bins fill some 9,270 of them.
        assert!(low.len() > 9_000, "{} values of the low bits", low.len());
        assert_eq!(high.len(), 128);
    }
}
