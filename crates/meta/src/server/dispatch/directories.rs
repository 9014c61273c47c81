//! Calls about directories as a whole and their partitions.

use super::super::leases::LeaseKey;
use super::case::{Answered, Case};
use super::translate;
use crate::namespace::{
    Context, Decision, DirectoryNode, Entry, GetDirectory, List, Missing, Refusal, Seen, Verb, View,
};
use crate::shards::Address;
use crate::tables::{Key, PartitionRow, Row};
use varve_types::{Errno, InodeId, NameHash, PartitionIndex};
use varve_wire::{Child, EntryReply, Failure, Listing, Reply, WireMap};

/// What a listing may ask for: it fits a frame with room to spare even where the last entry carries much.
const LISTING_BYTES_MAX: usize = 1024 * 1024;

impl Case<'_> {
    /// As the home knows it.
    pub async fn get_directory(&self, directory: u64) -> Result<Answered, Failure> {
        let directory = self.inode(directory)?;
        self.leased(directory, self.ask(&GetDirectory { directory }, Address::Inode(directory))).await
    }

    /// Of all partitions together.
    pub async fn stat_directory(&self, directory: u64) -> Result<Answered, Failure> {
        let directory = self.inode(directory)?;
        let whole = self.shard.whole_directory(&self.credentials, directory);
        self.leased(directory, async { whole.await.map_err(translate::failure) }).await
    }

    async fn leased(
        &self,
        directory: InodeId,
        asked: impl Future<Output = Result<DirectoryNode, Failure>>,
    ) -> Result<Answered, Failure> {
        let key = LeaseKey::attributes(directory);
        let leases = &self.worker.shared.leases;
        let ticket = leases.ticket(key);
        let found = asked.await?;
        let lease_ms = leases.grant(key, self.caller.session, ticket).as_millis() as u32;
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

    pub async fn partition_status(&self, directory: u64) -> Result<Answered, Failure> {
        let directory = self.inode(directory)?;
        let shards = self.worker.shared.settings.shards;
        let index = PartitionIndex::at(self.shard.id(), directory.shard(), shards);
        let address = Address::Name(directory, self.own_hash(directory));
        let row = self.ask(&PartitionStatus { directory, index }, address).await?;
        Ok(Reply::Partition {
            entries: row.entries,
            subdirectories: row.subdirectories,
            mtime: row.mtime.into(),
            ctime: row.mtime.into(),
        }
        .into())
    }

    pub async fn list(&self, directory: u64, from: u64, bytes_max: u32) -> Result<Answered, Failure> {
        let directory = self.inode(directory)?;
        let from = NameHash(from.min(NameHash::LAST.0));
        self.ask(&List { directory, from }, Address::Name(directory, from)).await?;
        let bytes_max = (bytes_max as usize).min(LISTING_BYTES_MAX);
        let page = self.shard.list(directory, from, bytes_max).await.map_err(translate::failure)?;
        let mut children: Vec<Child> = page
            .entries
            .iter()
            .map(|(name, row)| Child {
                name: name.as_bytes().to_vec(),
                hash: name.hash().0,
                entry: translate::entry(&Entry::of(row)),
            })
            .collect();
        let nodes = children.iter_mut().filter_map(|child| match &mut child.entry {
            EntryReply::Node(node) => Some(node),
            EntryReply::Elsewhere { .. } => None,
        });
        self.fill_unsettled(nodes).await?;
        let next = page.next.map(|hash| hash.0);
        Ok(Reply::Listing(Listing { children, next, map: WireMap::from(&page.map) }).into())
    }
}

/// A partition's row as it is.
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

    fn decide(&self, seen: &dyn View, _: &Context<'_>) -> Result<Decision<PartitionRow>, Missing> {
        match seen.row(&self.key()) {
            Seen::Unknown => Err(Missing(vec![self.key()])),
            Seen::Present(Row::Partition(row)) => Ok(Decision::Answer(row.clone())),
            Seen::Present(_) | Seen::Absent => Ok(Decision::Refuse(Refusal::Errno(Errno::ENOENT))),
        }
    }
}
