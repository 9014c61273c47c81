//! The rows as they are stored: types made for the table, so that nouns can change without changing bytes. Fields are
//! never reordered; a change raises [`super::codec::ROW_VERSION`].

use super::codec;
use super::{
    BackingSize, Change, Content, CounterRow, DecisionRow, DirectoryRow, EntryBody, EntryRow, IntentRow, NodeRow,
    OrphanRow, PartitionRow, PartitionState, ReadRecord, ReplyRecord,
};
use bytes::Bytes;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use varve_types::{
    Attributes, FileKind, InodeId, LayoutGeneration, Mode, Name, NameHash, PartitionIndex, PartitionMap, SessionId,
    ShardCount, ShardId, Timestamp,
};

/// What a stored row holds that no row may.
type Unsound = String;

/// Bytes, length first.
#[derive(Clone, Copy)]
pub(super) struct Raw<'a>(&'a [u8]);

impl Serialize for Raw<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <&[u8]>::deserialize(deserializer).map(Raw)
    }
}

impl Raw<'_> {
    /// Copied, so that a row in memory does not hold on to the block it was read from.
    fn to_bytes(self) -> Bytes {
        Bytes::copy_from_slice(self.0)
    }
}

/// Seconds and nanoseconds.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct StoredTime(i64, u32);

impl From<Timestamp> for StoredTime {
    fn from(t: Timestamp) -> StoredTime {
        StoredTime(t.seconds, t.nanoseconds)
    }
}

