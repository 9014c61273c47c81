//! The stored representation of rows: separate types, so that the types in memory can change without changing bytes.
//! Fields are never reordered; a change raises [`super::codec::ROW_VERSION`].

mod nouns;
mod transactions;

pub(crate) use nouns::{EncodedBytes, StoredMap, Unsound, list};
pub(crate) use transactions::{StoredChange, StoredDecision, StoredIntent, StoredReplies, StoredReply, WrittenReplies};

use super::{
    BackingSize, Content, CounterRow, DirectoryRow, EntryBody, EntryRow, NodeRow, OrphanRow, PartitionRow,
    PartitionState,
};
use nouns::{RawBytes, StoredAttributes, StoredKind, StoredTime, to_mode};
use serde::{Deserialize, Serialize};
use varve_types::{InodeId, LayoutGeneration, PartitionIndex};

#[derive(Serialize, Deserialize)]
enum StoredState {
    Live,
    /// Never written; its number is not reused.
    Sealed,
    Incoming,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredPartition<'a> {
    index: u16,
    depth: u8,
    state: StoredState,
    mode: u16,
    uid: u32,
    gid: u32,
    entries: u64,
    subdirectories: u64,
    mtime: StoredTime,
    map: StoredMap<'a>,
}

impl<'a> From<&'a PartitionRow> for StoredPartition<'a> {
    fn from(row: &'a PartitionRow) -> StoredPartition<'a> {
        StoredPartition {
            index: row.index.0,
            depth: row.depth,
            state: match row.state {
                PartitionState::Live => StoredState::Live,
                PartitionState::Incoming => StoredState::Incoming,
            },
            mode: row.mode.bits(),
            uid: row.uid,
            gid: row.gid,
            entries: row.entries,
            subdirectories: row.subdirectories,
            mtime: row.mtime.into(),
            map: (&row.map).into(),
        }
    }
}

impl StoredPartition<'_> {
    pub(super) fn to_row(&self) -> Result<PartitionRow, Unsound> {
        let map = self.map.to_map()?;
        if self.depth > map.shards().depth_max() || u32::from(self.index) >> self.depth != 0 {
            return Err(format!("invalid partition {} of depth {}", self.index, self.depth));
        }
        Ok(PartitionRow {
            index: PartitionIndex(self.index),
            depth: self.depth,
            state: match self.state {
                StoredState::Live => PartitionState::Live,
                StoredState::Sealed => return Err("a partition in the unused state 1".into()),
                StoredState::Incoming => PartitionState::Incoming,
            },
            mode: to_mode(self.mode)?,
            uid: self.uid,
            gid: self.gid,
            entries: self.entries,
            subdirectories: self.subdirectories,
            mtime: self.mtime.to_time()?,
            map,
        })
    }
}

