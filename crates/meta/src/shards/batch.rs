//! The open batch of a shard: what was decided since the last one was sent to the table.

use super::refusal::Refusal;
use super::resident::BatchNumber;
use crate::tables::{Key, ReplyRecord, Row, codec};
use bytes::Bytes;
use tokio::sync::oneshot;

/// One who must not answer before a batch is appended.
pub(super) type Waiter = oneshot::Sender<Result<(), Refusal>>;

pub(super) struct Batch {
    pub number: BatchNumber,
    /// Encoded keys and rows (`None`: deleted) in order; of two of one key the later holds.
    pub writes: Vec<(Bytes, Option<Bytes>)>,
    pub records: Vec<ReplyRecord>,
    pub waiters: Vec<Waiter>,
}

impl Batch {
    pub fn new(number: BatchNumber) -> Batch {
        Batch { number, writes: Vec::new(), records: Vec::new(), waiters: Vec::new() }
    }

    pub fn write(&mut self, key: &Key, row: Option<&Row>) {
        self.writes.push((codec::encode_key(key).into(), row.map(|row| codec::encode_row(row).into())));
    }

    pub fn is_empty(&self) -> bool {
        self.writes.is_empty() && self.records.is_empty() && self.waiters.is_empty()
    }
}
