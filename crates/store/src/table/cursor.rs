//! A scan in progress.

use super::TableError;
use bytes::Bytes;
use slatedb::DbIterator;
use varve_types::ShardId;

/// Readahead of a scan in bytes: a few blocks, because most scans end soon.
pub(super) const SCAN_AHEAD_BYTES: usize = 64 * 1024;

/// Rows in key order, as of the begin of the scan. Owns its resources, so it may be kept across waits.
pub struct Cursor {
    shard: ShardId,
    /// `None`: the end was reached.
    rows: Option<DbIterator>,
}

impl Cursor {
    pub(super) fn new(shard: ShardId, rows: DbIterator) -> Cursor {
        Cursor { shard, rows: Some(rows) }
    }

    pub(super) fn empty(shard: ShardId) -> Cursor {
        Cursor { shard, rows: None }
    }

    /// The next key and row; `None` at the end, and on every later call. After an error the cursor is unusable.
    pub async fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, TableError> {
        let Some(rows) = &mut self.rows else { return Ok(None) };
        match rows.next().await {
            Ok(Some(row)) => Ok(Some((row.key, row.value))),
            Ok(None) => {
                // Frees its readahead buffer immediately.
                self.rows = None;
                Ok(None)
            }
            Err(error) => Err(TableError::new(self.shard, "scan", error, None)),
        }
    }
}
