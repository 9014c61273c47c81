//! The parts of a cross-shard transaction, and what a change says about rows. Pure.

use super::refusal::ShardRefusal;
use std::collections::BTreeMap;
use varve_schema::codec;
use varve_schema::{Change, IntentRow, Key, PartitionRow, Row, TransactionId};
use varve_types::{InodeId, ShardId, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

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

/// The digest of a row, as far as a cross-shard decision depends on it. The counts and times of a partition row are
/// left out: tallies commute, and otherwise every create would conflict with every rename into its directory.
pub(super) fn digest(row: Option<&Row>) -> Option<u64> {
    let bytes = match row? {
        Row::Partition(partition) => codec::encode_row(&Row::Partition(PartitionRow {
            entries: 0,
            subdirectories: 0,
            mtime: Timestamp::default(),
            ..partition.clone()
        })),
        row => codec::encode_row(row),
    };
    Some(xxh3_64(&bytes))
}

/// Inodes that `changes` leave without a name because a session has them open. That session may have closed them since
/// the change was decided, before there was an orphan row.
pub(super) fn orphans_of(changes: &[Change]) -> Vec<InodeId> {
    let orphan = |change: &Change| match change {
        Change::Put(Key::Orphan(inode), _) => Some(*inode),
        _ => None,
    };
    changes.iter().filter_map(orphan).collect()
}

/// Whether the changes of other shards only delete rows of a removed directory.
pub(super) fn only_removes(parts: &BTreeMap<ShardId, IntentRow>) -> bool {
    let goes =
        |change: &Change| matches!(change, Change::Delete(Key::Directory(_) | Key::Partition(..) | Key::Xattr(..)));
    parts.values().all(|part| part.changes.iter().all(goes))
}

/// Rows of a directory that another shard has prepared for removal when it was asked for them.
pub struct PreparedRemoval {
    pub(super) transaction: TransactionId,
    pub(super) shard: ShardId,
    pub(super) keys: Vec<Key>,
}

impl PreparedRemoval {
    pub(super) fn holds(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Whether `changes` delete exactly these rows.
    pub(super) fn is_all_of(&self, changes: &[Change]) -> bool {
        let is_held = |change: &Change| matches!(change, Change::Delete(key) if self.holds(key));
        changes.len() == self.keys.len() && changes.iter().all(is_held)
    }
}

/// Why a transaction is not committed.
pub(super) enum NoVote {
    /// A shard has refused: it has no part of the transaction and never will have.
    Refused,
    /// Every shard may have stored its part.
    Unknown(ShardRefusal),
}

/// A cross-shard change with its coordinator's part locked.
pub(super) struct BegunTransaction {
    pub transaction: TransactionId,
    pub sorted: Sorted,
}

/// A decision sorted by shard.
pub(super) struct Sorted {
    /// The coordinator's changes.
    pub own: Vec<Change>,
    /// For each other shard, the rows to check and the changes.
    pub parts: BTreeMap<ShardId, IntentRow>,
    /// The shard that has already prepared its part, and every row of other shards that the decision depends on.
    pub holder: Option<ShardId>,
    /// For each other shard, files with rows there that the decision takes to be open nowhere.
    pub unopened: BTreeMap<ShardId, Vec<InodeId>>,
}
