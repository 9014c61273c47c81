//! Calls between shards. Inside one server these are messages between workers; between servers they will be calls on
//! the wire, so they contain no shared memory. A shard may access another shard of the same worker directly, where
//! neither has to wait (`fast_path.rs`).

use super::refusal::{Cause, ShardRefusal};
use super::shard::Shard;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use varve_schema::{Change, IntentRow, Key, ReplyRecord, Row, TransactionId};
use varve_types::{Epoch, InodeId, PartitionIndex, PartitionMap, ShardId};

/// An attempt at a split: the epoch of its source, and its number in that epoch. A later attempt compares greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SplitAttempt {
    pub epoch: Epoch,
    pub number: u64,
}

/// A row of another shard, as it was when it was fetched.
pub type ForeignRow = Option<Row>;

#[derive(Clone, Debug)]
pub enum PeerCall {
    /// Rows of this shard; waits for rows that an undecided change has locked.
    Fetch(Vec<Key>),
    /// Like `Fetch`, for rows of a directory to be removed. If possible, the rows are also prepared for removal, as by
    /// `Hold`; the reply is then `Held`.
    FetchToRemove(TransactionId, Vec<Key>),
    /// The partition map of a directory whose home is this shard.
    Map(InodeId),
    /// Allocates this many inode ids, which are never allocated again.
    FreshInodes(u64),
    /// Rows of an inode that no other request knows yet or that no name reaches any more: applied in order and appended
    /// before the reply, without a vote.
    Apply(Vec<Change>),
    /// A participant's part of a cross-shard change: check, write the intent, fsync, lock. Refused if a session has one
    /// of the inodes open.
    Prepare(TransactionId, IntentRow, Vec<InodeId>),
    /// Like `Prepare`, but only in memory: the intent only deletes rows of a removed directory.
    Hold(TransactionId, IntentRow),
    /// The removals for which these were prepared are durable: delete the rows. Appended before the reply.
    Remove(Vec<TransactionId>),
    /// Apply or drop the intent; appended before the reply. Idempotent.
    Resolve {
        transaction: TransactionId,
        commit: bool,
    },
    /// These transactions are on stable storage as committed: fsync the applied intents and delete their marks.
    Settle(Vec<TransactionId>),
    /// To the coordinator: whether the transaction is committed. The call aborts an undecided one.
    Outcome(TransactionId),
    /// From a coordinator that recovers: whether this shard has its intent, or has applied it. Fsynced before a yes.
    IsPrepared(TransactionId),
    /// A split is about to create this partition: the home's map must list it before it is live.
    LearnMap {
        directory: InodeId,
        map: PartitionMap,
    },
    /// Split, to the target: drop the rows of an aborted import, and accept rows of this attempt and no other.
    ImportBegin {
        directory: InodeId,
        attempt: SplitAttempt,
    },
    ImportRows {
        directory: InodeId,
        attempt: SplitAttempt,
        changes: Vec<Change>,
        replies: Vec<ReplyRecord>,
    },
    /// All rows are sent: fsync, and reply with their counts.
    ImportEnd {
        directory: InodeId,
        attempt: SplitAttempt,
        partition: Row,
    },
    /// The source has committed: make the partition live.
    ImportLive {
        directory: InodeId,
        index: PartitionIndex,
    },
    /// To the source, from a shard that lacks partition `index`: was it split off? If not, split it off now.
    SplitOutcome {
        directory: InodeId,
        index: PartitionIndex,
    },
    /// No session has this inode open any more: if it has no name, it is removed.
    Reap(InodeId),
}

impl PeerCall {
    /// Whether the call can be served without any change.
    pub fn only_reads(&self) -> bool {
        matches!(self, PeerCall::Fetch(_) | PeerCall::Map(_) | PeerCall::SplitOutcome { .. })
    }
}

#[derive(Clone, Debug)]
pub enum PeerReply {
    Done,
    Rows(Vec<ForeignRow>),
    /// Reply to `FetchToRemove`: no other request sees or changes the rows until the removal is decided.
    Held(Vec<ForeignRow>),
    Map(PartitionMap),
    /// The partition that held these keys was split.
    Moved(InodeId, PartitionMap),
    InodesFrom(u64),
    Vote(bool),
    Committed(bool),
    Imported {
        entries: u64,
        subdirectories: u64,
    },
    Split(SplitState),
    /// Retry after a moment.
    Busy,
    /// The requested directory or other object does not exist.
    Absent,
    Failed(Cause),
}

impl PeerReply {
    /// Turns an unexpected reply, received while `doing`, into a refusal.
    pub fn unexpected(self, doing: impl fmt::Display) -> ShardRefusal {
        ShardRefusal::Failed(match self {
            PeerReply::Failed(cause) => cause.met(doing),
            other => Cause::from(format!("{doing}: {other:?}")),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitState {
    /// The requested partition is the target's: it may go live.
    Committed,
    /// The partition is still the source's, which is working on the split.
    Pending,
}

pub type PeerFuture<'a> = Pin<Box<dyn Future<Output = PeerReply> + 'a>>;

/// The other shards of the volume. A call that cannot be delivered within its deadline returns `Failed`.
pub trait Peers {
    fn call(&self, shard: ShardId, call: PeerCall) -> PeerFuture<'_>;

    /// The shard itself, if the same worker serves it and it is open.
    fn near(&self, shard: ShardId) -> Option<Rc<Shard>>;
}
