//! Typed reads of a [`View`] that collect the missing keys.

use super::verb::{KeyState, MissingKeys, View};
use bytes::Bytes;
use std::cell::RefCell;
use varve_schema::{DirectoryRow, EntryRow, Key, NodeRow, OrphanRow, PartitionRow, Row};
use varve_types::{InodeId, Name, NameHash, PartitionIndex};

/// Reads rows for one verb. A read returns `None` while the row is unknown, and [`RowReader::into_missing`] then
/// includes the key. It returns `Some(None)` if the row does not exist.
pub(super) struct RowReader<'a> {
    seen: &'a dyn View,
    missing: RefCell<Vec<Key>>,
}

impl<'a> RowReader<'a> {
    pub(super) fn new(seen: &'a dyn View) -> RowReader<'a> {
        RowReader { seen, missing: RefCell::new(Vec::new()) }
    }

    pub(super) fn into_missing(self) -> MissingKeys {
        MissingKeys(self.missing.into_inner())
    }

    fn row(&self, key: Key) -> Option<Option<&'a Row>> {
        match self.seen.row(&key) {
            KeyState::Present(row) => {
                assert_eq!(row.kind(), key.kind(), "the row at {key:?} is of another kind");
                Some(Some(row))
            }
            KeyState::Absent => Some(None),
            KeyState::Unknown => {
                let mut missing = self.missing.borrow_mut();
                if !missing.contains(&key) {
                    missing.push(key);
                }
                None
            }
        }
    }

    pub(super) fn entry(&self, directory: InodeId, name: &Name) -> Option<Option<&'a EntryRow>> {
        let row = self.row(Key::Entry(directory, name.clone()))?;
        Some(row.map(|row| match row {
            Row::Entry(row) => row,
            other => wrong_kind(other),
        }))
    }

    /// The row of the partition that holds `name`.
    pub(super) fn partition_of(&self, directory: InodeId, name: &Name) -> Option<Option<&'a PartitionRow>> {
        self.partition_of_hash(directory, name.hash())
    }

    /// The row of the partition that holds `hash`.
    pub(super) fn partition_of_hash(&self, directory: InodeId, hash: NameHash) -> Option<Option<&'a PartitionRow>> {
        self.partition(directory, self.seen.partition_of(directory, hash))
    }

    pub(super) fn partition(&self, directory: InodeId, index: PartitionIndex) -> Option<Option<&'a PartitionRow>> {
        let row = self.row(Key::Partition(directory, index))?;
        Some(row.map(|row| match row {
            Row::Partition(row) => row,
            other => wrong_kind(other),
        }))
    }

    pub(super) fn directory(&self, inode: InodeId) -> Option<Option<&'a DirectoryRow>> {
        let row = self.row(Key::Directory(inode))?;
        Some(row.map(|row| match row {
            Row::Directory(row) => row,
            other => wrong_kind(other),
        }))
    }

    pub(super) fn inode(&self, inode: InodeId) -> Option<Option<&'a NodeRow>> {
        let row = self.row(Key::Inode(inode))?;
        Some(row.map(|row| match row {
            Row::Inode(row) => row,
            other => wrong_kind(other),
        }))
    }

    pub(super) fn orphan(&self, inode: InodeId) -> Option<Option<OrphanRow>> {
        let row = self.row(Key::Orphan(inode))?;
        Some(row.map(|row| match row {
            Row::Orphan(row) => *row,
            other => wrong_kind(other),
        }))
    }

    pub(super) fn xattr(&self, inode: InodeId, name: &Bytes) -> Option<Option<&'a Bytes>> {
        let row = self.row(Key::Xattr(inode, name.clone()))?;
        Some(row.map(|row| match row {
            Row::Xattr(value) => value,
            other => wrong_kind(other),
        }))
    }
}

fn wrong_kind(row: &Row) -> ! {
    unreachable!("a row of kind {:?} passed the check of its kind", row.kind())
}
