//! The stored data: keys and rows. [`codec`] encodes them; `formats/tables.md` describes the bytes. [`peer`] is the
//! protocol in which shards exchange them.

pub mod codec;
pub mod peer;
pub mod samples;
mod stored;

use bytes::Bytes;
use varve_types::{
    Attributes, Epoch, FileKind, InodeId, LayoutGeneration, Mode, Name, NameHash, PartitionIndex, PartitionMap,
    SessionId, ShardId, Timestamp,
};

/// The address of a row, unique in the volume. Its encoding sorts so that the entries of a directory are one contiguous
/// range, ordered by hash.
///
/// Every key of a directory or file except `Entry` and `Garbage` determines the shard of its row:
/// `Partition(directory, index)` is at `index.shard(directory.shard(), …)`, the rows of an inode are at
/// `inode.shard()`. An entry is in the shard of the partition that holds its name's hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Partition(InodeId, PartitionIndex),
    Entry(InodeId, Name),
    Directory(InodeId),
    Inode(InodeId),
    /// Names of xattrs have 1 to 255 bytes and may contain any byte but NUL.
    Xattr(InodeId, Bytes),
    Orphan(InodeId),
    /// A backing file whose file was removed. The row is in the shard that removed the last name, whichever that is.
    Garbage(InodeId),
    Intent(TransactionId),
    /// The coordinator's decision.
    Decision(TransactionId),
    /// The reply to the latest change of a session's slot.
    Reply(SessionId, u32),
    /// Replies to the changes of one batch, in the format of earlier builds.
    Replies(u64),
    Counter,
    /// In the shard of the root directory.
    DirectoryMoves,
}

/// The kind of a key, which also determines the type of its row: the first byte of the key.
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
    DirectoryMoves,
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
            Key::DirectoryMoves => Kind::DirectoryMoves,
        }
    }
}

/// Identifies a transaction over several shards: the coordinator's shard and epoch, and a counter within them.
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
    /// The backing file is to be removed. Written with the change that removes the file's rows, deleted when the
    /// backing file is durably removed.
    Garbage,
    Intent(IntentRow),
    Decision(DecisionRow),
    Replies(Vec<ReplyRecord>),
    Counter(CounterRow),
    DirectoryMoves(DirectoryMovesRow),
}

impl Row {
    /// Bytes of inline content, symlink target or xattr value in the row.
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
            Row::DirectoryMoves(_) => Kind::DirectoryMoves,
        }
    }
}

/// The change of one row, or one tally of a partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Boxed, because a row is several times as large as the other variants.
    Put(Key, Box<Row>),
    Delete(Key),
    /// Adds to the counts of the partition of `directory` that holds `name` and sets its mtime (never back). Separate
    /// from `Put`, so that transactions that create names in one directory need not exclude each other.
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

    /// The key of a `Put` or `Delete`.
    pub fn key(&self) -> Option<&Key> {
        match self {
            Change::Put(key, _) | Change::Delete(key) => Some(key),
            Change::Tally { .. } => None,
        }
    }

    /// The key of a `Put`.
    pub fn put_key(&self) -> Option<&Key> {
        match self {
            Change::Put(key, _) => Some(key),
            Change::Delete(_) | Change::Tally { .. } => None,
        }
    }
}

/// One partition of a directory, stored in its shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionRow {
    pub index: PartitionIndex,
    /// How often the hash space was halved to get this range.
    pub depth: u8,
    pub state: PartitionState,
    /// Copies of the directory's own values, for access checks here. They change together with those.
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    /// Entries of this partition, subdirectories included.
    pub entries: u64,
    pub subdirectories: u64,
    /// Latest change of names in this partition since the directory's mtime was set; [`Timestamp::NEVER`] if there was
    /// none.
    pub mtime: Timestamp,
    /// Partitions that this one knows of. A hint, like a client's map.
    pub map: PartitionMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionState {
    Live,
    /// A split's target before the source has committed: not served. Recovery asks the source.
    Incoming,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntryRow {
    pub inode: InodeId,
    pub body: EntryBody,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EntryBody {
    /// The only name of a file without xattrs: the entry contains the whole row.
    Node(NodeRow),
    /// A directory, with its attributes at creation. If its directory row is lost, it becomes an empty directory with
    /// these.
    Directory(Attributes),
    /// A name of a file that has an inode row.
    Reference(FileKind),
}

/// A file: its attributes and the location of its content.
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

/// The authoritative source of a backing file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BackingSize {
    /// The row's size and mtime are valid.
    Authoritative,
    /// A writer has the file open, or crashed with it open: the backing file's size and mtime are valid. The file has
    /// at least this many bytes on disk. Nothing truncates it further before this row has a smaller `at_least` on disk.
    Stale { at_least: u64 },
    /// A truncation to this size is in progress. This size is valid, and a reader of this row repeats the truncation.
    Truncating(u64),
}

/// A directory's own row, at its home. Counts and mtime are in its partitions and merged at stat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRow {
    /// The parent directory; the root is its own parent.
    pub parent: InodeId,
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    pub atime: Timestamp,
    /// Set by utimensat; valid unless a partition has a later change of names.
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// A hint: partition rows are authoritative.
    pub map: PartitionMap,
    /// Names of the extended attributes, sorted; their values are `Xattr` rows.
    pub xattrs: Vec<Bytes>,
}

