//! A scan under way.

use super::TableError;
use bytes::Bytes;
use slatedb::DbIterator;
use varve_types::ShardId;

/// Rows in the order of their keys, as they were when the scan began. Owns what it needs: it may be kept across waits.
pub struct Cursor {
    shard: ShardId,
    /// `None`: there is nothing more to come.
    rows: Option<DbIterator>,
}

impl Cursor {
    pub(super) fn new(shard: ShardId, rows: DbIterator) -> Cursor {
        Cursor { shard, rows: Some(rows) }
    }

    pub(super) fn empty(shard: ShardId) -> Cursor {
        Cursor { shard, rows: None }
    }

    /// The next key and row; `None` at the end, and ever after. After an error the cursor is of no use.
    pub async fn next(&mut self) -> Result<Option<(Bytes, Bytes)>, TableError> {
        let Some(rows) = &mut self.rows else { return Ok(None) };
        match rows.next().await {
            Ok(Some(row)) => Ok(Some((row.key, row.value))),
            Ok(None) => {
                // What it read ahead is let go of at once.
                self.rows = None;
                Ok(None)
            }
            Err(error) => Err(TableError::new(self.shard, "scan", error, None)),
        }
    }
}
