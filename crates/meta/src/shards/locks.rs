//! Keys that an undecided change over several shards has locked: nobody else sees or changes them.

use super::shard::State;
use crate::tables::{Change, Key, TransactionId};
use varve_types::InodeId;

/// The directory whose partition a change is about.
pub(super) fn directory_of(change: &Change) -> Option<InodeId> {
    match change {
        Change::Put(Key::Entry(directory, _) | Key::Partition(directory, _), _)
        | Change::Delete(Key::Entry(directory, _) | Key::Partition(directory, _))
        | Change::Tally { directory, .. } => Some(*directory),
        _ => None,
    }
}

/// Locks the keys of `changes`, and keeps their partitions loaded and in one piece.
pub(super) fn lock(state: &mut State, transaction: TransactionId, changes: &[Change]) {
    lock_keys(state, transaction, changes);
    for directory in changes.iter().filter_map(directory_of) {
        if let Some(partition) = state.partitions.get_mut(directory) {
            partition.pending_tallies += 1;
        }
    }
}

pub(super) fn lock_keys(state: &mut State, transaction: TransactionId, changes: &[Change]) {
    for change in changes {
        if let Change::Put(key, _) | Change::Delete(key) = change {
            state.locks.insert(key.clone(), transaction);
        }
    }
}

pub(super) fn unlock(state: &mut State, transaction: TransactionId, changes: &[Change]) {
    unlock_keys(state, transaction, changes);
    unpin(state, changes);
}

pub(super) fn unlock_keys(state: &mut State, transaction: TransactionId, changes: &[Change]) {
    for change in changes {
        if let Change::Put(key, _) | Change::Delete(key) = change
            && state.locks.get(key) == Some(&transaction)
        {
            state.locks.remove(key);
        }
    }
}

pub(super) fn unpin(state: &mut State, changes: &[Change]) {
    for directory in changes.iter().filter_map(directory_of) {
        if let Some(partition) = state.partitions.get_mut(directory) {
            partition.pending_tallies = partition.pending_tallies.saturating_sub(1);
        }
    }
}
