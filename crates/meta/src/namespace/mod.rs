//! The rules of POSIX, as pure functions: one file a verb.
//!
//! No async, no clock, no randomness, no I/O. A verb names the keys it must see ([`Verb::keys`], asked again as rows
//! arrive, until nothing is missing) and then decides ([`Verb::decide`]). The driver in `shards` fetches and commits; it
//! never interprets a rule. The rows may lie in several shards: a verb does not know.

pub use crate::tables::Change;

use crate::tables::{Key, Row};
use varve_types::{Credentials, Errno, InodeId, NameHash, PartitionIndex, ShardCount, Timestamp};

/// What a verb may look at: the rows that have been fetched so far.
///
/// The driver vouches for routing: a partition row it shows is live, its range holds the hashes for which
/// [`View::partition_of`] names it, and an entry comes from the partition that holds its name. Where it learns that it
/// was wrong (another shard answered that its partition was cut), it fetches again and asks [`Verb::keys`] again.
pub trait View {
    fn row(&self, key: &Key) -> Seen<'_>;

    /// The partition of `directory` that holds `hash`, as far as is known: partition 0 of a directory never heard of.
    fn partition_of(&self, directory: InodeId, hash: NameHash) -> PartitionIndex;
}

/// One key as a [`View`] knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen<'a> {
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
}

/// What must happen beside the tables once the change is committed; done again after a crash by whoever finds the
/// rows that ask for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// No name is left: remove the backing file and rows when no session has it open.
    Reap(InodeId),
    /// Give the backing file this owner and group / mode (root's volumes).
    Own { inode: InodeId, uid: u32, gid: u32, mode: varve_types::Mode },
    /// Cut or extend the backing file, then settle its row at `at`.
    Truncate { inode: InodeId, size: u64 },
}

/// What a verb decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<O> {
    Refuse(Errno),
    /// Nothing changes.
    Answer(O),
    Commit {
        changes: Vec<Change>,
        effects: Vec<Effect>,
        outcome: O,
    },
}

/// One file system operation.
pub trait Verb {
    type Outcome;

    /// Keys that must be fetched before this verb can decide and that `seen` does not know yet; empty when it can.
    fn keys(&self, seen: &dyn View) -> Vec<Key>;

    /// Decides on what is seen. Called only when [`Verb::keys`] is empty.
    fn decide(&self, seen: &dyn View, context: &Context<'_>) -> Decision<Self::Outcome>;
}
