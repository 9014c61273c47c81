//! The source of a shard's rows: its own table or, while the store takes no writes, a read-only view of the last
//! owner's table.

use bytes::Bytes;
use varve_store::{Cursor, Table, TableBatch, TableError, TableReader};
use varve_types::{Epoch, Errno};

pub(super) enum ShardRows {
    Own(Table),
    /// Read-only, with the errno for callers that want to write: the reason why the shard has no owner.
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

    /// Whether the log takes no more writes. Only opening the shard again helps.
    pub fn has_ended(&self) -> bool {
        matches!(self, ShardRows::Own(table) if table.has_ended())
    }

    pub fn is_fenced(&self) -> bool {
        matches!(self, ShardRows::Own(table) if table.is_fenced())
    }

    pub async fn flush(&self) -> Result<(), TableError> {
        match self {
            ShardRows::Own(table) => table.flush_or_fail().await,
            ShardRows::ReadOnly(..) => Ok(()),
        }
    }

    pub async fn close_unflushed(&self) -> Result<(), TableError> {
        match self {
            ShardRows::Own(table) => table.close_unflushed().await,
            ShardRows::ReadOnly(reader, _) => reader.close().await,
        }
    }

    pub async fn close(&self) -> Result<(), TableError> {
        match self {
            ShardRows::Own(table) => table.close().await,
            ShardRows::ReadOnly(reader, _) => reader.close().await,
        }
    }

    /// The epoch of the owner; in a read-only view, of the last owner.
    pub fn epoch(&self) -> Epoch {
        match self {
            ShardRows::Own(table) => table.epoch(),
            ShardRows::ReadOnly(reader, _) => reader.epoch(),
        }
    }

    /// Sequence number of the last batch written, or of the last one found at open.
    pub fn last_sequence(&self) -> u64 {
        match self {
            ShardRows::Own(table) => table.last_sequence(),
            ShardRows::ReadOnly(..) => 0,
        }
    }

    /// Sequence number of the last batch found at open.
    pub fn found_sequence(&self) -> u64 {
        match self {
            ShardRows::Own(table) => table.found_sequence(),
            ShardRows::ReadOnly(..) => 0,
        }
    }

    /// Bytes of log that are not known to be on disk.
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
