//! Applies a decided change to the shard: to its resident rows, to its partitions and orphans, and to the open batch,
//! in one step, so that the next decision sees the whole change.

use super::names::{NameSet, PartitionNames};
use super::partitions::Partition;
use super::replies::SessionChange;
use super::shard::{Shard, ShardState};
use varve_schema::{Change, Key, ReplyRecord, Row};
use varve_types::{InodeId, Name, Timestamp};

impl Shard {
    /// Applies one change of this shard to the resident rows and to the open batch.
    pub(super) fn apply(&self, state: &mut ShardState, change: Change) {
        match change {
            Change::Put(key, row) => self.set_row(state, key, Some(row)),
            Change::Delete(key) => self.set_row(state, key, None),
            Change::Tally { directory, entries, subdirectories, at, .. } => {
                self.tally(state, directory, entries, subdirectories, at);
            }
        }
    }

    fn set_row(&self, state: &mut ShardState, key: Key, row: Option<Box<Row>>) {
        let number = state.open.number;
        match (&key, row.as_deref()) {
            (Key::Entry(directory, name), _) => return self.set_entry(state, *directory, name.clone(), row),
            (Key::Partition(directory, _), Some(Row::Partition(row))) => match state.partitions.get_mut(*directory) {
                Some(partition) => partition.follow(row),
                None => {
                    let mut partition = Partition::new(row, PartitionNames::Known(NameSet::default()));
                    partition.changed_in = number;
                    state.partitions.insert(*directory, partition);
                }
            },
            (Key::Partition(directory, _), None) => {
                state.partitions.remove(*directory);
                state.maps.remove(directory);
            }
            (Key::Orphan(inode), Some(_)) => {
                state.orphans.insert(*inode);
            }
            (Key::Orphan(inode), None) => {
                state.orphans.remove(inode);
            }
            (Key::Garbage(inode), Some(_)) => state.garbage.add(*inode),
            _ => {}
        }
        if let (Key::Partition(directory, _), Some(Row::Partition(partition))) = (&key, row.as_deref()) {
            let (directory, map) = (*directory, partition.map.clone());
            self.learn_map(state, directory, &map);
        }
        state.open.write(&key, row.as_deref());
        state.resident.set(key, row, number);
    }

    fn set_entry(&self, state: &mut ShardState, directory: InodeId, name: Name, row: Option<Box<Row>>) {
        let (number, hash, is_present) = (state.open.number, name.hash(), row.is_some());
        let mut partition = state.partitions.get_mut(directory);
        if let Some(split) = partition.as_mut().and_then(|partition| partition.split.as_mut()) {
            split.note(&name);
        }
        let key = Key::Entry(directory, name);
        state.open.write(&key, row.as_deref());
        let was_present = state.resident.set(key, row, number);
        let Some(partition) = partition else { return };
        partition.changed_in = number;
        partition.used = true;
        match (was_present, is_present) {
            (false, true) => partition.names.insert(hash),
            (true, false) => partition.names.remove(hash),
            // A replaced name comes with a tally.
            _ => return,
        }
        partition.names_changed(number);
    }

    fn tally(&self, state: &mut ShardState, directory: InodeId, entries: i64, subdirectories: i64, at: Timestamp) {
        let number = state.open.number;
        let key = Key::Partition(directory, self.index_here(directory));
        if let Some(Row::Partition(row)) = state.resident.row_mut(&key, number) {
            row.entries = row.entries.saturating_add_signed(entries);
            row.subdirectories = row.subdirectories.saturating_add_signed(subdirectories);
            row.mtime = row.mtime.max(at);
            if self.is_too_large(row) {
                state.split_wanted.push(directory);
            }
        }
        // Every change of a name sets the times of its directory, by a tally.
        if let Some(partition) = state.partitions.get_mut(directory) {
            partition.names_changed(number);
        }
        state.partitions.mark_dirty(directory, number);
    }

    /// Stores the reply to a change for retries of that change.
    pub(super) fn remember(&self, state: &mut ShardState, record: ReplyRecord) {
        if let Some(record) = state.replies.remember(record, state.open.number) {
            state.open.write_reply(record);
        }
    }

    /// Forgets the reply to the client's change `asked`, if there is one: a retry is decided anew.
    pub(super) fn take_back(&self, asked: Option<SessionChange>) {
        let state = &mut *self.state.borrow_mut();
        if let Some(key) = asked.and_then(|asked| state.replies.take_back(asked)) {
            state.open.write(&key, None);
        }
    }
}
