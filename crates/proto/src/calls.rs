//! The calls of the metadata service, their replies and failures.
//!
//! A request goes to the one shard that holds its target. For a name, that is the shard of the parent's partition; for
//! a directory, its home; for a file, the shard of its entry or, once the file has an inode row, the shard that created
//! the inode. A shard that does not hold the target replies [`CallFailure::Moved`] or [`CallFailure::NotHere`], and the
//! client retries at another shard.

use crate::nouns::{WireAttributes, WireCredentials, WireKind, WireMap, WireSetAttributes, WireShardMap, WireTime};
use serde::{Deserialize, Serialize};

/// Identifies one change of one session, so that a retry gets the first reply. A slot carries one call at a time and
/// numbers its calls from 1; the server remembers the latest reply of each slot.
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
    /// Files whose inodes this shard created and which the session has closed for the last time since its previous
    /// request to the shard.
    pub released: Vec<u64>,
    pub call: Call,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    pub id: CallId,
    pub result: Result<Reply, CallFailure>,
}

/// How the server finds a file's row: by inode, or by the name under which the client last saw the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Locator {
    /// By its entry. The server replies `NotHere` unless the name still refers to that inode and the attributes are in
    /// the entry itself.
    Entry {
        parent: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        inode: u64,
    },
    /// By its inode row (for a directory, its directory row), at the shard that created the inode.
    Inode { inode: u64 },
}

