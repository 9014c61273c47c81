//! The data of `varve info`: the location of an inode and its content.

use crate::locate::unexpected;
use crate::{FileSystem, Result};
use std::path::PathBuf;
use varve_proto::{Call, FileContent, Reply};
use varve_types::{AckLevel, Attributes, Credentials, FileKind, HashRange, InodeId, PartitionIndex, ShardId};

/// The location of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ContentLocation {
    /// In its row.
    Row,
    /// In a file of the store.
    BackingFile(PathBuf),
    /// No content: a directory, symlink or special file.
    Nowhere,
}

/// One partition of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PartitionInfo {
    pub index: PartitionIndex,
    pub shard: ShardId,
    pub range: HashRange,
    pub entries: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InodeInfo {
    pub inode: InodeId,
    pub attributes: Attributes,
    /// The shard of its row.
    pub shard: ShardId,
    /// Its attributes are in an inode row or directory row, not in an entry.
    pub by_inode: bool,
    pub place: ContentLocation,
    /// For a directory.
    pub partitions: Vec<PartitionInfo>,
    /// The acknowledgement level of its volume.
    pub ack: AckLevel,
}

impl FileSystem {
    fn ack_level(&self) -> AckLevel {
        self.core.config.store.ack_level()
    }

    /// The location of `inode`, its content and its names. Asks every shard that has a partition.
    pub async fn describe(&self, caller: &Credentials, inode: InodeId) -> Result<InodeInfo> {
        let attributes = self.attributes(caller, inode).await?.attributes;
        if attributes.kind == FileKind::Directory {
            return self.describe_directory(caller, inode, attributes).await;
        }
        let row = self.get_attributes(caller, inode).await?;
        let place = match row.content {
            FileContent::Inline { .. } => ContentLocation::Row,
            FileContent::Backing { .. } => {
                ContentLocation::BackingFile(self.core.config.store.backing_file(inode).into())
            }
            FileContent::None => ContentLocation::Nowhere,
        };
        let shard = self.core.row_shard(inode);
        Ok(InodeInfo {
            inode,
            attributes,
            shard,
            by_inode: row.by_inode,
            place,
            partitions: Vec::new(),
            ack: self.ack_level(),
        })
    }

    async fn describe_directory(
        &self,
        caller: &Credentials,
        inode: InodeId,
        attributes: Attributes,
    ) -> Result<InodeInfo> {
        let map = self.directory_reply(caller, inode).await?.map;
        let mut partitions = Vec::with_capacity(map.len());
        for index in map.iter() {
            let shard = index.shard(inode.shard(), self.core.settings.shards);
            let entries = match self.core.ask_shard(shard, Call::PartitionStatus { directory: inode.0 }).await? {
                Reply::Partition { entries, .. } => entries,
                other => return Err(unexpected("PartitionStatus", &other)),
            };
            partitions.push(PartitionInfo { index, shard, range: index.range(map.depth(index)), entries });
        }
        let shard = inode.shard();
        Ok(InodeInfo {
            inode,
            attributes,
            shard,
            by_inode: true,
            place: ContentLocation::Nowhere,
            partitions,
            ack: self.ack_level(),
        })
    }
}
