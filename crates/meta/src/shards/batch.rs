//! The open batch of a shard: what was decided since the last one was sent to the table.

use super::blocks::Blocks;
use super::refusal::Refusal;
use super::resident::BatchNumber;
use super::shard::Shard;
use super::table::TableBatch;
use crate::tables::{Key, ReplyRecord, Row, codec};
use bytes::Bytes;
use std::rc::Rc;

/// What is to be done when a batch is appended, or could not be.
pub type Waiter = Box<dyn FnOnce(&Rc<Shard>, Result<(), Refusal>)>;

/// Rows, and waiters, for which an idle shard keeps room in its open batch.
const KEPT_MAX: usize = 64;

pub(super) struct Batch {
    pub number: BatchNumber,
    /// Encoded keys and rows (`None`: deleted) in order; of two of one key the later holds.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
    pub waiters: Vec<Waiter>,
    blocks: Blocks,
}

impl Batch {
    pub fn first() -> Batch {
        Batch::empty(BatchNumber(1))
    }

    fn empty(number: BatchNumber) -> Batch {
        Batch { number, writes: Vec::new(), waiters: Vec::new(), blocks: Blocks::default() }
    }

    /// Closes this batch and begins the next one in its place.
    pub fn close(&mut self) -> Batch {
        let next = Batch::empty(BatchNumber(self.number.0 + 1));
        std::mem::replace(self, next)
    }

    /// The rows of a closed batch for the table, which nothing more is written to and whose waiters were taken. The memory that
    /// they lay in serves `open`, the batch after it.
    pub fn into_rows(mut self, open: &mut Batch) -> TableBatch {
        let mut rows = TableBatch::with_capacity(self.writes.len());
        for (key, row) in self.writes.drain(..) {
            match row {
                Some(row) => rows.put(key, row),
                None => rows.delete(key),
            }
        }
        if open.writes.is_empty() && self.writes.capacity() <= KEPT_MAX {
            open.writes = self.writes;
        }
        if open.waiters.is_empty() && self.waiters.capacity() <= KEPT_MAX {
            open.waiters = self.waiters;
        }
        open.blocks = self.blocks;
        rows
    }

    pub fn write(&mut self, key: &Key, row: Option<&Row>) {
        let key = self.blocks.lay(|out| codec::append_key(key, out));
        let row = row.map(|row| self.blocks.lay(|out| codec::append_row(row, out)));
        self.writes.push((key, row));
    }

    /// The answer to a change of this batch.
    pub fn write_reply(&mut self, record: &ReplyRecord) {
        let key = self.blocks.lay(|out| codec::append_key(&Key::Reply(record.session, record.slot), out));
        let row = self.blocks.lay(|out| codec::append_replies(std::slice::from_ref(record), out));
        self.writes.push((key, Some(row)));
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.waiters.is_empty()
    }
}
