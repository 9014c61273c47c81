//! The calls of the metadata service, their replies and failures.
//!
//! A request goes to one shard, the one that holds what it is about: names to the shard of the parent's partition,
//! directories to their home, files to where their entry is (or, once they have an inode row, to the shard that made
//! the inode). A shard that does not hold it answers [`CallFailure::Moved`] or [`CallFailure::NotHere`], and the client
//! asks elsewhere.

use crate::nouns::{WireAttributes, WireCredentials, WireKind, WireMap, WireSetAttributes, WireTime};
use serde::{Deserialize, Serialize};

/// Names one change by one session, so that a retry gets the first answer. A slot carries one call at a time and
/// numbers them from 1; the server remembers each slot's latest answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CallId {
    pub session: u64,
    pub slot: u32,
    pub number: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    pub id: CallId,
    pub shard: u16,
    pub credentials: WireCredentials,
    /// Files of this shard that the session has closed for the last time since its last request to the shard.
    pub released: Vec<u64>,
    pub call: Call,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    pub id: CallId,
    pub result: Result<Reply, CallFailure>,
}

/// How a call finds a file's row: the inode it means, and the name under which the client last saw it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Locator {
    /// By its entry. Answered with `NotHere` unless that name still means that inode and its attributes are in the
    /// entry itself.
    Entry {
        parent: u64,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
        inode: u64,
    },
    /// By its inode row (or, for a directory, its directory row), at the shard that made the inode.
    Inode { inode: u64 },
}

/// What a create makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewNode {
    Regular,
    Symlink {
        #[serde(with = "crate::octets")]
        target: Vec<u8>,
    },
    Fifo,
    Socket,
    CharDevice {
        rdev: u32,
    },
    BlockDevice {
        rdev: u32,
    },
}

/// renameat2(2)'s flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RenameFlags {
    Replace,
    NoReplace,
    Exchange,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenMode {
    Read,
    Write,
    ReadWrite,
}

