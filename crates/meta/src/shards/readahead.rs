//! Reading ahead. Who takes the names of a directory in the order of a listing asks for one row after the other as they
//! stand in the table; so the next ones are read with the one that is asked for, more each time that it goes on.
//!
//! A scan costs as much as a few reads of single rows, so one is made only where three names that were read one after the
//! other were neighbours, or nearly: two may be by chance. Nobody waits for what is read ahead: whatever keeps it from being
//! read, the row that was asked for is read alone.

use super::refusal::ShardRefusal;
use super::shard::{Shard, ShardState};
use crate::tables::{Key, Row, codec};
use varve_types::{HashRange, InodeId, NameHash};

/// Rows read ahead at first, and at most. A row is read so in a few microseconds, during which its worker does nothing else.
const ROWS_FIRST: usize = 16;
const ROWS_MAX: usize = 256;
/// Their bytes: rows with inline content are long.
const BYTES_MAX: usize = 128 * 1024;

/// The next name is taken for a neighbour within so many times the distance that names have on average. Of all distances
/// one in three thousand is longer.
const NEAR: u64 = 8;

/// How a partition's names were read from the table lately.
#[derive(Default)]
pub(super) struct ReadOrder {
    /// The last one that was asked for, or read ahead.
    last: Option<NameHash>,
    /// How many of the last ones were each near the one before.
    near: u32,
    /// The reading ahead that goes on: its number, and where it begins.
    under_way: Option<(u64, NameHash)>,
}

impl ReadOrder {
    /// Whether a row with this hash may be among those that are being read ahead: what is decided of it meanwhile must stay
    /// resident, or what is read would hide it.
    pub fn is_being_read(&self, hash: NameHash) -> bool {
        self.under_way.is_some_and(|(_, from)| hash >= from)
    }

    /// How many rows are to be read ahead with `hash`, of a partition with so many entries.
    fn follow(&mut self, hash: NameHash, range: HashRange, entries: u64) -> usize {
        let distance = (range.last.0 - range.first.0) / entries.max(1);
        let near = |last: NameHash| last <= hash && hash.0 - last.0 <= distance.saturating_mul(NEAR);
        self.near = if self.last.is_some_and(near) { self.near.saturating_add(1) } else { 0 };
        self.last = Some(hash);
        match self.near {
            0 | 1 => 0,
            near => ROWS_MAX.min(ROWS_FIRST << (near - 2).min(ROWS_MAX.ilog2())),
        }
    }
}

/// A reading ahead under way.
pub(super) struct Readahead {
    directory: InodeId,
    range: HashRange,
    rows: usize,
    number: u64,
}

impl Shard {
    /// Whether rows after `key`, which is read now, are to be read with it.
    pub(super) fn begin_readahead(&self, state: &mut ShardState, key: &Key) -> Option<Readahead> {
        let Key::Entry(directory, name) = key else { return None };
        let row = self.partition_here(state, *directory)?;
        let (range, entries) = (row.index.range(row.depth), row.entries);
        let number = state.reads_ahead + 1;
        let order = &mut state.partitions.get_mut(*directory)?.order;
        if !range.contains(name.hash()) || order.under_way.is_some() {
            return None;
        }
        let rows = order.follow(name.hash(), range, entries);
        if rows == 0 {
            return None;
        }
        order.under_way = Some((number, name.hash()));
        state.reads_ahead = number;
        Some(Readahead { directory: *directory, range, rows, number })
    }

    /// The row of `key`, like [`Shard::read_table`], and makes those after it resident.
    pub(super) async fn run_readahead(&self, key: &Key, readahead: Readahead) -> Result<Option<Row>, ShardRefusal> {
        let mut others = Vec::new();
        let asked = self.scan_readahead(key, &readahead, &mut others).await;
        self.end_readahead(&mut self.state.borrow_mut(), &readahead, others);
        match asked {
            Some(row) => Ok(row),
            None => self.read_table(key).await,
        }
    }

    /// The row of `key`, if it could be read, and those after it as far as they can be.
    async fn scan_readahead(
        &self,
        key: &Key,
        readahead: &Readahead,
        others: &mut Vec<(Key, Row)>,
    ) -> Option<Option<Row>> {
        let end = codec::entries_of(readahead.directory, readahead.range).end;
        let mut cursor = self.table.scan(codec::encode_key(key).into(), end.into()).await.ok()?;
        let (mut asked, mut bytes) = (None, 0);
        while others.len() < readahead.rows && bytes < BYTES_MAX {
            let next = match cursor.next().await {
                Ok(Some((bytes_of_key, row))) => {
                    bytes += bytes_of_key.len() + row.len();
                    codec::decode(&bytes_of_key, &row).ok()
                }
                Ok(None) => return Some(asked.unwrap_or(None)),
                Err(_) => None,
            };
            match next {
                Some((found, row)) if found == *key => asked = Some(Some(row)),
                Some(other) => {
                    asked.get_or_insert(None);
                    others.push(other);
                }
                None => return asked,
            }
        }
        asked
    }

    fn end_readahead(&self, state: &mut ShardState, readahead: &Readahead, others: Vec<(Key, Row)>) {
        // A partition of this directory that was loaded since knows nothing of this reading, nor of what it missed.
        let partition = state.partitions.get_mut(readahead.directory);
        let of_this = |order: &ReadOrder| order.under_way.is_some_and(|(number, _)| number == readahead.number);
        let Some(partition) = partition.filter(|partition| of_this(&partition.order)) else { return };
        partition.order.under_way = None;
        state.fetched += others.len();
        for (key, row) in others {
            let Key::Entry(_, name) = &key else { continue };
            partition.order.last = Some(name.hash());
            // Names that a split has taken away meanwhile are another shard's.
            if partition.serves(name.hash()) {
                state.resident.take_readahead(key, row);
            }
        }
    }
}

#[cfg(test)]
#[path = "readahead/tests.rs"]
mod tests;
