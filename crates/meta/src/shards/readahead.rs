//! Readahead of rows. A client that takes the names of a directory in listing order requests one row after another in
//! table order. So a read of one row also reads the next ones, more each time the sequence continues.
//!
//! A scan costs as much as a few reads of single rows, so it runs only after three consecutively read names were
//! adjacent, or nearly: two may be by chance. No request waits for readahead: if it fails, the requested row is read
//! alone.

use super::refusal::ShardRefusal;
use super::shard::{Shard, ShardState};
use varve_schema::{Key, Row, codec};
use varve_types::{HashRange, InodeId};

/// Limit on their bytes: rows with inline content are long.
const BYTES_MAX: usize = 128 * 1024;

/// A readahead in progress.
pub(super) struct Readahead {
    directory: InodeId,
    range: HashRange,
    rows: usize,
    number: u64,
}

impl Shard {
    /// Returns a readahead if rows after `key`, which is read now, should be read with it.
    pub(super) fn begin_readahead(&self, state: &mut ShardState, key: &Key) -> Option<Readahead> {
        let Key::Entry(directory, name) = key else { return None };
        let row = self.partition_here(state, *directory)?;
        let (range, entries) = (row.index.range(row.depth), row.entries);
        let number = state.reads_ahead + 1;
        let rows = state.partitions.get_mut(*directory)?.order.begin(number, name.hash(), range, entries)?;
        state.reads_ahead = number;
        Some(Readahead { directory: *directory, range, rows, number })
    }

    /// Returns the row of `key`, like [`Shard::read_table`], and makes the rows after it resident.
    pub(super) async fn run_readahead(&self, key: &Key, readahead: Readahead) -> Result<Option<Row>, ShardRefusal> {
        let mut others = Vec::new();
        let asked = self.scan_readahead(key, &readahead, &mut others).await;
        self.end_readahead(&mut self.state.borrow_mut(), &readahead, others);
        match asked {
            Some(row) => Ok(row),
            None => self.read_table(key).await,
        }
    }

    /// Returns the row of `key`, if it could be read, and collects as many rows after it as could be read.
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
        // A partition of this directory loaded since then knows nothing of this readahead, nor of changes that it
        // missed.
        let Some(partition) = state.partitions.get_mut(readahead.directory) else { return };
        if !partition.order.end(readahead.number) {
            return;
        }
        state.fetched += others.len();
        for (key, row) in others {
            let Key::Entry(_, name) = &key else { continue };
            partition.order.note_read(name.hash());
            // Names that a split has moved in the meantime belong to another shard.
            if partition.serves(name.hash()) {
                state.resident.take_readahead(key, row);
            }
        }
    }
}

#[cfg(test)]
#[path = "readahead/tests.rs"]
mod tests;
