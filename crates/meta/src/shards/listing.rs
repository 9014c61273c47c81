//! Lists a directory: one partition at a time, in order of hash.
//!
//! A position is a hash, so it stays valid across splits: the shard that serves the hash's range continues from it. A
//! page ends between two hashes, so entries of equal hash are always in one page.

use super::execution::RequestAddress;
use super::partitions::{NamesVersion, Partition};
use super::refusal::ShardRefusal;
use super::shard::{Shard, ShardState};
use std::collections::HashSet;
use std::rc::Rc;
use varve_schema::codec;
use varve_schema::{EntryRow, Key, PartitionRow, Row, TransactionId};
use varve_types::{HashRange, InodeId, Name, NameHash, PartitionMap};

/// Limit on bytes of rows read for one page, whatever size was requested: rows with inline content are long, their
/// replies short.
const READ_BYTES_MAX: usize = 4 * 1024 * 1024;

/// The size of a page.
#[derive(Clone, Copy, Debug)]
pub struct PageLimit {
    pub bytes_max: usize,
    /// Bytes of an entry besides its name.
    pub entry_bytes: usize,
}

pub struct Page {
    pub entries: Vec<(Name, EntryRow)>,
    /// Where the next page begins; `None` at the end of the directory.
    pub next: Option<NameHash>,
    pub map: PartitionMap,
    /// The hashes of the partition.
    pub range: HashRange,
    /// `None` if the partition is not loaded.
    pub version: Option<NamesVersion>,
}

impl Shard {
    /// Lists the entries of `directory` in this shard's partition whose hashes are `from` or above, about as many
    /// bytes as `limit` says. The page includes everything acknowledged before the call.
    pub async fn list(
        self: &Rc<Self>,
        directory: InodeId,
        from: NameHash,
        limit: PageLimit,
    ) -> Result<Page, ShardRefusal> {
        let page = self.read_page(directory, from, limit).await?;
        // A scan sees rows as soon as they are appended. Where replies wait for the fsync, so must this one.
        let changed_in = self.state.borrow().partitions.get(directory).map(|partition| partition.changed_in);
        if let Some(batch) = changed_in {
            self.appended(batch).await?;
        }
        Ok(page)
    }

    async fn read_page(
        self: &Rc<Self>,
        directory: InodeId,
        from: NameHash,
        limit: PageLimit,
    ) -> Result<Page, ShardRefusal> {
        let mut page = self.names_version(directory, from).await?;
        let range = page.range;
        let bytes = codec::entries_of(directory, HashRange { first: from, last: range.last });
        let mut cursor = self.table.scan(bytes.start.into(), bytes.end.into()).await.map_err(|e| self.unreadable(e))?;
        // A split committed in the meantime may have removed rows before the scan began.
        let uncut = |row: &PartitionRow| row.index.range(row.depth) == range;
        if !self.partition_here(&self.state.borrow(), directory).is_some_and(uncut) {
            return Err(ShardRefusal::Busy);
        }
        let (mut read, mut listed) = (0, 0);
        while let Some((key, row)) = cursor.next().await.map_err(|e| self.unreadable(e))? {
            read += row.len();
            let (Key::Entry(_, name), Row::Entry(entry)) = self.decoded(&key, &row)? else {
                return Err(ShardRefusal::Failed(
                    format!("shard {}: a row among the names is not an entry: {key:?}", self.id).into(),
                ));
            };
            let hash = name.hash();
            let full = listed >= limit.bytes_max || read >= READ_BYTES_MAX;
            if full && page.entries.last().is_some_and(|(last, _)| last.hash() != hash) {
                page.next = Some(hash);
                return Ok(page);
            }
            listed += limit.entry_bytes + name.as_bytes().len();
            page.entries.push((name, entry));
        }
        page.next = (range.last < NameHash::LAST).then(|| NameHash(range.last.0 + 1));
        Ok(page)
    }

    /// The page before the first entry: its version includes every change of a name that was acknowledged before the
    /// call, and so does a scan that begins after it.
    pub async fn names_version(self: &Rc<Self>, directory: InodeId, from: NameHash) -> Result<Page, ShardRefusal> {
        self.check_address(RequestAddress::Name(directory, from)).await?;
        // A cross-shard change is acknowledged when it is decided, and its names change a little later. This call waits
        // for the changes found now, but not for later ones, because there may always be another.
        let by = |(key, by): (&Key, &TransactionId)| is_name_of(key, directory).then_some(*by);
        let found: HashSet<TransactionId> = self.state.borrow().locks.iter().filter_map(by).collect();
        let left = |state: &ShardState| state.locks.iter().filter_map(by).find(|by| found.contains(by));
        if !found.is_empty() && self.wait_while_locked(left).await? {
            self.check_address(RequestAddress::Name(directory, from)).await?;
        }
        let (page, changed_in) = {
            let state = self.state.borrow();
            let Some(row) = self.partition_here(&state, directory) else { return Err(ShardRefusal::Busy) };
            let partition = state.partitions.get(directory);
            let page = Page {
                entries: Vec::new(),
                next: Some(from),
                map: row.map.clone(),
                range: row.index.range(row.depth),
                version: partition.map(Partition::names_version),
            };
            (page, partition.map(|partition| partition.changed_in))
        };
        if let Some(batch) = changed_in {
            self.appended(batch).await?;
        }
        Ok(page)
    }
}

fn is_name_of(key: &Key, directory: InodeId) -> bool {
    matches!(key, Key::Entry(of, _) if *of == directory)
}