impl StoredTime {
    fn to_time(self) -> Result<Timestamp, Unsound> {
        match self.1 {
            0..=999_999_999 => Ok(Timestamp { seconds: self.0, nanoseconds: self.1 }),
            more => Err(format!("a time with {more} nanoseconds")),
        }
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum StoredKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharDevice,
    BlockDevice,
}

impl From<FileKind> for StoredKind {
    fn from(kind: FileKind) -> StoredKind {
        match kind {
            FileKind::Regular => StoredKind::Regular,
            FileKind::Directory => StoredKind::Directory,
            FileKind::Symlink => StoredKind::Symlink,
            FileKind::Fifo => StoredKind::Fifo,
            FileKind::Socket => StoredKind::Socket,
            FileKind::CharDevice => StoredKind::CharDevice,
            FileKind::BlockDevice => StoredKind::BlockDevice,
        }
    }
}

impl From<StoredKind> for FileKind {
    fn from(kind: StoredKind) -> FileKind {
        match kind {
            StoredKind::Regular => FileKind::Regular,
            StoredKind::Directory => FileKind::Directory,
            StoredKind::Symlink => FileKind::Symlink,
            StoredKind::Fifo => FileKind::Fifo,
            StoredKind::Socket => FileKind::Socket,
            StoredKind::CharDevice => FileKind::CharDevice,
            StoredKind::BlockDevice => FileKind::BlockDevice,
        }
    }
}

fn to_mode(bits: u16) -> Result<Mode, Unsound> {
    if bits & !Mode::MASK == 0 { Ok(Mode(bits)) } else { Err(format!("a mode of {bits:o}")) }
}

#[derive(Serialize, Deserialize)]
struct StoredAttributes {
    kind: StoredKind,
    mode: u16,
    uid: u32,
    gid: u32,
    nlink: u32,
    size: u64,
    rdev: u32,
    atime: StoredTime,
    mtime: StoredTime,
    ctime: StoredTime,
    btime: StoredTime,
}

impl From<&Attributes> for StoredAttributes {
    fn from(a: &Attributes) -> StoredAttributes {
        StoredAttributes {
            kind: a.kind.into(),
            mode: a.mode.bits(),
            uid: a.uid,
            gid: a.gid,
            nlink: a.nlink,
            size: a.size,
            rdev: a.rdev,
            atime: a.atime.into(),
            mtime: a.mtime.into(),
            ctime: a.ctime.into(),
            btime: a.btime.into(),
        }
    }
}

impl StoredAttributes {
    fn to_attributes(&self) -> Result<Attributes, Unsound> {
        Ok(Attributes {
            kind: self.kind.into(),
            mode: to_mode(self.mode)?,
            uid: self.uid,
            gid: self.gid,
            nlink: self.nlink,
            size: self.size,
            rdev: self.rdev,
            atime: self.atime.to_time()?,
            mtime: self.mtime.to_time()?,
            ctime: self.ctime.to_time()?,
            btime: self.btime.to_time()?,
        })
    }
}

/// The volume's shard count and the map's words.
#[derive(Serialize, Deserialize)]
struct StoredMap(u16, Vec<u64>);

impl From<&PartitionMap> for StoredMap {
    fn from(map: &PartitionMap) -> StoredMap {
        StoredMap(map.shards().get(), map.words().to_vec())
    }
}

impl StoredMap {
    fn to_map(&self) -> Result<PartitionMap, Unsound> {
        ShardCount::new(self.0)
            .and_then(|shards| PartitionMap::from_words(shards, self.1.clone()))
            .ok_or_else(|| format!("a partition map of {} shards with the words {:x?}", self.0, self.1))
    }
}

#[derive(Serialize, Deserialize)]
enum StoredState {
    Live,
    Sealed,
    Arriving,
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredPartition {
    index: u16,
    depth: u8,
    state: StoredState,
    mode: u16,
    uid: u32,
    gid: u32,
    entries: u64,
    subdirectories: u64,
    mtime: StoredTime,
    map: StoredMap,
}

impl From<&PartitionRow> for StoredPartition {
    fn from(row: &PartitionRow) -> StoredPartition {
        StoredPartition {
            index: row.index.0,
            depth: row.depth,
            state: match row.state {
                PartitionState::Live => StoredState::Live,
                PartitionState::Sealed => StoredState::Sealed,
                PartitionState::Arriving => StoredState::Arriving,
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

impl StoredPartition {
    pub(super) fn to_row(&self) -> Result<PartitionRow, Unsound> {
        let map = self.map.to_map()?;
        if self.depth > map.shards().depth_max() || u32::from(self.index) >> self.depth != 0 {
            return Err(format!("partition {} of depth {}", self.index, self.depth));
        }
        Ok(PartitionRow {
            index: PartitionIndex(self.index),
            depth: self.depth,
            state: match self.state {
                StoredState::Live => PartitionState::Live,
                StoredState::Sealed => PartitionState::Sealed,
                StoredState::Arriving => PartitionState::Arriving,
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
    Inline(Raw<'a>),
    Backing(StoredBackingSize),
    #[serde(borrow)]
    Symlink(Raw<'a>),
    None,
}

#[derive(Serialize, Deserialize)]
enum StoredBackingSize {
    Settled,
    Unsettled,
    Truncating(u64),
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredNode<'a> {
    attributes: StoredAttributes,
    #[serde(borrow)]
    content: StoredContent<'a>,
    generation: u32,
    #[serde(borrow)]
    xattrs: Vec<Raw<'a>>,
}

impl<'a> From<&'a NodeRow> for StoredNode<'a> {
    fn from(row: &'a NodeRow) -> StoredNode<'a> {
        StoredNode {
            attributes: (&row.attributes).into(),
            content: match &row.content {
                Content::Inline(bytes) => StoredContent::Inline(Raw(bytes)),
                Content::Backing(BackingSize::Settled) => StoredContent::Backing(StoredBackingSize::Settled),
                Content::Backing(BackingSize::Unsettled) => StoredContent::Backing(StoredBackingSize::Unsettled),
                Content::Backing(BackingSize::Truncating(size)) => {
                    StoredContent::Backing(StoredBackingSize::Truncating(*size))
                }
                Content::Symlink(target) => StoredContent::Symlink(Raw(target)),
                Content::None => StoredContent::None,
            },
            generation: row.generation.0,
            xattrs: row.xattrs.iter().map(|name| Raw(name)).collect(),
        }
    }
}

impl StoredNode<'_> {
    pub(super) fn to_row(&self) -> Result<NodeRow, Unsound> {
        Ok(NodeRow {
            attributes: self.attributes.to_attributes()?,
            content: match &self.content {
                StoredContent::Inline(bytes) => Content::Inline(bytes.to_bytes()),
                StoredContent::Backing(StoredBackingSize::Settled) => Content::Backing(BackingSize::Settled),
                StoredContent::Backing(StoredBackingSize::Unsettled) => Content::Backing(BackingSize::Unsettled),
                StoredContent::Backing(StoredBackingSize::Truncating(size)) => {
                    Content::Backing(BackingSize::Truncating(*size))
                }
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
    map: StoredMap,
    #[serde(borrow)]
    xattrs: Vec<Raw<'a>>,
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
            xattrs: row.xattrs.iter().map(|name| Raw(name)).collect(),
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

/// Keys and rows inside an intent are the same bytes as in the table, so that they need no second description.
#[derive(Serialize, Deserialize)]
enum StoredChange {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    Tally { directory: u64, name: Vec<u8>, entries: i64, subdirectories: i64, at: StoredTime },
}

impl From<&Change> for StoredChange {
    fn from(change: &Change) -> StoredChange {
        match change {
            Change::Put(key, row) => StoredChange::Put(codec::encode_key(key), codec::encode_row(row)),
            Change::Delete(key) => StoredChange::Delete(codec::encode_key(key)),
            Change::Tally { directory, name, entries, subdirectories, at } => StoredChange::Tally {
                directory: directory.0,
                name: name.as_bytes().to_vec(),
                entries: *entries,
                subdirectories: *subdirectories,
                at: (*at).into(),
            },
        }
    }
}

impl StoredChange {
    fn to_change(&self) -> Result<Change, Unsound> {
        Ok(match self {
            StoredChange::Put(key, row) => {
                let key = codec::decode_key(key).map_err(|e| e.to_string())?;
                // An intent changes a volume's rows, never another intent; so decoding cannot nest without end.
                if key.kind() == super::Kind::Intent {
                    return Err("an intent within an intent".to_owned());
                }
                let row = codec::decode_row(key.kind(), row).map_err(|e| e.to_string())?;
                Change::Put(key, row)
            }
            StoredChange::Delete(key) => Change::Delete(codec::decode_key(key).map_err(|e| e.to_string())?),
            StoredChange::Tally { directory, name, entries, subdirectories, at } => Change::Tally {
                directory: InodeId(*directory),
                name: Name::new(name).map_err(|e| e.to_string())?,
                entries: *entries,
                subdirectories: *subdirectories,
                at: at.to_time()?,
            },
        })
    }
}

#[derive(Serialize, Deserialize)]
struct StoredRead(Vec<u8>, Option<u64>);

#[derive(Serialize, Deserialize)]
pub(super) struct StoredIntent<'a> {
    participants: Vec<u16>,
    changes: Vec<StoredChange>,
    reads: Vec<StoredRead>,
    #[serde(borrow)]
    reply: Option<StoredReply<'a>>,
}

impl<'a> From<&'a IntentRow> for StoredIntent<'a> {
    fn from(row: &'a IntentRow) -> StoredIntent<'a> {
        StoredIntent {
            participants: row.participants.iter().map(|shard| shard.0).collect(),
            changes: row.changes.iter().map(Into::into).collect(),
            reads: row.reads.iter().map(|read| StoredRead(codec::encode_key(&read.key), read.digest)).collect(),
            reply: row.reply.as_ref().map(Into::into),
        }
    }
}

impl StoredIntent<'_> {
    pub(super) fn to_row(&self) -> Result<IntentRow, Unsound> {
        Ok(IntentRow {
            participants: self.participants.iter().map(|shard| ShardId(*shard)).collect(),
            changes: self.changes.iter().map(StoredChange::to_change).collect::<Result<_, _>>()?,
            reads: self
                .reads
                .iter()
                .map(|StoredRead(key, digest)| {
                    let key = codec::decode_key(key).map_err(|e| e.to_string())?;
                    Ok(ReadRecord { key, digest: *digest })
                })
                .collect::<Result<_, Unsound>>()?,
            reply: self.reply.as_ref().map(StoredReply::to_record),
        })
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredDecision {
    participants: Vec<u16>,
}

impl From<&DecisionRow> for StoredDecision {
    fn from(row: &DecisionRow) -> StoredDecision {
        StoredDecision { participants: row.participants.iter().map(|shard| shard.0).collect() }
    }
}

impl StoredDecision {
    pub(super) fn to_row(&self) -> DecisionRow {
        DecisionRow { participants: self.participants.iter().map(|shard| ShardId(*shard)).collect() }
    }
}

#[derive(Serialize, Deserialize)]
struct StoredReply<'a> {
    session: u64,
    slot: u32,
    number: u64,
    about: Option<(u64, u64)>,
    #[serde(borrow)]
    reply: Raw<'a>,
}

impl<'a> From<&'a ReplyRecord> for StoredReply<'a> {
    fn from(record: &'a ReplyRecord) -> StoredReply<'a> {
        StoredReply {
            session: record.session.0,
            slot: record.slot,
            number: record.number,
            about: record.about.map(|(directory, hash)| (directory.0, hash.0)),
            reply: Raw(&record.reply),
        }
    }
}

impl StoredReply<'_> {
    fn to_record(&self) -> ReplyRecord {
        ReplyRecord {
            session: SessionId(self.session),
            slot: self.slot,
            number: self.number,
            about: self.about.map(|(directory, hash)| (InodeId(directory), NameHash(hash))),
            reply: self.reply.to_bytes(),
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct StoredReplies<'a>(#[serde(borrow)] Vec<StoredReply<'a>>);

impl<'a> From<&'a [ReplyRecord]> for StoredReplies<'a> {
    fn from(records: &'a [ReplyRecord]) -> StoredReplies<'a> {
        StoredReplies(records.iter().map(Into::into).collect())
    }
}

impl StoredReplies<'_> {
    pub(super) fn to_records(&self) -> Vec<ReplyRecord> {
        self.0.iter().map(StoredReply::to_record).collect()
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
