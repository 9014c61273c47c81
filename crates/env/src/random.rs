//! Random numbers: from the kernel, unpredictable; and from a seed, the same on every run and machine.

use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `buffer` with random bytes.
///
/// # Panics
/// If the kernel has no random source, which Linux rules out once it has booted. Without one, no key and no volume id
/// could be trusted.
pub fn fill(buffer: &mut [u8]) {
    let mut filled = 0;
    while filled < buffer.len() {
        match getrandom(&mut buffer[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the kernel's random source failed: {error}"),
        }
    }
}

pub fn bytes<const COUNT: usize>() -> [u8; COUNT] {
    let mut buffer = [0; COUNT];
    fill(&mut buffer);
    buffer
}

pub fn number() -> u64 {
    u64::from_le_bytes(bytes())
}

/// Seeded random numbers: SplitMix64 (Steele, Lea, Flood, OOPSLA 2014). For uses that must be repeatable, such as a
/// benchmark's order of files, a simulation, or a test; never for values that must not be guessable.
#[derive(Clone, Debug)]
pub struct Seeded(u64);

impl Seeded {
    pub fn new(seed: u64) -> Seeded {
        Seeded(seed)
    }

    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// A number below `limit`, or 0 if `limit` is 0. The bias is below 2^-32 for limits of 32 bits.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.number()) * limit as u128) >> 64) as usize
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| self.number().to_le_bytes()).collect();
        bytes.truncate(length);
        bytes
    }

    /// Fisher-Yates shuffle.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for at in (1..all.len()).rev() {
            let other = self.below(at + 1);
            all.swap(at, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the numbers of a seed never change, so that earlier recorded runs can be repeated. (The first numbers
    /// of seed 0 are those of the authors' own program.)
    #[test]
    fn seeded_sequence_is_stable() {
        let mut chance = Seeded::new(0);
        let first = [chance.number(), chance.number(), chance.number()];
        assert_eq!(first, [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]);
        assert_eq!(Seeded::new(7).bytes(20)[..8], Seeded::new(7).number().to_le_bytes());
        assert_eq!(chance.below(0), 0);
        let mut all: Vec<u32> = (0..100).collect();
        chance.shuffle(&mut all);
        assert_ne!(all, (0..100).collect::<Vec<_>>());
        all.sort();
        assert_eq!(all, (0..100).collect::<Vec<_>>());
    }
}