/// The object that a create makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NewNode {
    Regular,
    Symlink {
        #[serde(with = "serde_bytes")]
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
    Whiteout,
    WhiteoutNoReplace,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OpenMode {
    Read,
    Write,
    ReadWrite,
    /// To run the file: needs permission to execute, and reads.
    Execute,
}

impl OpenMode {
    pub fn writes(self) -> bool {
        matches!(self, OpenMode::Write | OpenMode::ReadWrite)
    }

    /// The mode in which a client registers the open file again: the right to run it was checked at the first open.
    pub fn registered(self) -> OpenMode {
        if self == OpenMode::Execute { OpenMode::Read } else { self }
    }
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
    // Calls on names in a directory. They go to the shard of the name's partition.
    Lookup {
        parent: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Creates anything but a directory. `open`: the session has the new file open, as after `Open`.
    Create {
        parent: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        node: NewNode,
        mode: u16,
        open: bool,
    },
    MakeDirectory {
        parent: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        mode: u16,
    },
    /// Recreates the rows of the directory that `name` refers to if a power loss destroyed them. The directory is then
    /// empty.
    ReviveDirectory {
        parent: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    Unlink {
        parent: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    RemoveDirectory {
        parent: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Goes to the shard of the old name's partition.
    Rename {
        parent: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        new_parent: u64,
        #[serde(with = "serde_bytes")]
        new_name: Vec<u8>,
        flags: RenameFlags,
    },
    /// Adds a name for the file `inode`, which is found by `source`. Goes to the shard of the new name's partition.
    Link {
        source: Locator,
        inode: u64,
        parent: u64,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    /// Lists entries with hashes from `from` on, in order of hash, about `bytes_max` bytes of them. A reply contains
    /// all or none of the entries with equal hash. Goes to the shard of the partition that holds `from`.
    List {
        directory: u64,
        from: u64,
        bytes_max: u32,
    },

    // Calls on directories. They go to the directory's home.
    /// Returns attributes and partition map. Count and times are those of the home's own partition; `StatDirectory`
    /// returns those of all partitions.
    GetDirectory {
        directory: u64,
    },
    /// Goes to each shard that holds a partition of the directory.
    PartitionStatus {
        directory: u64,
    },

    // Calls on files and directories by locator. They go to the shard that holds the row.
    GetAttributes {
        at: Locator,
    },
    SetAttributes {
        at: Locator,
        set: WireSetAttributes,
    },
    /// Registers the file as open in this session, checks access, and returns attributes and content.
    Open {
        at: Locator,
        mode: OpenMode,
        truncate: bool,
    },
    /// Replaces the content kept in the row and increments the generation. Fails with `Stale` if `generation` is not
    /// the file's present one.
    WriteInline {
        at: Locator,
        generation: u32,
        #[serde(with = "serde_bytes")]
        data: Vec<u8>,
        mtime: Option<WireTime>,
    },
    /// Makes the backing file, which holds `size` bytes and is fsynced, the file's content. Increments the generation
    /// and marks the size as stale (the backing file's size is valid) until `RecordSize`.
    Promote {
        at: Locator,
        generation: u32,
        size: u64,
    },
    /// A writer begins to change a backing file: its size and mtime are the backing file's until `RecordSize`. The
    /// writer may truncate the file to `at_least` bytes; to truncate it further, it must repeat the call first.
    MarkSizeStale {
        at: Locator,
        generation: u32,
        at_least: u64,
    },
    /// The writer has stopped. The call carries the size and mtime of the backing file, which has been fsynced since.
    /// The reply is stale if another session may have changed the file: that session records the size, or this one does
    /// after it has measured again.
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
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },
    SetXattr {
        at: Locator,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
        #[serde(with = "serde_bytes")]
        value: Vec<u8>,
        mode: XattrMode,
    },
    ListXattrs {
        at: Locator,
    },
    RemoveXattr {
        at: Locator,
        #[serde(with = "serde_bytes")]
        name: Vec<u8>,
    },

    // Calls on the shard itself.
    /// The server replies when everything acknowledged before is fsynced.
    Sync,
    /// Carries only `released`.
    Release,
    ShardStatus,
    /// The server replies immediately; measures the transport.
    Ping {
        #[serde(with = "serde_bytes")]
        payload: Vec<u8>,
    },
    /// Takes a consistent snapshot of all shards of the server under a number that the client chose at random. Goes to
    /// any shard.
    TakeSnapshot {
        number: u64,
    },
    /// Reads rows of the shard from a snapshot, as they are stored: those with keys in `from..end`, about `bytes_max`
    /// bytes of them. Fails with ESTALE if the server no longer holds the snapshot.
    ReadSnapshot {
        number: u64,
        #[serde(with = "serde_bytes")]
        from: Vec<u8>,
        #[serde(with = "serde_bytes")]
        end: Vec<u8>,
        bytes_max: u32,
    },
    ReleaseSnapshot {
        number: u64,
    },

    // Calls that were added later. They come last so that the numbers of the other calls stay.
    /// This many bytes of a backing file that the session writes are fsynced. If another session may change the file
    /// too, the server replies without recording the size.
    RaiseSize {
        at: Locator,
        generation: u32,
        at_least: u64,
    },
    /// As `GetDirectory`, with the counts and times of all partitions combined.
    StatDirectory {
        directory: u64,
    },
    /// Creates a regular file without a name (O_TMPFILE), which the session has open for writing. `linkable`: `Link`
    /// may name it. Goes to the home of `parent`.
    CreateUnnamed {
        parent: u64,
        mode: u16,
        linkable: bool,
    },
    /// As `List`, without attributes. With a `bytes_max` of 0 the reply has no entries, only the version.
    ListNames {
        directory: u64,
        from: u64,
        bytes_max: u32,
    },
    /// Reads entries of the shard from a snapshot and returns the names of the files whose attributes they hold and
    /// whose numbers are in the range of `inode` ([`FOUND_RANGE`]). `from`: the `next` of the previous reply; empty at
    /// first. Fails with ESTALE if the server no longer holds the snapshot.
    FindNames {
        number: u64,
        inode: u64,
        #[serde(with = "serde_bytes")]
        from: Vec<u8>,
    },
    /// Where the shard is and in which state. The server replies immediately, whatever the state.
    LocateShard,
    /// Moves the shard to another worker of the server. Only for [`Administer`](crate::handshake::Purpose::Administer).
    MoveShard {
        worker: u16,
    },
    /// The session has had these files open since an earlier server, which granted that. Goes to the shard that created
    /// the inodes, at most [`REGISTERED_FILES_MAX`] at once. Refused with EPERM to a client that makes calls for one
    /// user only: it sends `Open` again for each file.
    Register {
        files: Vec<OpenedBefore>,
    },
}

/// A file that a session has had open since an earlier server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenedBefore {
    pub inode: u64,
    pub writes: bool,
}

/// Limit on files in one `Register`: its request stays below 64 KiB.
pub const REGISTERED_FILES_MAX: usize = 4096;

impl Call {
    /// Whether the call usually changes rows of several shards. Each shard writes to its own log, so such a call takes
    /// several times as long. A directory's home is usually not the shard of its name; a rename usually stays within
    /// one shard.
    pub fn spans_shards(&self) -> bool {
        matches!(self, Call::MakeDirectory { .. } | Call::RemoveDirectory { .. })
    }
}

/// Location of a file's bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileContent {
    /// In the row. Only replies to `Open` contain the bytes.
    Inline {
        #[serde(with = "serde_bytes")]
        data: Option<Vec<u8>>,
    },
    /// In the store's file `data/<xx>/<inode>`.
    Backing(SizeState),
    /// No bytes: a directory, symlink or special file.
    None,
}

/// Validity of the size of a backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SizeState {
    /// The row's size and mtime are valid.
    Authoritative,
    /// A session writes the file or has yet to record its size. The backing file's size and mtime are valid (the reply
    /// already carries them), and the file has at least this many bytes.
    Stale { at_least: u64 },
    /// As `Stale`, but no session is left to record the size: the session that opens the file does it. Only in replies
    /// to `Open`.
    WriterGone { at_least: u64 },
}

/// A file or directory and its attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeReply {
    pub inode: u64,
    pub attributes: WireAttributes,
    pub content: FileContent,
    pub generation: u32,
    /// The attributes are in an inode row at the shard that created the inode, not in the entry. Only such files have
    /// xattrs or several names.
    pub by_inode: bool,
}

/// The object that a name refers to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EntryReply {
    /// A file whose attributes are in its entry.
    Node(NodeReply),
    /// A file with an inode row, or a directory: the client asks the shard that created the inode.
    Elsewhere { inode: u64, kind: WireKind },
}

