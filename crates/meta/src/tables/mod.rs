//! What is stored: keys and rows. The bytes are in [`codec`]; `formats/tables.md` describes them.

pub mod codec;
#[cfg(test)]
pub mod samples;
mod stored;

use bytes::Bytes;
use varve_types::{
    Attributes, Epoch, FileKind, InodeId, LayoutGeneration, Mode, Name, NameHash, PartitionIndex, PartitionMap,
    SessionId, ShardId, Timestamp,
};

/// The address of a row, unique in the volume. Its bytes sort so that the entries of a directory are one contiguous
/// range, ordered by hash.
///
/// Every key of a directory or file but `Entry` and `Garbage` says where its row lies: `Partition(directory, index)` at
/// `index.shard(directory.shard(), …)`, those of an inode at `inode.shard()`. An entry lies where the partition that
/// holds its name's hash does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Partition(InodeId, PartitionIndex),
    Entry(InodeId, Name),
    Directory(InodeId),
    Inode(InodeId),
    /// Names of xattrs are 1 to 255 bytes and may hold any byte but NUL.
    Xattr(InodeId, Bytes),
    Orphan(InodeId),
    /// A backing file that lost its file. Kept by the shard that took the last name away, whichever that is.
    Garbage(InodeId),
    Intent(TransactionId),
    /// The coordinator's decision.
    Decision(TransactionId),
    /// The answer given to the latest change of a session's slot.
    Reply(SessionId, u32),
    /// Answers given to the changes of one batch, as earlier builds kept them.
    Replies(u64),
    Counter,
}

/// What a key addresses, and so what its row is: the first byte of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Partition,
    Entry,
    Directory,
    Inode,
    Xattr,
    Orphan,
    Garbage,
    Intent,
    Decision,
    Replies,
    Counter,
}

impl Key {
    pub fn kind(&self) -> Kind {
        match self {
            Key::Partition(..) => Kind::Partition,
            Key::Entry(..) => Kind::Entry,
            Key::Directory(_) => Kind::Directory,
            Key::Inode(_) => Kind::Inode,
            Key::Xattr(..) => Kind::Xattr,
            Key::Orphan(_) => Kind::Orphan,
            Key::Garbage(_) => Kind::Garbage,
            Key::Intent(_) => Kind::Intent,
            Key::Decision(_) => Kind::Decision,
            Key::Reply(..) | Key::Replies(_) => Kind::Replies,
            Key::Counter => Kind::Counter,
        }
    }
}

/// A change over several shards: the coordinator's shard and epoch, and a count within them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TransactionId {
    pub coordinator: ShardId,
    pub epoch: Epoch,
    pub counter: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    Partition(PartitionRow),
    Entry(EntryRow),
    Directory(DirectoryRow),
    Inode(NodeRow),
    /// A value of at most 64 KiB.
    Xattr(Bytes),
    Orphan(OrphanRow),
    /// The backing file is to be removed. Written with the change that took the file's rows away, deleted when the
    /// backing file is gone for good.
    Garbage,
    Intent(IntentRow),
    Decision(DecisionRow),
    Replies(Vec<ReplyRecord>),
    Counter(CounterRow),
}

impl Row {
    /// Bytes of content or of a value in the row.
    pub fn content_bytes(&self) -> usize {
        let node = |node: &NodeRow| match &node.content {
            Content::Inline(data) | Content::Symlink(data) => data.len(),
            Content::Backing(_) | Content::None => 0,
        };
        match self {
            Row::Entry(EntryRow { body: EntryBody::Node(row), .. }) | Row::Inode(row) => node(row),
            Row::Xattr(value) => value.len(),
            _ => 0,
        }
    }

    pub fn kind(&self) -> Kind {
        match self {
            Row::Partition(_) => Kind::Partition,
            Row::Entry(_) => Kind::Entry,
            Row::Directory(_) => Kind::Directory,
            Row::Inode(_) => Kind::Inode,
            Row::Xattr(_) => Kind::Xattr,
            Row::Orphan(_) => Kind::Orphan,
            Row::Garbage => Kind::Garbage,
            Row::Intent(_) => Kind::Intent,
            Row::Decision(_) => Kind::Decision,
            Row::Replies(_) => Kind::Replies,
            Row::Counter(_) => Kind::Counter,
        }
    }
}

/// One row changed, or one tally of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Apart, for a row is some times as long as all else.
    Put(Key, Box<Row>),
    Delete(Key),
    /// Adds to the counts of the partition of `directory` that holds `name` and sets its mtime (never back). Kept apart
    /// from `Put`, so that creates in one directory by several-shard changes need not exclude each other.
    Tally {
        directory: InodeId,
        name: Name,
        entries: i64,
        subdirectories: i64,
        at: Timestamp,
    },
}

impl Change {
    pub fn put(key: Key, row: Row) -> Change {
        Change::Put(key, Box::new(row))
    }