/// setxattr(2)'s flags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum XattrMode {
    CreateOrReplace,
    Create,
    Replace,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    // Names in a directory; to the shard of the name's partition.
    Lookup {
        parent: u64,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
    },
    /// Makes anything but a directory. `open`: the session holds the new file open, as after `Open`.
    Create {
        parent: u64,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
        node: NewNode,
        mode: u16,
        open: bool,
    },
    MakeDirectory {
        parent: u64,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
        mode: u16,
    },
    /// Gives the directory that `name` means its rows back, should they have been lost with power: it is empty then.
    ReviveDirectory {
        parent: u64,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
    },
    Unlink {
        parent: u64,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
    },
    RemoveDirectory {
        parent: u64,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
    },
    /// To the shard of the old name's partition.
    Rename {
        parent: u64,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
        new_parent: u64,
        #[serde(with = "crate::octets")]
        new_name: Vec<u8>,
        flags: RenameFlags,
    },
    /// A further name for the file `inode`, found by `source`; to the shard of the new name's partition.
    Link {
        source: Locator,
        inode: u64,
        parent: u64,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
    },
    /// Entries with hashes from `from` on, in order of hash, about `bytes_max` of them; entries of equal hash are
    /// never parted. To the shard of the partition that holds `from`.
    List {
        directory: u64,
        from: u64,
        bytes_max: u32,
    },

    // Directories; to their home.
    /// Attributes and partition map. Count and times are those of the home's own partition: `StatDirectory` has all.
    GetDirectory {
        directory: u64,
    },
    /// To each shard that holds a partition of the directory.
    PartitionStatus {
        directory: u64,
    },

    // Files and directories by what they are; to where their row is.
    GetAttributes {
        at: Locator,
    },
    SetAttributes {
        at: Locator,
        set: WireSetAttributes,
    },
    /// Registers the file as open in this session, checks access, and answers attributes and content.
    Open {
        at: Locator,
        mode: OpenMode,
        truncate: bool,
    },
    /// Replaces the content kept in the row, and raises the generation. Refused as `Stale` where `generation` is no longer the
    /// file's.
    WriteInline {
        at: Locator,
        generation: u32,
        #[serde(with = "crate::octets")]
        data: Vec<u8>,
        mtime: Option<WireTime>,
    },
    /// The backing file now holds the content, `size` bytes of it, and is fsynced: from here on it is the file's
    /// content. Raises the generation and marks the size as open (the backing file's) until `RecordSize`.
    Promote {
        at: Locator,
        generation: u32,
        size: u64,
    },
    /// A writer begins to change a backing file: its size and mtime are the backing file's until `RecordSize`. It may
    /// cut the file to `at_least` bytes, and not further before it asks again.
    MarkSizeStale {
        at: Locator,
        generation: u32,
        at_least: u64,
    },
    /// The writer has stopped: the size and mtime of the backing file, which has been fsynced since. Answered as stale
    /// where another session may have changed it: that one will settle it, or this one if it measures again.
    RecordSize {
        at: Locator,
        generation: u32,
        size: u64,
        mtime: WireTime,
    },
    ReadLink {
        at: Locator,
    },
    GetXattr {
        at: Locator,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
    },
    SetXattr {
        at: Locator,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
        #[serde(with = "crate::octets")]
        value: Vec<u8>,
        mode: XattrMode,
    },
    ListXattrs {
        at: Locator,
    },
    RemoveXattr {
        at: Locator,
        #[serde(with = "crate::octets")]
        name: Vec<u8>,
    },

    // The shard itself.
    /// Answered when everything that was acknowledged before is fsynced.
    Sync,
    /// Only carries `released`.
    Release,
    ShardStatus,
    /// Answered at once; measures the transport.
    Ping {
        #[serde(with = "crate::octets")]
        payload: Vec<u8>,
    },
    /// Holds this moment of all shards of the server under a number that the client chose at random; to any shard.
    TakeSnapshot {
        number: u64,
    },
    /// Rows of the shard at a moment that was taken, as they are stored: those with keys in `from..end`, about
    /// `bytes_max` of them. Refused with ESTALE where the moment is no longer held.
    ReadSnapshot {
        number: u64,
        #[serde(with = "crate::octets")]
        from: Vec<u8>,
        #[serde(with = "crate::octets")]
        end: Vec<u8>,
        bytes_max: u32,
    },
    ReleaseSnapshot {
        number: u64,
    },

    // What came later, so that the numbers of the others stay.
    /// So many bytes of a backing file that the session writes are fsynced. Answered without having been noted where
    /// another session may change the file too.
    RaiseSize {
        at: Locator,
        generation: u32,
        at_least: u64,
    },
    /// As `GetDirectory`, with the counts and times of all partitions together.
    StatDirectory {
        directory: u64,
    },
}

impl Call {
    /// Whether it changes rows of several shards as a rule, each of which writes to its own log: it takes several times as
    /// long. A directory's home is mostly another shard than its name's; a rename stays mostly within one.
    pub fn spans_shards(&self) -> bool {
        matches!(self, Call::MakeDirectory { .. } | Call::RemoveDirectory { .. })
    }
}

/// Where a file's bytes are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileContent {
    /// In the row. Present only in answers to `Open`; otherwise the bytes are left out.
    Inline {
        #[serde(with = "crate::octets::option")]
        data: Option<Vec<u8>>,
    },
    /// In the store's file `data/<xx>/<inode>`.
    Backing(SizeState),
    /// No bytes: a directory, symlink or special file.
    None,
}

/// What is known of a backing file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizeState {
    /// The row's size and mtime are right.
    Authoritative,
    /// Somebody writes the file, or has still to settle it: the backing file's are (the answer already carries them), and
    /// it has at least so many bytes.
    Stale { at_least: u64 },
    /// Likewise, and nobody is left who would settle it: who opens it does. Only in answers to `Open`.
    WriterGone { at_least: u64 },
}