/// One entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListingEntry {
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    pub hash: u64,
    pub entry: EntryReply,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listing {
    pub children: Vec<ListingEntry>,
    /// Hash at which the listing continues; `None` at the end of the directory.
    pub next: Option<u64>,
    pub map: WireMap,
    pub partition: ListedPartition,
}

/// One entry of a listing without attributes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameEntry {
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
    pub hash: u64,
    pub inode: u64,
    pub kind: WireKind,
}

/// Identifies the set of names of a partition, with their inodes. While it stays the same, so do they.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamesVersion {
    pub loaded: u64,
    pub batch: u64,
}

/// The partition that a listing read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedPartition {
    /// Its first and last hash.
    pub first: u64,
    pub last: u64,
    /// At the start of the request; the names may be newer. `None` if the server does not know it.
    pub version: Option<NamesVersion>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameListing {
    pub names: Vec<NameEntry>,
    /// Hash at which the listing continues; `None` at the end of the directory.
    pub next: Option<u64>,
    pub map: WireMap,
    pub partition: ListedPartition,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardStatus {
    pub shard: u16,
    pub epoch: u64,
    pub partitions_loaded: u64,
    pub cache_bytes: u64,
    /// Of the inodes that the shard created.
    pub open_files: u64,
    pub log_bytes_unsynced: u64,
    pub intents: u64,
    pub orphans: u64,
}

/// The state of a shard at the worker that owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShardPhase {
    /// Waits for its first opening.
    Waiting,
    Opening,
    Open,
    /// It cannot be opened now, and the last owner's state is served read-only.
    ReadOnly,
    /// It could not be opened and is opened again later.
    Refused,
    /// It was open, has failed, and is being opened again.
    Failed,
    MovingAway,
    /// Another server has taken it over.
    Released,
}

