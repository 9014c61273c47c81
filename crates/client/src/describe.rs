//! What `varve info` shows: where an inode and its bytes are.

use crate::locate::unexpected;
use crate::{FileSystem, Result};
use std::path::PathBuf;
use varve_types::{Attributes, Credentials, FileKind, HashRange, InodeId, PartitionIndex, ShardId};
use varve_wire::{Call, FileContent, Reply};

/// Where the bytes of a file are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In its row.
    Row,
    /// In a file of the store.
    BackingFile(PathBuf),
    /// It has none: a directory, symlink or special file.
    Nowhere,
}

/// One partition of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionDescription {
    pub index: PartitionIndex,
    pub shard: ShardId,
    pub range: HashRange,
    pub entries: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    pub inode: InodeId,
    pub attributes: Attributes,
    /// The shard that holds its row.
    pub shard: ShardId,
    /// Its attributes are in an inode row or directory row, not in an entry.
    pub by_inode: bool,
    pub place: Place,
    /// Of a directory.
    pub partitions: Vec<PartitionDescription>,
}

impl FileSystem {
    /// Where `inode`, its bytes and its names are. Asks every shard that has a part.
    pub async fn describe(&self, caller: &Credentials, inode: InodeId) -> Result<Description> {
        let attributes = self.attributes(caller, inode).await?.attributes;
        if attributes.kind == FileKind::Directory {
            return self.describe_directory(caller, inode, attributes).await;
        }
        let row = self.get_attributes(caller, inode).await?;
        let place = match row.content {
            FileContent::Inline { .. } => Place::Row,
            FileContent::Backing { .. } => Place::BackingFile(self.core.config.store.backing_file(inode).into()),
            FileContent::None => Place::Nowhere,
        };
        let shard = self.core.row_shard(inode);
        Ok(Description { inode, attributes, shard, by_inode: row.by_inode, place, partitions: Vec::new() })
    }

    async fn describe_directory(
        &self,
        caller: &Credentials,
        inode: InodeId,
        attributes: Attributes,
    ) -> Result<Description> {
        let map = self.directory_reply(caller, inode).await?.map;
        let mut partitions = Vec::with_capacity(map.len());
        for index in map.iter() {
            let shard = index.shard(inode.shard(), self.core.settings.shards);
            let entries = match self.core.ask_shard(shard, Call::PartitionStatus { directory: inode.0 }).await? {
                Reply::Partition { entries, .. } => entries,
                other => return Err(unexpected("PartitionStatus", &other)),
            };
            partitions.push(PartitionDescription { index, shard, range: index.range(map.depth(index)), entries });
        }
        let shard = inode.shard();
        Ok(Description { inode, attributes, shard, by_inode: true, place: Place::Nowhere, partitions })
    }
}
