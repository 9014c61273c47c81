//! Where a shard's rows are: in a table of its own, or, while the store takes no writes, as the last owner left them.

use super::table::{Cursor, Table, TableBatch, TableError, TableReader};
use bytes::Bytes;
use varve_types::{Epoch, Errno, ShardId};

pub(super) enum ShardRows {
    Own(Table),
    /// With what callers are told who want to write: why there is no owner.
    ReadOnly(Box<TableReader>, Errno),
}

impl ShardRows {
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        match self {
            ShardRows::Own(table) => table.get(key).await,
            ShardRows::ReadOnly(reader, _) => reader.get(key).await,
        }
    }

    pub async fn scan(&self, from: Bytes, end: Bytes) -> Result<Cursor, TableError> {
        match self {
            ShardRows::Own(table) => table.scan(from, end).await,
            ShardRows::ReadOnly(reader, _) => reader.scan(from, end).await,
        }
    }

    pub async fn write(&self, batch: &TableBatch) -> Result<(), TableError> {
        match self {
            ShardRows::Own(table) => table.write(batch).await,
            ShardRows::ReadOnly(reader, errno) => Err(TableError::ReadOnly { shard: reader.shard(), errno: *errno }),
        }
    }

    pub async fn sync(&self) -> Result<(), TableError> {
        match self {
            ShardRows::Own(table) => table.sync().await,
            ShardRows::ReadOnly(reader, errno) => Err(TableError::ReadOnly { shard: reader.shard(), errno: *errno }),
        }
    }

    /// Whether its log takes nothing more: only opening it again helps.
    pub fn has_ended(&self) -> bool {
        matches!(self, ShardRows::Own(table) if table.has_ended())
    }

    pub async fn close(&self) -> Result<(), TableError> {
        match self {
            ShardRows::Own(table) => table.close().await,
            ShardRows::ReadOnly(reader, _) => reader.close().await,
        }
    }

    /// Of the owner, or of the last one.
    pub fn epoch(&self) -> Epoch {
        match self {
            ShardRows::Own(table) => table.epoch(),
            ShardRows::ReadOnly(reader, _) => reader.epoch(),
        }
    }

    /// Of the last batch that was written, or that the table was opened with.
    pub fn last_sequence(&self) -> u64 {
        match self {
            ShardRows::Own(table) => table.last_sequence(),
            ShardRows::ReadOnly(..) => 0,
        }
    }

    /// Of the last batch that the table was opened with.
    pub fn found_sequence(&self) -> u64 {
        match self {
            ShardRows::Own(table) => table.found_sequence(),
            ShardRows::ReadOnly(..) => 0,
        }
    }

    /// Bytes of log of which it is not known whether they are on disk.
    pub fn unsaved_bytes(&self) -> u64 {
        match self {
            ShardRows::Own(table) => table.unsaved_bytes(),
            ShardRows::ReadOnly(..) => 0,
        }
    }

    pub fn unsynced_bytes(&self) -> u64 {
        match self {
            ShardRows::Own(table) => table.unsynced_bytes(),
            ShardRows::ReadOnly(..) => 0,
        }
    }
}

/// What is said of changes to a shard that is at rest.
pub(super) fn no_changes(shard: ShardId) -> String {
    format!("shard {shard} can only be read until its store takes writes again")
}