#[derive(Serialize, Deserialize)]
enum StoredContent<'a> {
    #[serde(borrow)]
    Inline(RawBytes<'a>),
    Backing(StoredBackingSize),
    #[serde(borrow)]
    Symlink(RawBytes<'a>),
    None,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum StoredBackingSize {
    Authoritative,
    /// Of unknown minimum size.
    Stale,
    Truncating(u64),
    StaleAtLeast(u64),
}

impl From<BackingSize> for StoredBackingSize {
    fn from(size: BackingSize) -> StoredBackingSize {
        match size {
            BackingSize::Authoritative => StoredBackingSize::Authoritative,
            BackingSize::Stale { at_least: 0 } => StoredBackingSize::Stale,
            BackingSize::Stale { at_least } => StoredBackingSize::StaleAtLeast(at_least),
            BackingSize::Truncating(size) => StoredBackingSize::Truncating(size),
        }
    }
}

impl From<StoredBackingSize> for BackingSize {
    fn from(size: StoredBackingSize) -> BackingSize {
        match size {
            StoredBackingSize::Authoritative => BackingSize::Authoritative,
            StoredBackingSize::Stale => BackingSize::Stale { at_least: 0 },
            StoredBackingSize::StaleAtLeast(at_least) => BackingSize::Stale { at_least },
            StoredBackingSize::Truncating(size) => BackingSize::Truncating(size),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredNode<'a> {
    attributes: StoredAttributes,
    #[serde(borrow)]
    content: StoredContent<'a>,
    generation: u32,
    #[serde(borrow, deserialize_with = "list")]
    xattrs: Vec<RawBytes<'a>>,
}

impl<'a> From<&'a NodeRow> for StoredNode<'a> {
    fn from(row: &'a NodeRow) -> StoredNode<'a> {
        StoredNode {
            attributes: (&row.attributes).into(),
            content: match &row.content {
                Content::Inline(bytes) => StoredContent::Inline(RawBytes(bytes)),
                Content::Backing(size) => StoredContent::Backing((*size).into()),
                Content::Symlink(target) => StoredContent::Symlink(RawBytes(target)),
                Content::None => StoredContent::None,
            },
            generation: row.generation.0,
            xattrs: row.xattrs.iter().map(|name| RawBytes(name)).collect(),
        }
    }
}

impl StoredNode<'_> {
    pub(super) fn to_row(&self) -> Result<NodeRow, Unsound> {
        Ok(NodeRow {
            attributes: self.attributes.to_attributes()?,
            content: match &self.content {
                StoredContent::Inline(bytes) => Content::Inline(bytes.to_bytes()),
                StoredContent::Backing(size) => Content::Backing((*size).into()),
                StoredContent::Symlink(target) => Content::Symlink(target.to_bytes()),
                StoredContent::None => Content::None,
            },
            generation: LayoutGeneration(self.generation),
            xattrs: self.xattrs.iter().map(|name| name.to_bytes()).collect(),
        })
    }
}

#[derive(Serialize, Deserialize)]
enum StoredBody<'a> {
    #[serde(borrow)]
    Node(StoredNode<'a>),
    Directory(StoredAttributes),
    Reference(StoredKind),
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredEntry<'a> {
    inode: u64,
    #[serde(borrow)]
    body: StoredBody<'a>,
}

impl<'a> From<&'a EntryRow> for StoredEntry<'a> {
    fn from(row: &'a EntryRow) -> StoredEntry<'a> {
        StoredEntry {
            inode: row.inode.0,
            body: match &row.body {
                EntryBody::Node(node) => StoredBody::Node(node.into()),
                EntryBody::Directory(attributes) => StoredBody::Directory(attributes.into()),
                EntryBody::Reference(kind) => StoredBody::Reference((*kind).into()),
            },
        }
    }
}

impl StoredEntry<'_> {
    pub(super) fn to_row(&self) -> Result<EntryRow, Unsound> {
        Ok(EntryRow {
            inode: InodeId(self.inode),
            body: match &self.body {
                StoredBody::Node(node) => EntryBody::Node(node.to_row()?),
                StoredBody::Directory(attributes) => EntryBody::Directory(attributes.to_attributes()?),
                StoredBody::Reference(kind) => EntryBody::Reference((*kind).into()),
            },
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredDirectory<'a> {
    parent: u64,
    mode: u16,
    uid: u32,
    gid: u32,
    atime: StoredTime,
    mtime: StoredTime,
    ctime: StoredTime,
    btime: StoredTime,
    map: StoredMap<'a>,
    #[serde(borrow, deserialize_with = "list")]
    xattrs: Vec<RawBytes<'a>>,
}

impl<'a> From<&'a DirectoryRow> for StoredDirectory<'a> {
    fn from(row: &'a DirectoryRow) -> StoredDirectory<'a> {
        StoredDirectory {
            parent: row.parent.0,
            mode: row.mode.bits(),
            uid: row.uid,
            gid: row.gid,
            atime: row.atime.into(),
            mtime: row.mtime.into(),
            ctime: row.ctime.into(),
            btime: row.btime.into(),
            map: (&row.map).into(),
            xattrs: row.xattrs.iter().map(|name| RawBytes(name)).collect(),
        }
    }
}

impl StoredDirectory<'_> {
    pub(super) fn to_row(&self) -> Result<DirectoryRow, Unsound> {
        Ok(DirectoryRow {
            parent: InodeId(self.parent),
            mode: to_mode(self.mode)?,
            uid: self.uid,
            gid: self.gid,
            atime: self.atime.to_time()?,
            mtime: self.mtime.to_time()?,
            ctime: self.ctime.to_time()?,
            btime: self.btime.to_time()?,
            map: self.map.to_map()?,
            xattrs: self.xattrs.iter().map(|name| name.to_bytes()).collect(),
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredOrphan {
    since: StoredTime,
}

impl From<&OrphanRow> for StoredOrphan {
    fn from(row: &OrphanRow) -> StoredOrphan {
        StoredOrphan { since: row.since.into() }
    }
}

impl StoredOrphan {
    pub(super) fn to_row(&self) -> Result<OrphanRow, Unsound> {
        Ok(OrphanRow { since: self.since.to_time()? })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredCounter {
    inodes_end: u64,
}

impl From<&CounterRow> for StoredCounter {
    fn from(row: &CounterRow) -> StoredCounter {
        StoredCounter { inodes_end: row.inodes_end }
    }
}

impl StoredCounter {
    pub(super) fn to_row(&self) -> CounterRow {
        CounterRow { inodes_end: self.inodes_end }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredDirectoryMoves {
    pub count: u64,
}