/// An inode without a name, kept while it is open somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanRow {
    /// When the inode lost its last name. [`Timestamp::NEVER`]: it never had one (O_TMPFILE), and link(2) may give it
    /// one.
    pub since: Timestamp,
}

/// One shard's part of a transaction over several shards. Its keys stay locked until the transaction is decided.
///
/// A part is fsynced before the shard votes. The coordinator stores a part too. The transaction is committed if every
/// part is stored. A participant that has applied its part keeps the row without changes until the coordinator has
/// settled the transaction.
///
/// The removal of a directory differs: it is committed if the coordinator has a [`DecisionRow`] and only then. The
/// coordinator stores no part, the other parts are appended before the vote, and an applied part is deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntentRow {
    /// The shards that the transaction changes, without the coordinator; none in a part of a removal. (Earlier builds
    /// included the coordinator if it had changes.)
    pub participants: Vec<ShardId>,
    /// The changes in this shard, in order.
    pub changes: Vec<Change>,
    /// The rows in this shard that the decision depends on: they were checked against these digests when the intent was
    /// written.
    pub reads: Vec<ReadRecord>,
    /// The reply for a retry, in the coordinator's part.
    pub reply: Option<ReplyRecord>,
}

impl IntentRow {
    /// Whether this is a part of the removal of a directory.
    pub fn is_of_removal(&self) -> bool {
        self.participants.is_empty()
    }
}

/// A row that a transaction over several shards depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadRecord {
    pub key: Key,
    /// XXH3-64 of the row's bytes; `None`: the row was absent.
    pub digest: Option<u64>,
}

/// The coordinator's record that a transaction over several shards is committed, kept until every participant has
/// applied its part on stable storage. If the coordinator has neither this row nor its own part, the transaction is
/// aborted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecisionRow {
    /// The shards that may not have applied their part yet.
    pub participants: Vec<ShardId>,
}

/// The reply to one change, so that a retry gets it again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplyRecord {
    pub session: SessionId,
    pub slot: u32,
    pub number: u64,
    /// Directory and name hash of the call: a split moves the record together with them.
    pub about: Option<(InodeId, NameHash)>,
    /// The encoded response.
    pub reply: Bytes,
}

/// Serialises moves of directories between parents: each such transaction reads this row and increments the count, so
/// no two of them commit on the same ancestors. Without this, two concurrent moves could make a cycle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirectoryMovesRow {
    pub count: u64,
}

/// Counters of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterRow {
    /// Inode counters below this are used or leased to an epoch, and are never reused.
    pub inodes_end: u64,
}

/// How far the counter of a shard can be ahead of any remaining older version of it, and of the ids in use. Each block
/// of 65,536 ids is a record of at least 100 bytes in the shard's log, in addition to the records of the objects with
/// these ids. All records that are not in tables are in a server's memory, which is flushed long before it holds the
/// 2^22 block records that this limit corresponds to. A shard has 2^48 ids, so this many can be skipped a thousand
/// times.
const IDS_LOST_MAX: u64 = 1 << 38;

impl CounterRow {
    /// A counter beyond all ids that a shard can have assigned if it is only known to have assigned those below
    /// `known`.
    pub fn beyond(known: u64) -> CounterRow {
        CounterRow { inodes_end: known.saturating_add(IDS_LOST_MAX).min(InodeId::COUNTER_MAX) }
    }
}