/// A file or directory and its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReply {
    pub inode: u64,
    pub attributes: WireAttributes,
    pub content: FileContent,
    pub generation: u32,
    /// The attributes are in an inode row at the shard that made the inode, not in the entry; only such files have
    /// xattrs or several names.
    pub by_inode: bool,
}

/// What a name means.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryReply {
    /// A file whose attributes are in its entry.
    Node(NodeReply),
    /// A file with an inode row, or a directory: ask the shard that made the inode.
    Elsewhere { inode: u64, kind: WireKind },
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListingEntry {
    #[serde(with = "crate::octets")]
    pub name: Vec<u8>,
    pub hash: u64,
    pub entry: EntryReply,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub children: Vec<ListingEntry>,
    /// Where to go on; `None` when the directory is at its end.
    pub next: Option<u64>,
    pub map: WireMap,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    pub shard: u16,
    pub epoch: u64,
    pub partitions_loaded: u64,
    pub cache_bytes: u64,
    /// At the whole server.
    pub open_files: u64,
    pub log_bytes_unsynced: u64,
    pub intents: u64,
    pub orphans: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Done,
    /// To `Lookup` and `Link`. `lease_ms`: how long the name of a directory may be believed without asking; 0 for
    /// anything else.
    Entry {
        entry: EntryReply,
        lease_ms: u32,
    },
    /// To `Create`, `MakeDirectory`, `ReviveDirectory`, `GetAttributes`, `SetAttributes`, `Open`, `WriteInline`,
    /// `Promote`, `MarkSizeStale`, `RecordSize`, `RaiseSize`.
    Node(NodeReply),
    /// To `Unlink`, `RemoveDirectory` and `Rename`: the inode whose last name went, if one did, so that the client can drop
    /// what it keeps of it, and the new mtime and ctime of the directories that the change was in, unless those are
    /// later already.
    Removed {
        last_name_of: Option<u64>,
        at: WireTime,
    },
    Directory {
        node: NodeReply,
        parent: u64,
        map: WireMap,
        entries: u64,
        subdirectories: u64,
        lease_ms: u32,
    },
    Partition {
        entries: u64,
        subdirectories: u64,
        mtime: WireTime,
        ctime: WireTime,
    },
    Listing(Listing),
    Target(#[serde(with = "crate::octets")] Vec<u8>),
    Xattr(#[serde(with = "crate::octets")] Vec<u8>),
    Xattrs(Vec<Vec<u8>>),
    ShardStatus(ShardStatus),
    Pong {
        #[serde(with = "crate::octets")]
        payload: Vec<u8>,
    },
    /// To `ReadSnapshot`: keys and rows in order; none when there are no more.
    Rows(Vec<(Vec<u8>, Vec<u8>)>),
}

/// Why a call did not do what it says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallFailure {
    /// The file system's answer.
    Errno(i32),
    /// The partition that holds this name is another's; the map is newer than the caller's.
    Moved { directory: u64, map: WireMap },
    /// The row is not where the locator says: by entry, look the name up again or ask for the inode row; by inode,
    /// the file is gone.
    NotHere,
    /// The content was replaced, or moved (inline to backing file): reopen, then write again.
    Stale { generation: u32 },
    /// The content would outgrow the row: put it into the backing file, `Promote`, then ask again.
    MustPromote,
    /// Another change is under way on the same rows; ask again after a moment.
    Busy,
    /// This server does not own the shard.
    NotOwner,
    /// The server failed (its store refused, or its rules were broken); the text says what happened.
    Server { errno: i32, message: String },
    /// To `RecordSize`: this server has been at work for so short a time that clients of the one before it, which may
    /// write the file too, need not have told it so yet. They have in so many milliseconds.
    WritersUnknown { milliseconds: u32 },
}
