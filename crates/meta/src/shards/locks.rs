//! Keys locked by an undecided cross-shard transaction: no other request sees or changes them.

use super::shard::ShardState;
use std::collections::HashMap;
use varve_env::key_hash::KeyHashing;
use varve_schema::{Change, Key, TransactionId};
use varve_types::InodeId;

/// The directory whose partition `change` affects.
pub(super) fn directory_of(change: &Change) -> Option<InodeId> {
    match change {
        Change::Put(Key::Entry(directory, _) | Key::Partition(directory, _), _)
        | Change::Delete(Key::Entry(directory, _) | Key::Partition(directory, _))
        | Change::Tally { directory, .. } => Some(*directory),
        _ => None,
    }
}

/// Whether `change` affects only the own rows of the directory or inode `inode`.
pub(super) fn is_about(change: &Change, inode: InodeId) -> bool {
    match change {
        Change::Put(key, _) | Change::Delete(key) => {
            matches!(key, Key::Directory(id) | Key::Inode(id) | Key::Partition(id, _) if *id == inode)
        }
        Change::Tally { .. } => false,
    }
}

/// Locks the keys of `changes` and keeps their partitions loaded and unsplit.
pub(super) fn lock(state: &mut ShardState, transaction: TransactionId, changes: &[Change]) {
    lock_keys(state, transaction, changes);
    for directory in changes.iter().filter_map(directory_of) {
        if let Some(partition) = state.partitions.get_mut(directory) {
            partition.pending_tallies += 1;
        }
    }
}

pub(super) fn lock_keys(state: &mut ShardState, transaction: TransactionId, changes: &[Change]) {
    for change in changes {
        if let Change::Put(key, _) | Change::Delete(key) = change {
            state.locks.insert(key.clone(), transaction);
        }
    }
}

pub(super) fn unlock(state: &mut ShardState, transaction: TransactionId, changes: &[Change]) {
    unlock_keys(state, transaction, changes);
    unpin(state, changes);
}

fn unlock_keys(state: &mut ShardState, transaction: TransactionId, changes: &[Change]) {
    for change in changes {
        // One lookup: the lock nearly always belongs to this transaction.
        if let Change::Put(key, _) | Change::Delete(key) = change
            && let Some((key, holder)) = state.locks.remove_entry(key)
            && holder != transaction
        {
            state.locks.insert(key, holder);
        }
    }
}

fn unpin(state: &mut ShardState, changes: &[Change]) {
    for directory in changes.iter().filter_map(directory_of) {
        if let Some(partition) = state.partitions.get_mut(directory) {
            partition.pending_tallies = partition.pending_tallies.saturating_sub(1);
        }
    }
}

/// Directories whose partitions are affected by undecided changes of an earlier epoch, with the number of changes for
/// each. They are collected before any partition is loaded. A partition that is loaded later is pinned as [`lock`] pins
/// it: removing it would break a change that is committed.
#[derive(Default)]
pub(super) struct ToPin(HashMap<InodeId, u32, KeyHashing>);

impl ToPin {
    pub fn add(&mut self, changes: &[Change]) {
        for directory in changes.iter().filter_map(directory_of) {
            *self.0.entry(directory).or_default() += 1;
        }
    }

    pub fn remove(&mut self, changes: &[Change]) {
        for directory in changes.iter().filter_map(directory_of) {
            if let Some(count) = self.0.get_mut(&directory) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&directory);
                }
            }
        }
    }

    pub fn count(&self, directory: InodeId) -> u32 {
        self.0.get(&directory).copied().unwrap_or(0)
    }
}
