//! A consistent snapshot of a volume's rows with all decided transactions applied: an intent whose coordinator has a
//! decision counts as applied, any other as aborted. So a reader sees the state that a server would serve after a crash
//! at the time of the snapshot.
//!
//! Rows come from a [`RowSource`]: the tables of a volume without a server ([`offline`]), or a server's snapshot.

mod decided;
pub mod offline;

pub use decided::{Unresolved, UnresolvedKind};

use async_trait::async_trait;
use bytes::Bytes;
use decided::DecidedChanges;
use std::collections::BTreeMap;
use std::collections::btree_map;
use std::iter::Peekable;
use std::ops::Range;
use std::vec;
use varve_schema::{Key, Kind, Row, codec};
use varve_types::{ShardCount, ShardId};

/// A shard whose rows cannot be read.
#[derive(Clone, Debug, thiserror::Error)]
#[error("shard {shard} cannot be read: {reason}")]
pub struct Unreadable {
    pub shard: ShardId,
    pub reason: String,
}

/// A source of rows: all of them as of one point in time.
#[async_trait(?Send)]
pub trait RowSource {
    fn shards(&self) -> ShardCount;

    /// Begins to read the rows of `shard` with keys in `range`, and ends the previous read.
    async fn begin(&mut self, shard: ShardId, range: Range<Vec<u8>>) -> Result<(), Unreadable>;

    /// The next rows, in the order of their keys; empty at the end.
    async fn page(&mut self) -> Result<Vec<(Bytes, Bytes)>, Unreadable>;
}

/// See the module documentation.
pub struct Snapshot<'a> {
    source: &'a mut dyn RowSource,
    /// Indexed by shard.
    decided: Vec<DecidedChanges>,
    unresolved: Vec<Unresolved>,
}

impl<'a> Snapshot<'a> {
    /// Reads the decided transactions. They are few: only those in progress at the time of the snapshot.
    pub async fn begin(source: &'a mut dyn RowSource) -> Result<Snapshot<'a>, Unreadable> {
        let shards = usize::from(source.shards().get());
        let decided = (0..shards).map(|_| DecidedChanges::default()).collect();
        let mut snapshot = Snapshot { source, decided, unresolved: Vec::new() };
        let (mut decided, mut unresolved) = (Vec::new(), Vec::new());
        decided::read(&mut snapshot, &mut decided, &mut unresolved).await?;
        (snapshot.decided, snapshot.unresolved) = (decided, unresolved);
        Ok(snapshot)
    }

    pub fn shards(&self) -> ShardCount {
        self.source.shards()
    }

    /// Intents and decisions that are still to be applied or dropped.
    pub fn unresolved(&self) -> &[Unresolved] {
        &self.unresolved
    }

    /// The changes that the decided transactions make to the rows of `shard`: `None` for a deleted row. Tallies are
    /// included.
    pub fn decided(&self, shard: ShardId) -> &DecidedChanges {
        &self.decided[usize::from(shard.0)]
    }

    /// All rows of `kind` in `shard`, in the order of their keys.
    pub async fn rows(&mut self, shard: ShardId, kind: Kind) -> Result<SnapshotRows<'_>, Unreadable> {
        let range = codec::keys_of(kind);
        let decided = &self.decided[usize::from(shard.0)];
        let puts = decided.rows.range(range.clone()).peekable();
        self.source.begin(shard, range).await?;
        Ok(SnapshotRows { source: &mut *self.source, puts, decided, page: Vec::new().into_iter(), ended: false })
    }
}

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotRow {
    Row(Key, Row),
    /// Bytes that are not a valid row of this version.
    Damaged {
        key: Bytes,
        row: Bytes,
        error: codec::DecodeError,
    },
}

/// Rows of one kind in one shard.
pub struct SnapshotRows<'a> {
    source: &'a mut dyn RowSource,
    puts: Peekable<btree_map::Range<'a, Vec<u8>, Option<Row>>>,
    decided: &'a DecidedChanges,
    page: vec::IntoIter<(Bytes, Bytes)>,
    ended: bool,
}

impl SnapshotRows<'_> {
    /// `None` at the end.
    pub async fn next(&mut self) -> Result<Option<SnapshotRow>, Unreadable> {
        loop {
            let stored = self.stored().await?;
            let put_is_first = match (&stored, self.puts.peek()) {
                (Some((key, _)), Some((put, _))) => put.as_slice() <= key.as_ref(),
                (None, Some(_)) => true,
                (_, None) => false,
            };
            if !put_is_first {
                self.page.next();
                return Ok(stored.map(|(key, row)| self.decode(key, row)));
            }
            let Some((put, row)) = self.puts.next() else { continue };
            if stored.is_some_and(|(key, _)| key.as_ref() == put.as_slice()) {
                self.page.next();
            }
            if let Some(row) = row {
                let key = codec::decode_key(put).expect("decided changes have whole keys");
                return Ok(Some(SnapshotRow::Row(key, row.clone())));
            }
        }
    }

    /// The source's next row, without consuming it.
    async fn stored(&mut self) -> Result<Option<(Bytes, Bytes)>, Unreadable> {
        if self.page.as_slice().is_empty() && !self.ended {
            self.page = self.source.page().await?.into_iter();
            self.ended = self.page.as_slice().is_empty();
        }
        Ok(self.page.as_slice().first().cloned())
    }

    fn decode(&self, key: Bytes, row: Bytes) -> SnapshotRow {
        match codec::decode(&key, &row) {
            Ok((parsed, mut row)) => {
                if let (Row::Partition(partition), Some(tally)) = (&mut row, self.decided.tallies.get(key.as_ref())) {
                    tally.apply(partition);
                }
                SnapshotRow::Row(parsed, row)
            }
            Err(error) => SnapshotRow::Damaged { key, row, error },
        }
    }
}

/// Rows by their encoded keys; `None`: deleted.
pub(crate) type Puts = BTreeMap<Vec<u8>, Option<Row>>;
