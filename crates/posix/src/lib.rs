//! The rules of POSIX as pure functions: one file per verb.
//!
//! This crate has no async code, clock, randomness or I/O. The driver calls [`Verb::decide`], and the verb either
//! decides or returns the keys that it must see first ([`MissingKeys`]). The driver in `varve_meta::shards` fetches the
//! rows and calls again until no key is missing, and then commits; it never interprets a rule. The rows may be in
//! several shards, which the verb does not know.

mod access;
mod create;
mod create_unnamed;
mod get_attributes;
mod link;
mod list;
mod locate;
mod lookup;
mod make_directory;
mod names;
mod open;
mod partitions;
mod read_link;
mod reader;
mod remove_directory;
mod rename;
mod revive_directory;
mod set_attributes;
mod size;
mod unlink;
mod write_inline;
mod xattr;

pub use create::{Create, NewNode};
pub use create_unnamed::CreateUnnamed;
pub use get_attributes::{DirectoryNode, GetAttributes, GetDirectory, PartitionTotals};
pub use link::{LINKS_MAX, Link};
pub use list::List;
pub use lookup::Lookup;
pub use make_directory::MakeDirectory;
pub use open::{Granted, Open, OpenMode};
pub use partitions::cut_off;
pub use read_link::ReadLink;
pub use remove_directory::RemoveDirectory;
pub use rename::{Rename, RenameFlags};
pub use revive_directory::ReviveDirectory;
pub use set_attributes::ChangeAttributes;
pub use size::{
    AbandonTruncate, BackingFile, FindTruncate, FinishTruncate, MarkSizeStale, PendingTruncate, Promote, RaiseSize,
    RecordSize, nobody_writes, size_state,
};
pub use unlink::{RemovedName, Unlink};
pub use write_inline::WriteInline;
pub use xattr::{GetXattr, ListXattrs, RemoveXattr, SetXattr, XattrMode};

use bytes::Bytes;
use reader::RowReader;
use varve_schema::{BackingSize, Change, Content, Key, NodeRow, Row};
use varve_types::{
    Attributes, Credentials, Errno, FileKind, InodeId, LayoutGeneration, Name, NameHash, PartitionIndex, ShardCount,
    Timestamp,
};

/// A verb's view of the rows that have been fetched so far.
///
/// The driver guarantees the routing: a partition row that it shows is live, the row's range contains the hashes for
/// which [`View::partition_of`] returns it, and an entry comes from the partition that holds its name. If the driver
/// learns that it was wrong (another shard replied that its partition was split), it fetches again and calls
/// [`Verb::decide`] again.
pub trait View {
    fn row(&self, key: &Key) -> KeyState<'_>;

    /// The partition of `directory` that holds `hash`, as far as known; partition 0 for an unknown directory.
    fn partition_of(&self, directory: InodeId, hash: NameHash) -> PartitionIndex;
}

/// The state of one key in a [`View`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState<'a> {
    /// Not fetched: the verb may request it, but must not decide without it.
    Unknown,
    Absent,
    Present(&'a Row),
}

/// The inputs of a decision besides rows.
#[derive(Clone)]
pub struct Context<'a> {
    pub caller: &'a Credentials,
    /// The server's wall clock when it began the request.
    pub now: Timestamp,
    /// A new inode id of the coordinating shard (or of the home shard chosen for a directory), used if the verb creates
    /// a file.
    pub fresh: InodeId,
    pub shards: ShardCount,
    pub inline_limit: u32,
    /// Whether a session has this file registered as open. Called only for inodes of rows that the verb has seen.
    pub is_open: &'a dyn Fn(InodeId) -> bool,
    /// Whether a session has the file open, or may have it open since a previous server and has not reconnected yet.
    pub may_be_open: &'a dyn Fn(InodeId) -> bool,
}

/// How a verb finds a file's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// In the entry `name` of `parent`, if the entry still refers to `inode` and holds its attributes.
    Entry { parent: InodeId, name: Name, inode: InodeId },
    /// In its inode row or, for a directory, in its directory row.
    Inode(InodeId),
}

impl At {
    pub fn inode(&self) -> InodeId {
        match self {
            At::Entry { inode, .. } | At::Inode(inode) => *inode,
        }
    }
}

/// An action outside the tables, done after the change is committed and before the reply. After a crash, a request that
/// finds the rows which require the effect does it again. The effects of one inode are done one at a time and in the
/// order of the decisions; otherwise a truncate could destroy data of a later writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The file has no name and no session has it open: remove the backing file. Its rows are already gone.
    Reap(InodeId),
    /// Give the backing file this owner, group and mode (volumes of root).
    Own { inode: InodeId, uid: u32, gid: u32, mode: varve_types::Mode },
    /// Truncate or extend the backing file to the size that the row has when the effect is done ([`FindTruncate`]). If
    /// the row no longer requires a truncate, another request that found it has done it, and data written since stays.
    /// Then run [`FinishTruncate`] on the row, which was at `at` when the effect was decided. If the row is no longer
    /// there, reply Busy: the row still says `Truncating`, and the next request that finds it repeats the truncate. If
    /// the truncate fails or is not done, run [`AbandonTruncate`]. `decided`: `Some` if this change decided the
    /// truncate, `None` if it found one pending.
    Truncate { at: At, decided: Option<PendingTruncate> },
    /// The change that makes the size of this inode stale must be on disk before the reply, which permits the client to
    /// write the backing file.
    SizeStale(InodeId),
    /// Give the backing file this mtime: while a writer has it open, the backing file's mtime counts and not the row's.
    Touch { inode: InodeId, mtime: Timestamp },
}

