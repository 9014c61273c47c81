//! The open batch of a shard: changes decided since the last batch was sent to the table.

use super::refusal::ShardRefusal;
use super::resident::BatchNumber;
use tokio::sync::oneshot;
use varve_schema::{Key, ReplyRecord, Row, codec};
use varve_store::TableBatch;

/// Hears when a batch is appended, or that the append failed.
pub(super) type Waiter = oneshot::Sender<Result<(), ShardRefusal>>;

/// Capacity that an idle shard keeps for its next batch, for waiters and for bytes of rows.
const WAITERS_KEPT_MAX: usize = 64;
const BYTES_KEPT_MAX: usize = 32 * 1024;

pub(super) struct CommitBatch {
    pub number: BatchNumber,
    pub rows: TableBatch,
    pub waiters: Vec<Waiter>,
}

impl CommitBatch {
    pub fn first() -> CommitBatch {
        CommitBatch { number: BatchNumber(1), rows: TableBatch::default(), waiters: Vec::new() }
    }

    /// Closes this batch and begins the next one in its place.
    pub fn close(&mut self) -> CommitBatch {
        let next = CommitBatch { number: BatchNumber(self.number.0 + 1), ..CommitBatch::first() };
        std::mem::replace(self, next)
    }

    /// Reuses the memory of a sent batch and of its waiters for this batch, if this batch has none yet.
    pub fn reuse(&mut self, rows: TableBatch, waiters: Vec<Waiter>) {
        if self.rows.is_empty() {
            self.rows = rows.cleared(BYTES_KEPT_MAX);
        }
        if self.waiters.is_empty() && waiters.is_empty() && waiters.capacity() <= WAITERS_KEPT_MAX {
            self.waiters = waiters;
        }
    }

    pub fn write(&mut self, key: &Key, row: Option<&Row>) {
        let row = row.map(|row| |out: &mut Vec<u8>| codec::append_row(row, out));
        self.rows.write(|out| codec::append_key(key, out), row);
    }

    /// Adds the reply to a change of this batch.
    pub fn write_reply(&mut self, record: &ReplyRecord) {
        let key = Key::Reply(record.session, record.slot);
        let row = |out: &mut Vec<u8>| codec::append_replies(std::slice::from_ref(record), out);
        self.rows.write(|out| codec::append_key(&key, out), Some(row));
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.waiters.is_empty()
    }
}
