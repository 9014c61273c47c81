//! Keys locked by undecided cross-shard transactions: no other request sees or changes them.

use super::partitions::Partitions;
use super::transaction_parts::directory_of;
use std::collections::HashMap;
use varve_env::key_hash::KeyHashing;
use varve_schema::{Change, Key, TransactionId};

#[derive(Default)]
pub(super) struct Locks(HashMap<Key, TransactionId, KeyHashing>);

impl Locks {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn holds(&self, key: &Key) -> bool {
        self.0.contains_key(key)
    }

    /// The transaction that has locked `key`.
    pub fn holder(&self, key: &Key) -> Option<TransactionId> {
        self.0.get(key).copied()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key, &TransactionId)> {
        self.0.iter()
    }

    /// Locks the keys of `changes` and keeps their partitions loaded and unsplit.
    pub fn lock(&mut self, partitions: &mut Partitions, transaction: TransactionId, changes: &[Change]) {
        self.lock_keys(transaction, changes);
        for directory in changes.iter().filter_map(directory_of) {
            if let Some(partition) = partitions.get_mut(directory) {
                partition.pending_tallies += 1;
            }
        }
    }

    pub fn lock_keys(&mut self, transaction: TransactionId, changes: &[Change]) {
        for change in changes {
            if let Change::Put(key, _) | Change::Delete(key) = change {
                self.0.insert(key.clone(), transaction);
            }
        }
    }

    pub fn unlock(&mut self, partitions: &mut Partitions, transaction: TransactionId, changes: &[Change]) {
        self.unlock_keys(transaction, changes);
        for directory in changes.iter().filter_map(directory_of) {
            if let Some(partition) = partitions.get_mut(directory) {
                partition.pending_tallies = partition.pending_tallies.saturating_sub(1);
            }
        }
    }

    fn unlock_keys(&mut self, transaction: TransactionId, changes: &[Change]) {
        for change in changes {
            // One lookup: the lock nearly always belongs to this transaction.
            if let Change::Put(key, _) | Change::Delete(key) = change
                && let Some((key, holder)) = self.0.remove_entry(key)
                && holder != transaction
            {
                self.0.insert(key, holder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::{Epoch, InodeId, ShardId};

    /// Promise: the end of a transaction frees its keys, and no key that another transaction has locked since.
    #[test]
    fn unlock_keeps_the_keys_of_other_transactions() {
        let [first, second] = [1, 2].map(|counter| TransactionId { coordinator: ShardId(0), epoch: Epoch(1), counter });
        let [own, taken] = [2, 3].map(|counter| Key::Inode(InodeId::new(ShardId(0), counter)));
        let changes = [&own, &taken].map(|key| Change::Delete(key.clone()));
        let mut locks = Locks::default();
        locks.lock_keys(first, &changes);
        locks.lock_keys(second, &changes[1..]);
        locks.unlock_keys(first, &changes);
        assert_eq!([locks.holder(&own), locks.holder(&taken)], [None, Some(second)]);
    }
}
