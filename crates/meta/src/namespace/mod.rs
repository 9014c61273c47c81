//! The rules of POSIX, as pure functions: one file a verb.
//!
//! No async, no clock, no randomness, no I/O. A verb is asked to decide ([`Verb::decide`]) and either does or says which
//! keys it must see first ([`MissingKeys`]); it is asked again as rows arrive, until nothing is missing. The driver in
//! `shards` fetches and commits; it never interprets a rule. The rows may lie in several shards: a verb does not know.

mod access;
mod create;
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

pub use crate::tables::Change;
pub use create::{Create, NewNode};
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

use crate::tables::{BackingSize, Content, Key, NodeRow, Row};
use bytes::Bytes;
use reader::RowReader;
use varve_types::{
    Attributes, Credentials, Errno, FileKind, InodeId, LayoutGeneration, Name, NameHash, PartitionIndex, ShardCount,
    Timestamp,
};

/// What a verb may look at: the rows that have been fetched so far.
///
/// The driver vouches for routing: a partition row it shows is live, its range holds the hashes for which
/// [`View::partition_of`] names it, and an entry comes from the partition that holds its name. Where it learns that it
/// was wrong (another shard answered that its partition was cut), it fetches again and asks [`Verb::decide`] again.
pub trait View {
    fn row(&self, key: &Key) -> KeyState<'_>;

    /// The partition of `directory` that holds `hash`, as far as is known: partition 0 of a directory never heard of.
    fn partition_of(&self, directory: InodeId, hash: NameHash) -> PartitionIndex;
}

/// One key as a [`View`] knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyState<'a> {
    /// Not fetched: the verb may ask for it, but not decide without it.
    Unknown,
    Absent,
    Present(&'a Row),
}

/// Everything besides rows that a decision may depend on.
#[derive(Clone)]
pub struct Context<'a> {
    pub caller: &'a Credentials,
    /// The server's wall clock when the request was taken up.
    pub now: Timestamp,
    /// A fresh id of the coordinating shard (or of the home chosen for a directory), used if the verb makes a file.
    pub fresh: InodeId,
    pub shards: ShardCount,
    pub inline_limit: u32,
    /// Whether a session has this file registered as open. Asked only of inodes of rows that were seen.
    pub is_open: &'a dyn Fn(InodeId) -> bool,
    /// Whether one has it open, or may have since an earlier server and has not come here yet.
    pub may_be_open: &'a dyn Fn(InodeId) -> bool,
}

/// How a verb finds a file's row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum At {
    /// In the entry `name` of `parent`, if that still means `inode` and holds its attributes.
    Entry { parent: InodeId, name: Name, inode: InodeId },
    /// In its inode row or, for a directory, its directory row.
    Inode(InodeId),
}

impl At {
    pub fn inode(&self) -> InodeId {
        match self {
            At::Entry { inode, .. } | At::Inode(inode) => *inode,
        }
    }
}

/// What must happen beside the tables once the change is committed and before the reply; done again after a crash by
/// whoever finds the rows that ask for it. The effects of one inode are done one at a time, in the order of the
/// decisions: else a cut could fall on what a later writer wrote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No name is left and no session has it open: remove the backing file. Its rows are gone already.
    Reap(InodeId),
    /// Give the backing file this owner and group / mode (root's volumes).
    Own { inode: InodeId, uid: u32, gid: u32, mode: varve_types::Mode },
    /// Cut or extend the backing file as the row says when its turn has come ([`FindTruncate`]); if that asks for nothing any
    /// more, who found it has done it, and what was written since stays. Then run [`FinishTruncate`] on the row, which was at
    /// `at` when this was decided. If it is no longer there, answer Busy: the row still says `Truncating`, and who finds it
    /// does it again. If it cannot be done, or is not, run [`AbandonTruncate`]. `decided`: by this change, and not found.
    Truncate { at: At, decided: Option<PendingTruncate> },
    /// The change, by which the size of this inode becomes stale, is on disk before the answer leaves and with it the
    /// leave to write the backing file.
    SizeStale(InodeId),
    /// Give the backing file this mtime: a writer has it open, so the backing file's counts and not the row's.
    Touch { inode: InodeId, mtime: Timestamp },
}

/// Why a verb is not done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The file system's answer.
    Errno(Errno),
    /// The row is not where [`At`] says: by entry, the name means something else now or its attributes are in an inode
    /// row; by inode, the file is gone or has no inode row.
    NotHere,
    /// The content has moved since the caller looked: this is its generation now.
    Stale(LayoutGeneration),
    /// The content would outgrow the row: the caller has to promote the file, then ask again.
    MustPromote,
    /// A name means this inode, whose row is not there: the rows are those of two moments, or the volume is damaged.
    Torn(InodeId),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Refusal {
        Refusal::Errno(errno)
    }
}

/// What a verb decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<O> {
    Refuse(Refusal),
    /// Nothing changes.
    Answer(O),
    /// `changes` may be empty, where only effects are to be done again.
    Commit {
        changes: Vec<Change>,
        effects: Vec<Effect>,
        outcome: O,
    },
}

/// A file or directory as a verb answers it.
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
    /// In the row; the bytes come with [`Open`] alone.
    Inline(Option<Bytes>),
    /// In the backing file.
    Backing(SizeState),
    /// A directory, symlink or special file.
    None,
}

/// What the row says of its backing file's size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeState {
    /// The row's size and mtime are right.
    Authoritative,
    /// The backing file's are, and it has so many bytes.
    Stale { at_least: u64 },
}

impl From<BackingSize> for SizeState {
    fn from(size: BackingSize) -> SizeState {
        match size {
            BackingSize::Stale { at_least } => SizeState::Stale { at_least },
            // A truncate that is under way governs, and the row has its size.
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

/// What a name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A file whose attributes are in its entry.
    Node(Node),
    /// A file with an inode row, or a directory.
    Elsewhere { inode: InodeId, kind: FileKind },
}

/// Keys that must be fetched before a verb can decide: at least one, each once, none that was shown.
#[derive(Debug, PartialEq, Eq)]
pub struct MissingKeys(pub Vec<Key>);

/// One file system operation.
pub trait Verb {
    type Outcome;

    /// It asks for the rows of a directory to remove them.
    const REMOVES_DIRECTORY: bool = false;

    /// Decides on what is seen, or says what it must see besides.
    fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Result<Decision<Self::Outcome>, MissingKeys>;
}

/// How verbs are written in this room: what a verb looks at, and then what it makes of it.
trait Rule {
    type Outcome;
    type Rows<'a>;

    const REMOVES_DIRECTORY: bool = false;

    /// The rows to decide on; `None` while one that was asked of `reader` is unknown. Rows that do not depend on each
    /// other are all asked for before the first is looked at, so that they are fetched in one round.
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
