//! Where a shard's rows are: in a table of its own, or, while the store takes no writes, as the last owner left them.

use super::table::{Cursor, Table, TableBatch, TableError, TableReader};
use bytes::Bytes;
use varve_types::{Epoch, Errno, ShardId};

pub(super) enum Rows {
    Own(Table),
    /// With what callers are told who want to write: why there is no owner.
    AtRest(Box<TableReader>, Errno),
}

impl Rows {
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        match self {
            Rows::Own(table) => table.get(key).await,
            Rows::AtRest(reader, _) => reader.get(key).await,
        }
    }

    pub async fn scan(&self, from: Bytes, end: Bytes) -> Result<Cursor, TableError> {
        match self {
            Rows::Own(table) => table.scan(from, end).await,
            Rows::AtRest(reader, _) => reader.scan(from, end).await,
        }
    }

    pub async fn write(&self, batch: &TableBatch) -> Result<(), TableError> {
        match self {
            Rows::Own(table) => table.write(batch).await,
            Rows::AtRest(reader, errno) => Err(TableError::AtRest { shard: reader.shard(), errno: *errno }),
        }
    }

    pub async fn sync(&self) -> Result<(), TableError> {
        match self {
            Rows::Own(table) => table.sync().await,
            Rows::AtRest(reader, errno) => Err(TableError::AtRest { shard: reader.shard(), errno: *errno }),
        }
    }

    /// Whether its log takes nothing more: only opening it again helps.
    pub fn has_ended(&self) -> bool {
        matches!(self, Rows::Own(table) if table.has_ended())
    }

    pub async fn close(&self) -> Result<(), TableError> {
        match self {
            Rows::Own(table) => table.close().await,
            Rows::AtRest(reader, _) => reader.close().await,
        }
    }

    /// Of the owner, or of the last one.
    pub fn epoch(&self) -> Epoch {
        match self {
            Rows::Own(table) => table.epoch(),
            Rows::AtRest(reader, _) => reader.epoch(),
        }
    }

    /// Of the last batch that was written, or that the table was opened with.
    pub fn last_sequence(&self) -> u64 {
        match self {
            Rows::Own(table) => table.last_sequence(),
            Rows::AtRest(..) => 0,
        }
    }

    /// Of the last batch that the table was opened with.
    pub fn found_sequence(&self) -> u64 {
        match self {
            Rows::Own(table) => table.found_sequence(),
            Rows::AtRest(..) => 0,
        }
    }

    /// Bytes of log of which it is not known whether they are on disk.
    pub fn unsaved_bytes(&self) -> u64 {
        match self {
            Rows::Own(table) => table.unsaved_bytes(),
            Rows::AtRest(..) => 0,
        }
    }

    pub fn unsynced_bytes(&self) -> u64 {
        match self {
            Rows::Own(table) => table.unsynced_bytes(),
            Rows::AtRest(..) => 0,
        }
    }
}

/// What is said of changes to a shard that is at rest.
pub(super) fn no_changes(shard: ShardId) -> String {
    format!("shard {shard} can only be read until its store takes writes again")
}