/// Where a shard is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardLocation {
    pub shard: u16,
    pub worker: u16,
    pub phase: ShardPhase,
    /// How long it has been in this phase.
    pub since_ms: u64,
    /// Names and partitions of directories in memory.
    pub names_loaded: u64,
    pub partitions_loaded: u64,
    /// Why it is not open; empty if it is, or if it was not tried yet.
    pub problem: String,
}

/// `FindNames` returns the names of all files whose numbers, divided by this, are equal. Files that are used together
/// were often made together, so one search answers for many. The names of all of them fit into a frame.
pub const FOUND_RANGE: u64 = 1024;

/// The name of a file whose attributes are in its entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FoundName {
    pub inode: u64,
    pub parent: u64,
    #[serde(with = "serde_bytes")]
    pub name: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    Done,
    /// To `Lookup` and `Link`. `lease_ms`: how long the client may cache the name of a directory; 0 for anything else.
    Entry {
        entry: EntryReply,
        lease_ms: u32,
    },
    /// To `Create`, `CreateUnnamed`, `MakeDirectory`, `ReviveDirectory`, `GetAttributes`, `SetAttributes`, `Open`,
    /// `WriteInline`, `Promote`, `MarkSizeStale`, `RecordSize`, `RaiseSize`.
    Node(NodeReply),
    /// To `Unlink`, `RemoveDirectory` and `Rename`: the inode whose last name was removed, if any, so that the client
    /// can drop its cached data, and the new mtime and ctime of the changed directories, unless those are later
    /// already.
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
    Target(#[serde(with = "serde_bytes")] Vec<u8>),
    Xattr(#[serde(with = "serde_bytes")] Vec<u8>),
    Xattrs(Vec<Vec<u8>>),
    ShardStatus(ShardStatus),
    Pong {
        #[serde(with = "serde_bytes")]
        payload: Vec<u8>,
    },
    /// To `ReadSnapshot`: keys and rows in order; empty when there are no more.
    Rows(Vec<(Vec<u8>, Vec<u8>)>),
    Names(NameListing),
    /// To `FindNames`. `next`: where the search goes on; empty at the end of the shard.
    FoundNames {
        found: Vec<FoundName>,
        #[serde(with = "serde_bytes")]
        next: Vec<u8>,
    },
    ShardLocation(ShardLocation),
    /// To `MoveShard`. `microseconds`: how long calls for the shard had to wait.
    ShardMoved {
        from: u16,
        to: u16,
        microseconds: u64,
    },
    /// To `MoveShard`: the shard stays where it is, for this reason.
    ShardStays {
        reason: String,
    },
}

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CallFailure {
    /// The file system operation failed with this errno.
    Errno(i32),
    /// Another shard holds the partition of this name; the map is newer than the caller's.
    Moved { directory: u64, map: WireMap },
    /// The row is not where the locator points. By entry: look the name up again or ask for the inode row. By inode:
    /// the file no longer exists.
    NotHere,
    /// The content was replaced, or moved from the row to a backing file: reopen, then write again.
    Stale { generation: u32 },
    /// The content would outgrow the row: write it to the backing file, send `Promote`, then retry.
    MustPromote,
    /// Another change is in progress on the same rows; retry after a short delay.
    Busy,
    /// Another worker owns the shard, or the server has no such shard. The call was not carried out.
    NotOwner { map: WireShardMap },
    /// The server failed (a store error or a broken invariant); the text describes the failure.
    Server { errno: i32, message: String },
    /// To `RecordSize`: this server started so recently that clients of the previous server, which may write the file
    /// too, may not have reported it yet. They will have done so after this many milliseconds.
    WritersUnknown { milliseconds: u32 },
}