    /// The key of a row that is put.
    pub fn put_key(&self) -> Option<&Key> {
        match self {
            Change::Put(key, _) => Some(key),
            Change::Delete(_) | Change::Tally { .. } => None,
        }
    }
}

/// A shard's part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRow {
    pub index: PartitionIndex,
    /// How often the hash space was halved to get this range.
    pub depth: u8,
    pub state: PartitionState,
    /// Copies of the directory's own, changed together with them, for access checks here.
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    /// Entries of this partition, subdirectories included.
    pub entries: u64,
    pub subdirectories: u64,
    /// Latest change of names in this partition since the directory's mtime was set: [`Timestamp::NEVER`] if there was none.
    pub mtime: Timestamp,
    /// Partitions that this one knows of. A hint, like a client's.
    pub map: PartitionMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionState {
    Live,
    /// A split's target before the source has committed: not served; recovery asks the source.
    Incoming,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    pub inode: InodeId,
    pub body: EntryBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryBody {
    /// The only name of a file without xattrs: everything is here.
    Node(NodeRow),
    /// A directory, with the attributes it was made with: should its directory row be lost, it is an empty directory.
    Directory(Attributes),
    /// A name of a file that has an inode row.
    Reference(FileKind),
}

/// A file: attributes and where its content is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    pub attributes: Attributes,
    pub content: Content,
    pub generation: LayoutGeneration,
    /// Names of the extended attributes, sorted; their values are `Xattr` rows. Empty in an entry: a file with xattrs
    /// has an inode row.
    pub xattrs: Vec<Bytes>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A regular file's bytes; their number is the attributes' size.
    Inline(Bytes),
    /// The store's file `data/<xx>/<inode>`.
    Backing(BackingSize),
    Symlink(Bytes),
    /// A fifo, socket or device.
    None,
}

/// Where the size of a backing file is to be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackingSize {
    /// The row's size and mtime are right.
    Authoritative,
    /// A writer has it open, or died with it open: the backing file's are. So many bytes it has, and has on disk: nobody
    /// cuts it further before this says so on disk.
    Stale { at_least: u64 },
    /// A truncate to this size is under way; it governs, and is done again by whoever finds it.
    Truncating(u64),
}

/// A directory's own row, at its home. Its counts and mtime are its partitions' (merged at stat).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRow {
    /// The directory it is in; the root is its own parent.
    pub parent: InodeId,
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    pub atime: Timestamp,
    /// Set by utimensat; shown unless names have changed since, as a partition says.
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// A hint: partition rows are the truth.
    pub map: PartitionMap,
    /// Names of the extended attributes, sorted; their values are `Xattr` rows.
    pub xattrs: Vec<Bytes>,
}

/// An inode without a name, kept while it is open somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanRow {
    pub since: Timestamp,
}

/// A participant's part of a several-shard change, fsynced before it votes. Its keys and those it rests on stay locked
/// until the coordinator has decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentRow {
    /// All participants, the coordinator included if it has a part.
    pub participants: Vec<ShardId>,
    /// What this shard changes, in order.
    pub changes: Vec<Change>,
    /// What the decision rests on in this shard: the rows were checked against these digests when the intent was
    /// written.
    pub reads: Vec<ReadRecord>,
    /// The answer to give to a retry, in the part of the shard that the call was sent to.
    pub reply: Option<ReplyRecord>,
}

/// A row that a several-shard change rests on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecord {
    pub key: Key,
    /// XXH3-64 of the row's bytes; `None`: the row was absent.
    pub digest: Option<u64>,
}

/// The coordinator's record that a several-shard change is committed, kept until every participant has applied its
/// part. Where there is none, the change is aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRow {
    /// Participants that may not have applied their part yet.
    pub participants: Vec<ShardId>,
}

/// The answer given to one change, so that a retry gets it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyRecord {
    pub session: SessionId,
    pub slot: u32,
    pub number: u64,
    /// Directory and name hash that the call was about: a split moves the record with them.
    pub about: Option<(InodeId, NameHash)>,
    /// The response as it goes on the wire.
    pub reply: Bytes,
}

/// Counters of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRow {
    /// Inode counters below this are used or leased to an epoch, and are never given again.
    pub inodes_end: u64,
}

/// How far the counter of a shard can be beyond any older version of it that is left, and beyond the ids that are in use.
/// Each block of 65,536 ids is a record of at least 100 bytes in the shard's log, beside those of what they were given to,
/// and all of that which is not in tables is in a server's memory: it is flushed long before there are the 2^22 records
/// of these. A shard has 2^48 ids, so they can be left out a thousand times.
const IDS_LOST_MAX: u64 = 1 << 38;

impl CounterRow {
    /// Ids begin beyond all that can have been given by a shard of which it is only known that it had given those below
    /// `known`.
    pub fn beyond(known: u64) -> CounterRow {
        CounterRow { inodes_end: known.saturating_add(IDS_LOST_MAX).min(InodeId::COUNTER_MAX) }
    }
}
