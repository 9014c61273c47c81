//! What shards ask of each other. Inside one server these are messages between workers; between servers they will be
//! calls on the wire, which is why nothing in them is shared memory. A shard whose worker serves the other one too may go
//! to it directly, where neither has to wait (`at_once.rs`).

use super::refusal::{Cause, ShardRefusal};
use super::shard::Shard;
use crate::tables::{Change, IntentRow, Key, ReplyRecord, Row, TransactionId};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use varve_types::{Epoch, InodeId, PartitionIndex, PartitionMap, ShardId};

/// An attempt at a split: the epoch of its source, and its number there. Of two the later is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SplitAttempt {
    pub epoch: Epoch,
    pub number: u64,
}

/// A row of another shard, as it was when it was asked for.
pub type ForeignRow = Option<Row>;

#[derive(Clone, Debug)]
pub enum PeerCall {
    /// Rows of this shard; waits for those that an undecided change has locked.
    Fetch(Vec<Key>),
    /// As `Fetch`, of rows of a directory that is to be removed: held, if that can be (`Held`), as by `Hold`.
    FetchToRemove(TransactionId, Vec<Key>),
    /// The partition map of a directory whose home this is.
    Map(InodeId),
    /// So many inode ids, never given before or again.
    FreshInodes(u64),
    /// Rows of an inode that nobody knows yet, or that no name reaches any more: applied in order, appended before
    /// the answer, without a vote.
    Apply(Vec<Change>),
    /// First phase of a several-shard change: check, write the intent, fsync, lock. Refused where somebody has one of the inodes
    /// open.
    Prepare(TransactionId, IntentRow, Vec<InodeId>),
    /// As `Prepare`, in memory alone: only rows of a removed directory are to go.
    Hold(TransactionId, IntentRow),
    /// The removals that these were held for are durable: the rows go. Appended before the answer.
    Remove(Vec<TransactionId>),
    /// Second phase: apply the intent or drop it; fsynced before the answer. Done twice it does nothing.
    Resolve {
        transaction: TransactionId,
        commit: bool,
    },
    /// Whether the change is committed; one that is undecided is aborted by the question.
    Outcome(TransactionId),
    /// A split is about to make this partition: the home's map must know of it before it is live.
    LearnMap {
        directory: InodeId,
        map: PartitionMap,
    },
    /// Split, to the target: drop what an aborted adoption left, be ready for the rows of this attempt and no other.
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
    /// All rows are sent: fsync, answer how many there are.
    ImportEnd {
        directory: InodeId,
        attempt: SplitAttempt,
        partition: Row,
    },
    /// The source has committed: be live.
    ImportLive {
        directory: InodeId,
        index: PartitionIndex,
    },
    /// To the source, from one who misses partition `index`: was it split off? If not, split it off now.
    SplitOutcome {
        directory: InodeId,
        index: PartitionIndex,
    },
    /// Nobody has this inode open any more: if it has no name, it ends.
    Reap(InodeId),
    /// Serialises renames of directories across parents; held until `UnlockRenames`.
    LockRenames(u64),
    UnlockRenames(u64),
    /// Whether it is held as this one: the shard may have been opened again since.
    HoldsRenames(u64),
}

impl PeerCall {
    /// Whether it can be answered without changing anything.
    pub fn only_reads(&self) -> bool {
        matches!(self, PeerCall::Fetch(_) | PeerCall::Map(_) | PeerCall::SplitOutcome { .. })
    }
}

#[derive(Clone, Debug)]
pub enum PeerReply {
    Done,
    Rows(Vec<ForeignRow>),
    /// To `FetchToRemove`: nobody else sees or changes them until it is decided.
    Held(Vec<ForeignRow>),
    Map(PartitionMap),
    /// The partition that held these keys was cut.
    Moved(InodeId, PartitionMap),
    InodesFrom(u64),
    Vote(bool),
    Committed(bool),
    Imported {
        entries: u64,
        subdirectories: u64,
    },
    Split(SplitState),
    /// Try again after a moment.
    Busy,
    /// The directory (or what else was asked for) does not exist.
    Absent,
    Failed(Cause),
}

impl PeerReply {
    /// What it means to who asked for something else, while `doing` that.
    pub fn unexpected(self, doing: impl fmt::Display) -> ShardRefusal {
        ShardRefusal::Failed(match self {
            PeerReply::Failed(cause) => cause.met(doing),
            other => Cause::from(format!("{doing}: {other:?}")),
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitState {
    /// The partition asked for is the target's: it may be live.
    Committed,
    /// It is still the source's, which is working on it.
    Pending,
}

pub type PeerFuture<'a> = Pin<Box<dyn Future<Output = PeerReply> + 'a>>;

/// The other shards of the volume. A call that cannot be delivered within its deadline answers `Failed`.
pub trait Peers {
    fn call(&self, shard: ShardId, call: PeerCall) -> PeerFuture<'_>;

    /// Whether the asking shard's own worker serves this one too.
    fn is_near(&self, shard: ShardId) -> bool;

    /// The shard itself, if it is near and open.
    fn near(&self, shard: ShardId) -> Option<Rc<Shard>>;
}
