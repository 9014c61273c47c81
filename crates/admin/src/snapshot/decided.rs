//! Transactions over several shards that were in progress.

use super::{Puts, Snapshot, SnapshotRow, Unreadable};
use std::collections::{HashMap, HashSet};
use varve_schema::{Change, Key, Kind, PartitionRow, Row, TransactionId, codec};
use varve_types::{InodeId, PartitionIndex, ShardCount, ShardId, Timestamp};

/// The changes that decided intents make to the rows of one shard.
#[derive(Default)]
pub struct DecidedChanges {
    pub(crate) rows: Puts,
    /// By the key of the partition row, for rows that are not in `rows`.
    pub(crate) tallies: HashMap<Vec<u8>, PartitionTally>,
}

/// The increments of a partition's counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionTally {
    entries: i64,
    subdirectories: i64,
    at: Timestamp,
}

impl PartitionTally {
    pub(crate) fn apply(&self, row: &mut PartitionRow) {
        row.entries = row.entries.saturating_add_signed(self.entries);
        row.subdirectories = row.subdirectories.saturating_add_signed(self.subdirectories);
        row.mtime = row.mtime.max(self.at);
    }
}

/// A transaction that was in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unresolved {
    /// The shard that holds the row.
    pub shard: ShardId,
    pub transaction: TransactionId,
    pub what: UnresolvedKind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UnresolvedKind {
    Decision { participants: usize },
    Intent { committed: bool, changes: usize },
}

/// Reads decisions, then intents. Skips rows that cannot be decoded: the reader of that kind reports them.
///
/// A transaction is committed if its coordinator has decided so, or if the coordinator has its intent and each
/// participant has an intent too (`shards/transaction.rs`).
pub(super) async fn read(
    snapshot: &mut Snapshot<'_>,
    decided: &mut Vec<DecidedChanges>,
    unresolved: &mut Vec<Unresolved>,
) -> Result<(), Unreadable> {
    let shards = snapshot.shards();
    let mut committed = HashSet::new();
    for shard in shards.all() {
        let mut rows = snapshot.rows(shard, Kind::Decision).await?;
        while let Some(found) = rows.next().await? {
            let SnapshotRow::Row(Key::Decision(transaction), Row::Decision(row)) = found else { continue };
            committed.insert(transaction);
            let what = UnresolvedKind::Decision { participants: row.participants.len() };
            unresolved.push(Unresolved { shard, transaction, what });
        }
    }
    let mut intents = Vec::new();
    for shard in shards.all() {
        let mut rows = snapshot.rows(shard, Kind::Intent).await?;
        while let Some(found) = rows.next().await? {
            let SnapshotRow::Row(Key::Intent(transaction), Row::Intent(row)) = found else { continue };
            intents.push((shard, transaction, row));
        }
    }
    let stored: HashSet<(ShardId, TransactionId)> =
        intents.iter().map(|(shard, transaction, _)| (*shard, *transaction)).collect();
    for (shard, transaction, row) in &intents {
        let is_stored = |participant: &ShardId| stored.contains(&(*participant, *transaction));
        if transaction.coordinator == *shard && row.participants.iter().all(is_stored) {
            committed.insert(*transaction);
        }
    }
    decided.extend(shards.all().map(|_| DecidedChanges::default()));
    for (shard, transaction, row) in intents {
        let committed = committed.contains(&transaction);
        let what = UnresolvedKind::Intent { committed, changes: row.changes.len() };
        unresolved.push(Unresolved { shard, transaction, what });
        if committed {
            let here = &mut decided[usize::from(shard.0)];
            row.changes.into_iter().for_each(|change| here.note(shard, shards, change));
        }
    }
    Ok(())
}

impl DecidedChanges {
    fn note(&mut self, shard: ShardId, shards: ShardCount, change: Change) {
        match change {
            Change::Put(key, row) => {
                self.rows.insert(codec::encode_key(&key), Some(*row));
            }
            Change::Delete(key) => {
                self.rows.insert(codec::encode_key(&key), None);
            }
            Change::Tally { directory, entries, subdirectories, at, .. } => {
                let key = codec::encode_key(&partition_key(shard, shards, directory));
                let tally = PartitionTally { entries, subdirectories, at };
                if let Some(Some(Row::Partition(row))) = self.rows.get_mut(&key) {
                    return tally.apply(row);
                }
                let sum = self.tallies.entry(key).or_default();
                sum.entries += entries;
                sum.subdirectories += subdirectories;
                sum.at = sum.at.max(at);
            }
        }
    }
}

/// The one partition of `directory` that `shard` can hold.
fn partition_key(shard: ShardId, shards: ShardCount, directory: InodeId) -> Key {
    Key::Partition(directory, PartitionIndex::at(shard, directory.shard(), shards))
}
