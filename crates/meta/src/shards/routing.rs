//! Finds the shard that holds a row, as far as this shard knows: from a partition that it serves, else from the
//! directory's map, which is a hint.

use super::shard::{Shard, ShardState};
use varve_posix::KeyState;
use varve_schema::{Change, Key, PartitionRow, PartitionState, Row};
use varve_types::{InodeId, NameHash, PartitionIndex, PartitionMap, ShardId};

/// Limit on cached maps of split directories; one takes 8 bytes at 64 shards.
const MAPS_MAX: usize = 100_000;

impl Shard {
    pub(super) fn partition_of(&self, state: &ShardState, directory: InodeId, hash: NameHash) -> PartitionIndex {
        if let Some(partition) = state.partitions.get(directory)
            && partition.serves(hash)
        {
            return partition.index;
        }
        state.maps.get(&directory).map_or(PartitionIndex::FIRST, |map| map.partition_of(hash))
    }

    /// The shard that holds `key`, as far as this shard knows.
    pub(super) fn place(&self, state: &ShardState, key: &Key) -> ShardId {
        let shards = self.settings.shards;
        match key {
            Key::Partition(directory, index) => index.shard(directory.shard(), shards),
            Key::Entry(directory, name) => {
                self.partition_of(state, *directory, name.hash()).shard(directory.shard(), shards)
            }
            Key::Directory(inode) | Key::Inode(inode) | Key::Xattr(inode, _) | Key::Orphan(inode) => inode.shard(),
            Key::DirectoryMoves => InodeId::ROOT.shard(),
            Key::Garbage(_) | Key::Intent(_) | Key::Decision(_) | Key::Replies(_) | Key::Reply(..) | Key::Counter => {
                self.id
            }
        }
    }

    pub(super) fn place_of_change(&self, state: &ShardState, change: &Change) -> ShardId {
        match change {
            Change::Put(key, _) | Change::Delete(key) => self.place(state, key),
            Change::Tally { directory, name, .. } => {
                self.partition_of(state, *directory, name.hash()).shard(directory.shard(), self.settings.shards)
            }
        }
    }

    pub(super) fn is_here(&self, state: &ShardState, change: &Change) -> bool {
        self.place_of_change(state, change) == self.id
    }

    /// The index that a partition of `directory` has, or would have, in this shard.
    pub(super) fn index_here(&self, directory: InodeId) -> PartitionIndex {
        PartitionIndex::at(self.id, directory.shard(), self.settings.shards)
    }

    /// The live, loaded partition of `directory` here.
    pub(super) fn partition_here<'s>(&self, state: &'s ShardState, directory: InodeId) -> Option<&'s PartitionRow> {
        state.partitions.get(directory)?;
        match state.resident.seen(&Key::Partition(directory, self.index_here(directory))).0 {
            KeyState::Present(Row::Partition(row)) if row.state != PartitionState::Incoming => Some(row),
            _ => None,
        }
    }

    pub(super) fn learn_map(&self, state: &mut ShardState, directory: InodeId, map: &PartitionMap) {
        if map.len() == 1 {
            return;
        }
        if state.maps.len() >= MAPS_MAX
            && !state.maps.contains_key(&directory)
            && let Some(any) = state.maps.keys().next().copied()
        {
            state.maps.remove(&any);
        }
        state.maps.entry(directory).and_modify(|known| known.merge(map)).or_insert_with(|| map.clone());
    }
}
