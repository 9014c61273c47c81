//! What is stored: keys and rows. The bytes are in [`codec`]; `formats/tables.md` describes them.

use bytes::Bytes;
use varve_types::{
    Attributes, Epoch, FileKind, InodeId, LayoutGeneration, Mode, Name, PartitionIndex, PartitionMap, ShardId,
    Timestamp,
};

/// The address of a row. Its bytes sort so that the entries of a directory are one contiguous range, ordered by hash.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    Partition(InodeId),
    Entry(InodeId, Name),
    Directory(InodeId),
    Inode(InodeId),
    /// Names of xattrs are 1 to 255 bytes and may hold any byte but NUL.
    Xattr(InodeId, Bytes),
    Orphan(InodeId),
    Intent(TransactionId),
    /// The coordinator's decision.
    Decision(TransactionId),
    Replies(u64),
    Counter,
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
    Xattr(Bytes),
    Orphan(OrphanRow),
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
    /// Latest change of names in this partition.
    pub mtime: Timestamp,
    /// Partitions that this one knows of. A hint, like a client's.
    pub map: PartitionMap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PartitionState {
    Live,
    /// rmdir is under way: no new names. Undone by asking whether the directory's entry still stands.
    Sealed,
    /// A split's target before the source has committed: not served; recovery asks the source.
    Arriving,
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
    Settled,
    /// A writer has it open, or died with it open: the backing file's are.
    Unsettled,
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
    /// Set by utimensat; shown unless a partition's is later.
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    /// A hint: partition rows are the truth.
    pub map: PartitionMap,
    pub xattrs: u32,
}

/// An inode without a name, kept while it is open somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrphanRow {
    pub since: Timestamp,
}
