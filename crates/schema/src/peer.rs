//! The protocol between shards: calls, replies and their envelopes. [`codec`] encodes them; `formats/peer.md` describes
//! the bytes, and what a caller does after a reply that it does not get.
//!
//! A request is sent once, names the caller's term and the term that the caller knows of the called shard, and carries
//! an id that its channel never uses again. So a shard can refuse what arrives twice, late, or from a former owner.

pub mod codec;
mod files;

pub use files::{
    FileCall, FileReply, FileUse, MeasureTime, MeasureVerdict, MeasuredBy, Measurement, OpenedFor, Openness,
    OtherWriters, SizeUse,
};

use crate::{Change, IntentRow, Key, ReplyRecord, Row, TransactionId};
use codec::MessageError;
use std::time::Duration;
use varve_types::{Cause, Epoch, InodeId, PartitionIndex, PartitionMap, SessionId, ShardId};

/// The first byte of every message; incremented when the following bytes change their meaning.
pub const PEER_VERSION: u8 = 1;

/// One ownership of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardTerm {
    pub shard: ShardId,
    pub term: Epoch,
}

impl ShardTerm {
    /// No ownership: a read-only view's requests, which ask for no changes of rows, and replies for a shard that is not
    /// open, or from its table of open files before the server has opened it.
    pub const NONE: Epoch = Epoch(0);
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerRequest {
    pub from: ShardTerm,
    pub to: ShardId,
    /// The called shard's term as the caller knows it. A request without it changes no rows.
    pub term: Option<Epoch>,
    /// Numbers the requests of one term of the caller to one shard, from 1.
    pub id: u64,
    /// How long the caller still waits when it sends the request, in whole milliseconds.
    pub deadline: Duration,
    pub call: PeerCall,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerResponse {
    /// The request's.
    pub id: u64,
    pub from: ShardTerm,
    pub reply: PeerReply,
}

/// An attempt at a split: the epoch of its source, and its number in that epoch. A later attempt compares greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SplitAttempt {
    pub epoch: Epoch,
    pub number: u64,
}

/// A row of another shard, as it was when it was fetched.
pub type ForeignRow = Option<Row>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerCall {
    /// Rows of this shard; waits for rows that an undecided change has locked.
    Fetch(Vec<Key>),
    /// Like `Fetch`, for rows of a directory to be removed. If they are all its rows and it is empty, this also prepares
    /// the removal, as `Prepare` does; the reply is then `Prepared`.
    FetchToRemove(TransactionId, Vec<Key>),
    /// The partition map of a directory whose home is this shard.
    Map(InodeId),
    /// Allocates this many inode ids, which are never allocated again.
    FreshInodes(u64),
    /// Rows of one inode that no other request knows yet or that no name reaches any more: applied in order and
    /// appended before the reply, without a vote.
    Apply(Vec<Change>),
    /// A participant's part of a cross-shard change: check, write the intent, lock, and fsync, unless the part is one of
    /// a removal. Refused if a session has one of the inodes open, or if a session other than the given one holds a
    /// lease that the change ends.
    Prepare(TransactionId, IntentRow, Vec<InodeId>, Option<SessionId>),
    /// Apply or drop the intent; appended before the reply. Idempotent.
    Resolve {
        transaction: TransactionId,
        commit: bool,
    },
    /// These transactions are on stable storage as committed: apply intents that are not applied, fsync, and delete the
    /// marks.
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
    /// About open files of sessions whose numbers are this shard's. The table of open files belongs to the server that
    /// serves the shard, and outlives the terms there. It answers even if the shard is not open.
    Files(FileCall),
}

impl PeerCall {
    /// Whether the call ends something that this shard has begun or prepared, or only asks for it. A shard that is being
    /// handed over still serves such calls, because other calls in progress wait for them.
    pub fn ends_something(&self) -> bool {
        matches!(self, PeerCall::Resolve { .. } | PeerCall::Settle(_) | PeerCall::Outcome(_) | PeerCall::IsPrepared(_))
    }

    /// Whether the call can be served without any change of rows.
    pub fn only_reads(&self) -> bool {
        matches!(self, PeerCall::Fetch(_) | PeerCall::Map(_) | PeerCall::SplitOutcome { .. } | PeerCall::Files(_))
    }

    /// Whether a caller sends the call again after [`PeerReply::WrongTerm`], in the term that it has learned. The other
    /// calls are large: the caller decides or begins again.
    pub fn is_sent_again(&self) -> bool {
        !matches!(self, PeerCall::Apply(_) | PeerCall::Prepare(..) | PeerCall::ImportRows { .. })
    }

    /// The partition maps in the call, whose number of shards the called shard must check.
    pub fn maps(&self) -> Vec<&PartitionMap> {
        match self {
            PeerCall::LearnMap { map, .. } => vec![map],
            PeerCall::ImportEnd { partition, .. } => map_of(partition).into_iter().collect(),
            PeerCall::Apply(changes) | PeerCall::ImportRows { changes, .. } => maps_of(changes),
            PeerCall::Prepare(_, intent, ..) => maps_of(&intent.changes),
            _ => Vec::new(),
        }
    }
}

fn map_of(row: &Row) -> Option<&PartitionMap> {
    match row {
        Row::Partition(row) => Some(&row.map),
        Row::Directory(row) => Some(&row.map),
        _ => None,
    }
}

fn maps_of(changes: &[Change]) -> Vec<&PartitionMap> {
    let mut maps = Vec::new();
    for change in changes {
        if let Change::Put(_, row) = change {
            maps.extend(map_of(row));
        }
    }
    maps
}

impl PeerRequest {
    /// The request as its bytes carry it: all that reaches another process.
    pub fn through_bytes(&self) -> Result<PeerRequest, MessageError> {
        codec::decode_request(&codec::encode_request(self)?)
    }
}

impl PeerResponse {
    /// The response as its bytes carry it.
    pub fn through_bytes(&self) -> Result<PeerResponse, MessageError> {
        codec::decode_response(&codec::encode_response(self)?)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerReply {
    Done,
    Rows(Vec<ForeignRow>),
    /// Reply to `FetchToRemove`: the removal is prepared, so no other request sees or changes the rows until it is
    /// decided.
    Prepared(Vec<ForeignRow>),
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
    /// Not carried out, or not yet. Retry after a moment.
    Busy,
    /// The requested directory or other object does not exist.
    Absent,
    /// The outcome is unknown.
    Failed(Cause),
    /// Not carried out: the request names another term of this shard than the response, or none and asks for a change.
    WrongTerm,
    /// Not carried out: the calling shard has this later term, so the caller owns it no more.
    Superseded(Epoch),
    /// A request with this id has arrived before, and this one is not carried out again: the outcome is unknown.
    Repeated,
    /// Reply to `Files`.
    Files(FileReply),
    /// From a server that does not own the shard: not carried out. The caller's server sends the request again, to the
    /// owner that its next map names, so that no shard gets this reply.
    Elsewhere,
}

impl PeerReply {
    /// The partition maps in the reply, whose number of shards the caller must check.
    pub fn maps(&self) -> Vec<&PartitionMap> {
        match self {
            PeerReply::Map(map) | PeerReply::Moved(_, map) => vec![map],
            PeerReply::Rows(rows) | PeerReply::Prepared(rows) => rows.iter().flatten().filter_map(map_of).collect(),
            _ => Vec::new(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SplitState {
    /// The requested partition is the target's: it may go live.
    Committed,
    /// The partition is still the source's, which is working on the split.
    Pending,
}
