//! The interface of a verb: the rows and inputs that it sees, and its decision.

use super::node::At;
use varve_schema::{BackingSize, Change, Content, Key, NodeRow, Row};
use varve_types::{
    Credentials, Errno, InodeId, LayoutGeneration, Mode, NameHash, PartitionIndex, ShardCount, Timestamp,
};

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
    /// Whether a session has this file registered as open. Called only for inodes of rows that the verb has seen, and only
    /// if the decision depends on it: another shard may have to be asked.
    pub is_open: &'a dyn Fn(InodeId) -> bool,
    /// Whether a session has the file open, or may have it open since a previous server and has not reconnected yet.
    pub may_be_open: &'a dyn Fn(InodeId) -> bool,
}

/// An action outside the tables, done after the change is committed and before the reply. After a crash, a request that
/// finds the rows which require the effect does it again. The effects of one inode are done one at a time and in the
/// order of the decisions; otherwise a truncate could destroy data of a later writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The file has no name and no session has it open: remove the backing file. Its rows are already gone.
    Reap(InodeId),
    /// Give the backing file this owner, group and mode (volumes of root).
    Own { inode: InodeId, uid: u32, gid: u32, mode: Mode },
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

/// A truncate that a row requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PendingTruncate {
    pub size: u64,
    /// The times of the row distinguish this truncate from another one to the same size. A change that does not
    /// truncate the file may change the ctime.
    pub ctime: Timestamp,
    pub mtime: Timestamp,
}

impl PendingTruncate {
    pub(super) fn of(row: &NodeRow) -> Option<PendingTruncate> {
        let NodeRow { attributes, content: Content::Backing(BackingSize::Truncating(size)), .. } = row else {
            return None;
        };
        Some(PendingTruncate { size: *size, ctime: attributes.ctime, mtime: attributes.mtime })
    }

    pub(super) fn is_of(&self, row: &NodeRow) -> bool {
        PendingTruncate::of(row)
            .is_some_and(|found| found.size == self.size && (found.ctime == self.ctime || found.mtime == self.mtime))
    }
}

/// A commit without effects.
pub(super) fn commit<O>(changes: Vec<Change>, outcome: O) -> Decision<O> {
    Decision::Commit { changes, effects: Vec::new(), outcome }
}
