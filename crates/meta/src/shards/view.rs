//! Rules for showing and changing rows: what a verb sees of its shard, and which changes must wait.

use super::foreign::Foreign;
use super::resident::BatchNumber;
use super::shard::{Shard, ShardState};
use std::cell::Cell;
use varve_posix::{KeyState, View};
use varve_schema::{Change, Key};
use varve_types::{InodeId, NameHash, PartitionIndex};

/// A verb's view: this shard's resident rows and the rows fetched from other shards.
pub(super) struct ShardView<'a> {
    pub shard: &'a Shard,
    pub state: &'a ShardState,
    pub foreign: &'a Foreign,
    /// The latest batch that holds a change of a row shown.
    pub newest: Cell<BatchNumber>,
}

impl View for ShardView<'_> {
    fn row(&self, key: &Key) -> KeyState<'_> {
        if self.shard.place(self.state, key) != self.shard.id {
            return self.foreign.seen(key);
        }
        let (seen, changed_in) = self.shard.seen_here(self.state, key);
        self.newest.set(self.newest.get().max(changed_in));
        seen
    }

    fn partition_of(&self, directory: InodeId, hash: NameHash) -> PartitionIndex {
        self.shard.partition_of(self.state, directory, hash)
    }
}

impl Shard {
    /// A row of this shard as it may be shown.
    pub(super) fn seen_here<'s>(&self, state: &'s ShardState, key: &Key) -> (KeyState<'s>, BatchNumber) {
        const UNKNOWN: (KeyState<'static>, BatchNumber) = (KeyState::Unknown, BatchNumber(0));
        if !state.locks.is_empty() && state.locks.holds(key) {
            return UNKNOWN;
        }
        match key {
            Key::Entry(directory, name) => {
                let Some(partition) = state.partitions.get(*directory) else { return UNKNOWN };
                if partition.holds_name(name) {
                    return UNKNOWN;
                }
                match state.resident.seen(key) {
                    UNKNOWN if !partition.names.may_hold(name.hash()) => (KeyState::Absent, partition.changed_in),
                    known => known,
                }
            }
            Key::Partition(directory, _) => match state.resident.seen(key) {
                (KeyState::Present(_), _) if state.partitions.get(*directory).is_none() => UNKNOWN,
                known => known,
            },
            _ => state.resident.seen(key),
        }
    }

    /// Whether an undecided cross-shard change or the final phase of a split hides a row of this shard.
    pub(super) fn is_hidden(&self, state: &ShardState, key: &Key) -> bool {
        let held = match key {
            Key::Entry(directory, name) => state.partitions.get(*directory).is_some_and(|p| p.holds_name(name)),
            _ => false,
        };
        held || state.locks.holds(key)
    }

    /// Whether `change` conflicts with an undecided cross-shard change, with the final phase of a split, or with an open
    /// that is being registered at another shard.
    pub(super) fn must_wait(&self, state: &ShardState, change: &Change) -> bool {
        match change {
            Change::Put(key, _) | Change::Delete(key) => {
                let partition = match key {
                    Key::Entry(directory, _) | Key::Partition(directory, _) => state.partitions.get(*directory),
                    _ => None,
                };
                let tallied = matches!(key, Key::Partition(..))
                    && partition.is_some_and(|p| p.pending_tallies > 0 || p.split.is_some());
                let held = matches!(key, Key::Entry(_, name) if partition.is_some_and(|p| p.holds_name(name)));
                state.locks.holds(key) || tallied || held || self.is_being_opened(state, key)
            }
            Change::Tally { directory, name, .. } => {
                state.locks.holds(&Key::Partition(*directory, self.index_here(*directory)))
                    || state.partitions.get(*directory).is_some_and(|p| p.holds_name(name))
            }
        }
    }
}
