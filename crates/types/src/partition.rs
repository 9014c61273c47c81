//! GIGA+ partitions (GIGA+, FAST'11): how a directory's hash space is split and which shard holds which partition.
//!
//! Splits halve the hash space of a directory repeatedly. Partition 0 begins as the whole space. When partition `i` of
//! depth `d` splits, it keeps the lower half and partition `i + 2^d` gets the upper half; both then have depth `d + 1`.
//! So the low `d` bits of an index are the path of halvings, first halving lowest, and a map has one bit per index. The
//! largest depth is log2 of the shard count: a directory has at most one partition in each shard. The shard of a
//! partition is computed: `(home + index) mod shards`.

use crate::{NameHash, ShardCount, ShardId};
use smallvec::{SmallVec, smallvec};

/// One partition of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionIndex(pub u16);

impl PartitionIndex {
    pub const FIRST: PartitionIndex = PartitionIndex(0);

    /// The shard that holds this partition of a directory whose home is `home`.
    pub fn shard(self, home: ShardId, shards: ShardCount) -> ShardId {
        ShardId(home.0.wrapping_add(self.0) & (shards.get() - 1))
    }

    /// The partition that `shard` would hold of a directory whose home is `home`: the inverse of
    /// [`PartitionIndex::shard`].
    pub fn at(shard: ShardId, home: ShardId, shards: ShardCount) -> PartitionIndex {
        PartitionIndex(shard.0.wrapping_sub(home.0) & (shards.get() - 1))
    }

    /// The partition that holds `hash` where the hash space was halved `depth` times throughout.
    pub fn holding(hash: NameHash, depth: u8) -> PartitionIndex {
        PartitionIndex(match depth {
            0 => 0,
            _ => ((hash.0 >> (NameHash::BITS - depth)) as u16).reverse_bits() >> (16 - depth),
        })
    }

    /// The partition that this one was split from. The first partition was split from none and returns itself.
    pub fn cut_from(self) -> PartitionIndex {
        if self == Self::FIRST { self } else { PartitionIndex(self.0 & !(1 << (15 - self.0.leading_zeros()))) }
    }

    /// The depth at which this partition was split off: the depth of its source before that split. 0 for the first
    /// partition, which was never split off.
    pub fn depth_of_cut(self) -> u8 {
        (16 - self.0.leading_zeros() as u8).saturating_sub(1)
    }

    /// The partition that receives the upper half when this one, of depth `depth`, splits.
    pub fn upper_half(self, depth: u8) -> PartitionIndex {
        PartitionIndex(self.0 | 1 << depth)
    }

    /// The hashes that this partition holds at `depth`.
    pub fn range(self, depth: u8) -> HashRange {
        // The first halving decides the highest bit of the hash and the lowest bit of the index.
        let prefix = if depth == 0 { 0 } else { u64::from(self.0.reverse_bits() >> (16 - depth)) };
        let width = NameHash::BITS - depth;
        HashRange { first: NameHash(prefix << width), last: NameHash((prefix << width) | ((1 << width) - 1)) }
    }
}

/// The hashes from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashRange {
    pub first: NameHash,
    pub last: NameHash,
}

impl HashRange {
    pub const ALL: HashRange = HashRange { first: NameHash(0), last: NameHash::LAST };

    pub fn contains(&self, hash: NameHash) -> bool {
        self.first <= hash && hash <= self.last
    }
}

/// The set of existing partitions of one directory. It may be out of date. Maps only ever gain bits, so the union of
/// two maps of one directory is at least as new as either.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionMap {
    shards: ShardCount,
    /// Bit `i % 64` of word `i / 64` is set if partition `i` exists. Bit 0 is always set.
    words: SmallVec<[u64; 1]>,
}

impl PartitionMap {
    /// A directory that was never split.
    pub fn whole(shards: ShardCount) -> PartitionMap {
        let mut words = smallvec![0; usize::from(shards.get()).div_ceil(64)];
        words[0] = 1;
        PartitionMap { shards, words }
    }

    /// `None` if the words are not a map for this number of shards: wrong length, bit 0 missing, a partition without
    /// the one it was split from, or a partition beyond the shards.
    pub fn from_words(shards: ShardCount, words: Vec<u64>) -> Option<PartitionMap> {
        let map = PartitionMap { shards, words: SmallVec::from_vec(words) };
        let count = usize::from(shards.get());
        let sound = map.words.len() == count.div_ceil(64)
            && map.words[0] & 1 == 1
            && (count >= 64 || map.words[0] >> count == 0)
            && map.iter().all(|index| map.has(index.cut_from()));
        sound.then_some(map)
    }

    pub fn words(&self) -> &[u64] {
        &self.words
    }

    pub fn shards(&self) -> ShardCount {
        self.shards
    }

    pub fn has(&self, index: PartitionIndex) -> bool {
        index.0 < self.shards.get() && self.words[usize::from(index.0 / 64)] >> (index.0 % 64) & 1 == 1
    }

    pub fn add(&mut self, index: PartitionIndex) {
        assert!(index.0 < self.shards.get(), "partition {} in a volume of {} shards", index.0, self.shards.get());
        self.words[usize::from(index.0 / 64)] |= 1 << (index.0 % 64);
    }

    /// Adds the partitions of `other`, a map of the same directory.
    pub fn merge(&mut self, other: &PartitionMap) {
        assert_eq!(self.shards, other.shards, "maps of different volumes");
        self.words.iter_mut().zip(&other.words).for_each(|(mine, theirs)| *mine |= theirs);
    }

    /// Existing partitions, by index.
    pub fn iter(&self) -> impl Iterator<Item = PartitionIndex> + '_ {
        (0..self.shards.get()).map(PartitionIndex).filter(|index| self.has(*index))
    }

    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    pub fn is_empty(&self) -> bool {
        false
    }

    /// How often the range of an existing partition has been halved, as far as this map knows.
    pub fn depth(&self, index: PartitionIndex) -> u8 {
        let mut depth = (16 - index.0.leading_zeros()) as u8;
        while depth < self.shards.depth_max() && self.has(index.upper_half(depth)) {
            depth += 1;
        }
        depth
    }

    /// The partition that holds `hash`, as far as this map knows.
    pub fn partition_of(&self, hash: NameHash) -> PartitionIndex {
        let mut index = PartitionIndex::holding(hash, self.shards.depth_max());
        while !self.has(index) {
            index = index.cut_from();
        }
        index
    }

    /// The shard that holds `hash` of a directory whose home is `home`, as far as this map knows.
    pub fn shard_of(&self, home: ShardId, hash: NameHash) -> ShardId {
        self.partition_of(hash).shard(home, self.shards)
    }
}

#[cfg(test)]
#[path = "partition/tests.rs"]
mod tests;
