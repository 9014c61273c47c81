//! Calls about whole directories and their partitions.

use super::request_handler::{CompletedCall, RequestHandler};
use super::translate;
use crate::shards::{LeaseKey, Page, PageLimit, RequestAddress};
use varve_posix::{
    Context, Decision, DirectoryNode, Entry, GetDirectory, KeyState, List, MissingKeys, Refusal, Verb, View,
};
use varve_proto::{CallFailure, EntryReply, Listing, ListingEntry, NameListing, Reply, WireMap};
use varve_schema::{Key, PartitionRow, Row};
use varve_types::{Errno, InodeId, NameHash, PartitionIndex};

/// Maximum bytes of a listing. A frame has room for more even if the last entry is large.
const LISTING_BYTES_MAX: usize = 1024 * 1024;

impl RequestHandler<'_> {
    /// The directory as its home shard knows it.
    pub async fn get_directory(&self, directory: u64) -> Result<CompletedCall, CallFailure> {
        let directory = self.inode(directory)?;
        self.leased(directory, self.ask(&GetDirectory { directory }, RequestAddress::Inode(directory))).await
    }

    /// The directory with the totals of all partitions.
    pub async fn stat_directory(&self, directory: u64) -> Result<CompletedCall, CallFailure> {
        let directory = self.inode(directory)?;
        let whole = self.shard.directory_totals(&self.credentials, directory);
        self.leased(directory, async { whole.await.map_err(translate::failure) }).await
    }

    async fn leased(
        &self,
        directory: InodeId,
        asked: impl Future<Output = Result<DirectoryNode, CallFailure>>,
    ) -> Result<CompletedCall, CallFailure> {
        let key = LeaseKey::attributes(directory);
        let ticket = self.shard.leases().ticket(key);
        let found = asked.await?;
        let lease_ms = self.lease(key, ticket);
        Ok(Reply::Directory {
            node: translate::node(&found.node()),
            parent: found.row.parent.0,
            map: WireMap::from(&found.map),
            entries: found.counts.entries,
            subdirectories: found.counts.subdirectories,
            lease_ms,
        }
        .into())
    }

    pub async fn partition_status(&self, directory: u64) -> Result<CompletedCall, CallFailure> {
        let directory = self.inode(directory)?;
        let shards = self.worker.shared.settings.shards;
        let index = PartitionIndex::at(self.shard.id(), directory.shard(), shards);
        let address = RequestAddress::Name(directory, self.own_hash(directory));
        let row = self.ask(&PartitionStatus { directory, index }, address).await?;
        Ok(Reply::Partition {
            entries: row.entries,
            subdirectories: row.subdirectories,
            mtime: row.mtime.into(),
            ctime: row.mtime.into(),
        }
        .into())
    }

    pub async fn list(&self, directory: u64, from: u64, bytes_max: u32) -> Result<CompletedCall, CallFailure> {
        let page = self.page(directory, from, bytes_max.max(1), NODE_BYTES).await?;
        let mut children: Vec<ListingEntry> = page
            .entries
            .iter()
            .map(|(name, row)| ListingEntry {
                name: name.as_bytes().to_vec(),
                hash: name.hash().0,
                entry: translate::entry(&Entry::of(row)),
            })
            .collect();
        let nodes = children.iter_mut().filter_map(|child| match &mut child.entry {
            EntryReply::Node(node) => Some(node),
            EntryReply::Elsewhere { .. } => None,
        });
        self.fill_stale_size(nodes).await?;
        let next = page.next.map(|hash| hash.0);
        let (map, partition) = (WireMap::from(&page.map), translate::listed_partition(&page));
        Ok(Reply::Listing(Listing { children, next, map, partition }).into())
    }

    pub async fn list_names(&self, directory: u64, from: u64, bytes_max: u32) -> Result<CompletedCall, CallFailure> {
        let page = self.page(directory, from, bytes_max, NAME_BYTES).await?;
        let (next, map) = (page.next.map(|hash| hash.0), WireMap::from(&page.map));
        let partition = translate::listed_partition(&page);
        let names = page.entries.iter().map(|(name, row)| translate::name_entry(name, row)).collect();
        Ok(Reply::Names(NameListing { names, next, map, partition }).into())
    }

    /// Entries from the hash `from` on, which take `entry_bytes` each besides their names. With a `bytes_max` of 0 only
    /// the version of the names.
    async fn page(&self, directory: u64, from: u64, bytes_max: u32, entry_bytes: usize) -> Result<Page, CallFailure> {
        let directory = self.inode(directory)?;
        let from = NameHash(from.min(NameHash::LAST.0));
        self.ask(&List { directory, from }, RequestAddress::Name(directory, from)).await?;
        let bytes_max = (bytes_max as usize).min(LISTING_BYTES_MAX);
        let page = match bytes_max {
            0 => self.shard.names_version(directory, from).await,
            _ => self.shard.list(directory, from, PageLimit { bytes_max, entry_bytes }).await,
        };
        page.map_err(translate::failure)
    }
}

/// Size of an entry on the wire besides its name: the inode and the attributes with four times, rounded.
const NODE_BYTES: usize = 80;
/// Size of an entry without attributes on the wire besides its name: hash, inode, kind and a length.
const NAME_BYTES: usize = 20;

/// Reads a partition's row.
struct PartitionStatus {
    directory: InodeId,
    index: PartitionIndex,
}

impl PartitionStatus {
    fn key(&self) -> Key {
        Key::Partition(self.directory, self.index)
    }
}

impl Verb for PartitionStatus {
    type Outcome = PartitionRow;

    fn decide(&self, seen: &dyn View, _: &Context<'_>) -> Result<Decision<PartitionRow>, MissingKeys> {
        match seen.row(&self.key()) {
            KeyState::Unknown => Err(MissingKeys(vec![self.key()])),
            KeyState::Present(Row::Partition(row)) => Ok(Decision::Answer(row.clone())),
            KeyState::Present(_) | KeyState::Absent => Ok(Decision::Refuse(Refusal::Errno(Errno::ENOENT))),
        }
    }
}