/// Why a verb is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The error of the file system call.
    Errno(Errno),
    /// The row is not where [`At`] points. By entry: the name refers to another file, or the attributes are in an inode
    /// row. By inode: the file is gone or has no inode row.
    NotHere,
    /// The content has changed since the caller read it; this is its current generation.
    Stale(LayoutGeneration),
    /// The content would exceed the inline limit: the caller must promote the file and retry.
    MustPromote,
    /// A name refers to this inode, whose row is missing: the rows are from two different times, or the volume is
    /// damaged.
    Torn(InodeId),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Errno(errno)
    }
}

/// The decision of a verb.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<O> {
    Refuse(Refusal),
    /// Nothing changes.
    Answer(O),
    /// `changes` may be empty if the commit only repeats effects.
    Commit {
        changes: Vec<Change>,
        effects: Vec<Effect>,
        outcome: O,
    },
}

/// A file or directory as a verb returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub inode: InodeId,
    pub attributes: Attributes,
    pub content: NodeContent,
    pub generation: LayoutGeneration,
    /// The attributes are in an inode or directory row, not in an entry.
    pub by_inode: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeContent {
    /// In the row. Only [`Open`] returns the bytes.
    Inline(Option<Bytes>),
    /// In the backing file.
    Backing(SizeState),
    /// A directory, symlink or special file.
    None,
}

/// Whether the row's size of a backing file is authoritative.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeState {
    /// The row's size and mtime are correct.
    Authoritative,
    /// The backing file's size and mtime count, and the file has at least this many bytes.
    Stale { at_least: u64 },
}

impl From<BackingSize> for SizeState {
    fn from(size: BackingSize) -> SizeState {
        match size {
            BackingSize::Stale { at_least } => SizeState::Stale { at_least },
            // A pending truncate overrides the file's size, and the row has the truncate's size.
            BackingSize::Authoritative | BackingSize::Truncating(_) => SizeState::Authoritative,
        }
    }
}

impl Node {
    /// Without the bytes of inline content.
    fn of(inode: InodeId, row: &NodeRow, by_inode: bool) -> Node {
        let content = match &row.content {
            Content::Inline(_) => NodeContent::Inline(None),
            Content::Backing(size) => NodeContent::Backing((*size).into()),
            Content::Symlink(_) | Content::None => NodeContent::None,
        };
        Node { inode, attributes: row.attributes, content, generation: row.generation, by_inode }
    }
}

/// The target of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file whose attributes are in its entry.
    Node(Node),
    /// A file with an inode row, or a directory.
    Elsewhere { inode: InodeId, kind: FileKind },
}

/// Keys that must be fetched before a verb can decide: at least one, each once, none of them already shown.
#[derive(Debug, PartialEq, Eq)]
pub struct MissingKeys(pub Vec<Key>);

/// One file system operation.
pub trait Verb {
    type Outcome;

    /// Whether the verb reads the rows of a directory in order to remove them.
    const REMOVES_DIRECTORY: bool = false;

    /// Decides on the visible rows, or returns the keys that are missing.
    fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Result<Decision<Self::Outcome>, MissingKeys>;
}

/// How this crate implements a verb: first the rows that it reads, then the rule that decides on them.
trait Rule {
    type Outcome;
    type Rows<'a>;

    const REMOVES_DIRECTORY: bool = false;

    /// The rows to decide on; `None` while a requested row is unknown. Rows that do not depend on each other are all
    /// requested before the first one is examined, so that one round fetches them all.
    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>>;

    fn rule(&self, rows: Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<Self::Outcome>, Refusal>;
}

macro_rules! verbs {
    ($($verb:ident => $outcome:ty;)*) => {
        $(impl Verb for $verb {
            type Outcome = $outcome;

            const REMOVES_DIRECTORY: bool = <$verb as Rule>::REMOVES_DIRECTORY;

            fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Result<Decision<$outcome>, MissingKeys> {
                decide(self, seen, context)
            }
        })*
    };
}

verbs! {
    Lookup => Entry;
    Create => Node;
    CreateUnnamed => Node;
    MakeDirectory => Node;
    ReviveDirectory => Node;
    Unlink => RemovedName;
    RemoveDirectory => RemovedName;
    Rename => RemovedName;
    Link => Entry;
    List => ();
    GetAttributes => Node;
    GetDirectory => DirectoryNode;
    ChangeAttributes => Node;
    Open => Node;
    WriteInline => Node;
    Promote => Node;
    MarkSizeStale => Node;
    RaiseSize => Node;
    RecordSize => Node;
    FindTruncate => Option<PendingTruncate>;
    FinishTruncate => bool;
    AbandonTruncate => ();
    ReadLink => Bytes;
    GetXattr => Bytes;
    SetXattr => ();
    ListXattrs => Vec<Bytes>;
    RemoveXattr => ();
}

fn decide<R: Rule>(verb: &R, seen: &dyn View, context: &Context<'_>) -> Result<Decision<R::Outcome>, MissingKeys> {
    let reader = RowReader::new(seen);
    match verb.look(&reader) {
        Some(rows) => Ok(verb.rule(rows, context).unwrap_or_else(Decision::Refuse)),
        None => Err(reader.into_missing()),
    }
}

/// A commit without effects.
fn commit<O>(changes: Vec<Change>, outcome: O) -> Decision<O> {
    Decision::Commit { changes, effects: Vec::new(), outcome }
}

#[cfg(test)]
mod tests;
