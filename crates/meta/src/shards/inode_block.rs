//! Inode ids that a shard may allocate: those of its current block, and some borrowed from other shards.

use std::collections::HashMap;
use std::ops::Range;
use varve_env::key_hash::KeyHashing;
use varve_types::{InodeId, ShardId};

/// Ids recorded as used in one step. One fsync covers that many creates; a server crash loses at most that many ids, of
/// 2^48.
pub(super) const BLOCK: u64 = 65_536;

#[derive(Default)]
pub(super) struct InodeBlock {
    /// Counters that may be allocated.
    free: Range<u64>,
    /// Recorded end of the blocks taken so far.
    end: u64,
    taking: bool,
    /// Ids of other shards.
    borrowed: HashMap<ShardId, Range<u64>, KeyHashing>,
}

impl InodeBlock {
    /// `end`: the value recorded by earlier epochs.
    pub fn after(end: u64) -> InodeBlock {
        InodeBlock { free: end..end, end, ..InodeBlock::default() }
    }

    /// The first of `count` counters, if the block has that many left.
    pub fn allocate(&mut self, count: u64) -> Option<u64> {
        let first = self.free.start;
        if self.free.end - first < count {
            return None;
        }
        self.free.start += count;
        Some(first)
    }

    /// Whether the next block is being recorded.
    pub fn is_taking(&self) -> bool {
        self.taking
    }

    /// Begins to take the next block. Returns its end, to be recorded; `None`: no ids are left.
    pub fn begin_take(&mut self) -> Option<u64> {
        let end = self.end + BLOCK;
        if end > InodeId::COUNTER_MAX {
            return None;
        }
        self.taking = true;
        Some(end)
    }

    /// `recorded`: the end of the next block, if it is on disk.
    pub fn end_take(&mut self, recorded: Option<u64>) {
        self.taking = false;
        if let Some(end) = recorded {
            // The rest of the old block is adjacent to the new one.
            self.free.end = end;
            self.end = end;
        }
    }

    /// An id of another shard, if one is left.
    pub fn allocate_borrowed(&mut self, home: ShardId) -> Option<u64> {
        self.borrowed.get_mut(&home)?.next()
    }

    /// Replaces the ids borrowed from `home`.
    pub fn borrow_from(&mut self, home: ShardId, counters: Range<u64>) {
        self.borrowed.insert(home, counters);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a block that is not on disk is not used, and the rest of a block is used before the next one.
    #[test]
    fn unrecorded_block_is_not_allocated() {
        let mut block = InodeBlock::after(10);
        assert_eq!(block.allocate(1), None);
        let end = block.begin_take().unwrap();
        assert!(block.is_taking() && block.allocate(1).is_none());
        block.end_take(None);
        assert!(!block.is_taking() && block.allocate(1).is_none());
        assert_eq!(block.begin_take(), Some(end));
        block.end_take(Some(end));
        assert_eq!([block.allocate(BLOCK - 1), block.allocate(2), block.allocate(1)], [Some(10), None, Some(end - 1)]);
    }

    /// Promise: no id lies beyond the last counter.
    #[test]
    fn last_block_ends_at_the_last_counter() {
        assert_eq!(InodeBlock::after(InodeId::COUNTER_MAX - BLOCK).begin_take(), Some(InodeId::COUNTER_MAX));
        assert_eq!(InodeBlock::after(InodeId::COUNTER_MAX - BLOCK + 1).begin_take(), None);
    }
}
