//! The open batch of a shard: what was decided since the last one was sent to the table.

use super::refusal::Refusal;
use super::resident::BatchNumber;
use super::shard::Shard;
use super::table::TableBatch;
use crate::tables::{Key, ReplyRecord, Row, codec};
use bytes::{Bytes, BytesMut};
use std::rc::Rc;

/// What is to be done when a batch is appended, or could not be.
pub type Waiter = Box<dyn FnOnce(&Rc<Shard>, Result<(), Refusal>)>;

/// Encoded rows lie side by side in blocks of this size, which live until the last of them is in a table: some hundred
/// rows share the cost of one allocation, and an idle shard holds no more than one block.
const BLOCK_BYTES: usize = 16 * 1024;

/// Rows for which an idle shard keeps room in its open batch.
const ROWS_KEPT_MAX: usize = 64;

pub(super) struct Batch {
    pub number: BatchNumber,
    /// Encoded keys and rows (`None`: deleted) in order; of two of one key the later holds.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
    pub records: Vec<ReplyRecord>,
    pub waiters: Vec<Waiter>,
    encoder: Encoder,
}

impl Batch {
    pub fn first() -> Batch {
        Batch::empty(BatchNumber(1))
    }

    fn empty(number: BatchNumber) -> Batch {
        Batch { number, writes: Vec::new(), records: Vec::new(), waiters: Vec::new(), encoder: Encoder::default() }
    }

    /// Closes this batch and begins the next one in its place.
    pub fn close(&mut self) -> Batch {
        let next = Batch::empty(BatchNumber(self.number.0 + 1));
        std::mem::replace(self, next)
    }

    /// The rows of a closed batch for the table, which nothing more is written to. The memory that they lay in serves `open`,
    /// the batch after it.
    pub fn into_rows(mut self, open: &mut Batch) -> TableBatch {
        let mut rows = TableBatch::with_capacity(self.writes.len());
        for (key, row) in self.writes.drain(..) {
            match row {
                Some(row) => rows.put(key, row),
                None => rows.delete(key),
            }
        }
        if open.writes.is_empty() && self.writes.capacity() <= ROWS_KEPT_MAX {
            open.writes = self.writes;
        }
        open.encoder = self.encoder;
        rows
    }

    pub fn write(&mut self, key: &Key, row: Option<&Row>) {
        let key = self.encoder.encode(|out| codec::append_key(key, out));
        let row = row.map(|row| self.encoder.encode(|out| codec::append_row(row, out)));
        self.writes.push((key, row));
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.records.is_empty() && self.waiters.is_empty()
    }
}

#[derive(Default)]
struct Encoder {
    scratch: Vec<u8>,
    block: BytesMut,
}

impl Encoder {
    fn encode(&mut self, append: impl FnOnce(&mut Vec<u8>)) -> Bytes {
        self.scratch.clear();
        append(&mut self.scratch);
        if self.scratch.len() > BLOCK_BYTES / 4 {
            return std::mem::take(&mut self.scratch).into();
        }
        if self.block.capacity() < self.scratch.len() {
            self.block = BytesMut::with_capacity(BLOCK_BYTES);
        }
        self.block.extend_from_slice(&self.scratch);
        self.block.split().freeze()
    }
}
