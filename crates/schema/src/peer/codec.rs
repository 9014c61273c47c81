//! Encoding of messages between shards, as `formats/peer.md` describes it: [`PEER_VERSION`], then postcard of the types
//! below. Keys and rows in a message have the bytes that they have in a table. Decoding accepts any bytes, and takes
//! memory only for what has arrived.

mod files;

use super::{
    ForeignRow, PEER_VERSION, PeerCall, PeerReply, PeerRequest, PeerResponse, ShardTerm, SplitAttempt, SplitState,
};
use crate::codec::{decode_key, decode_row, encode_key, encode_row};
use crate::stored::{EncodedBytes, StoredChange, StoredIntent, StoredMap, StoredReply, Unsound, list};
use crate::{Change, Key, Kind, ReplyRecord, Row, TransactionId};
use files::{WireFileCall, WireFileReply};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use varve_types::{Cause, Epoch, Errno, InodeId, PartitionIndex, SessionId, ShardId};

/// Longest message: the body of one frame. The longest are steps of a split, which end at 1 MiB of content, and rows of
/// files with 1 MiB of content each.
pub const MESSAGE_BYTES_MAX: usize = varve_proto::frame::FRAME_BYTES_MAX;

/// Bytes of a reason that are sent: enough for an error with its context. The rest is cut off.
pub const REASON_BYTES_MAX: usize = 1024;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    #[error("a message of {0} bytes is above the limit of {MESSAGE_BYTES_MAX}")]
    TooLong(usize),
    #[error("a message's version is {found}, not {PEER_VERSION}: it was sent by another version of Varve")]
    Version { found: u8 },
    #[error("a message of {0} bytes is malformed: {1}")]
    Malformed(usize, String),
}

pub fn encode_request(request: &PeerRequest) -> Result<Vec<u8>, MessageError> {
    encode(&WireRequest::from(request))
}

pub fn decode_request(bytes: &[u8]) -> Result<PeerRequest, MessageError> {
    decode(bytes, WireRequest::to_request)
}

pub fn encode_response(response: &PeerResponse) -> Result<Vec<u8>, MessageError> {
    encode(&WireResponse::from(response))
}

pub fn decode_response(bytes: &[u8]) -> Result<PeerResponse, MessageError> {
    decode(bytes, WireResponse::to_response)
}

fn encode<M: Serialize>(message: &M) -> Result<Vec<u8>, MessageError> {
    let mut out = vec![PEER_VERSION];
    varve_proto::append(message, &mut out).map_err(|error| MessageError::Malformed(0, error.to_string()))?;
    if out.len() > MESSAGE_BYTES_MAX { Err(MessageError::TooLong(out.len())) } else { Ok(out) }
}

fn decode<'a, W: Deserialize<'a>, M>(
    bytes: &'a [u8],
    read: impl FnOnce(&W) -> Result<M, Unsound>,
) -> Result<M, MessageError> {
    let malformed = |why: String| MessageError::Malformed(bytes.len(), why);
    if bytes.len() > MESSAGE_BYTES_MAX {
        return Err(MessageError::TooLong(bytes.len()));
    }
    let body = match bytes.split_first() {
        Some((&PEER_VERSION, body)) => body,
        Some((&found, _)) => return Err(MessageError::Version { found }),
        None => return Err(malformed("no version".to_owned())),
    };
    match postcard::take_from_bytes::<W>(body) {
        Ok((message, [])) => read(&message).map_err(malformed),
        Ok((_, rest)) => Err(malformed(format!("{} bytes too many", rest.len()))),
        Err(error) => Err(malformed(error.to_string())),
    }
}

#[derive(Clone, Copy, Serialize, Deserialize)]
struct WireTerm(u16, u64);

impl From<ShardTerm> for WireTerm {
    fn from(term: ShardTerm) -> WireTerm {
        WireTerm(term.shard.0, term.term.0)
    }
}

impl From<WireTerm> for ShardTerm {
    fn from(WireTerm(shard, term): WireTerm) -> ShardTerm {
        ShardTerm { shard: ShardId(shard), term: Epoch(term) }
    }
}

#[derive(Serialize, Deserialize)]
struct WireRequest<'a> {
    from: WireTerm,
    to: u16,
    term: Option<u64>,
    id: u64,
    deadline_ms: u32,
    #[serde(borrow)]
    call: WireCall<'a>,
}

impl<'a> From<&'a PeerRequest> for WireRequest<'a> {
    fn from(request: &'a PeerRequest) -> WireRequest<'a> {
        WireRequest {
            from: request.from.into(),
            to: request.to.0,
            term: request.term.map(|term| term.0),
            id: request.id,
            deadline_ms: u32::try_from(request.deadline.as_millis()).unwrap_or(u32::MAX),
            call: (&request.call).into(),
        }
    }
}

impl WireRequest<'_> {
    fn to_request(&self) -> Result<PeerRequest, Unsound> {
        Ok(PeerRequest {
            from: self.from.into(),
            to: ShardId(self.to),
            term: self.term.map(Epoch),
            id: self.id,
            deadline: Duration::from_millis(self.deadline_ms.into()),
            call: self.call.to_call()?,
        })
    }
}

#[derive(Serialize, Deserialize)]
struct WireResponse<'a> {
    id: u64,
    from: WireTerm,
    #[serde(borrow)]
    reply: WireReply<'a>,
}

impl<'a> From<&'a PeerResponse> for WireResponse<'a> {
    fn from(response: &'a PeerResponse) -> WireResponse<'a> {
        WireResponse { id: response.id, from: response.from.into(), reply: (&response.reply).into() }
    }
}

impl WireResponse<'_> {
    fn to_response(&self) -> Result<PeerResponse, Unsound> {
        Ok(PeerResponse { id: self.id, from: self.from.into(), reply: self.reply.to_reply()? })
    }
}

/// Coordinator, epoch, counter.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct WireTransaction(u16, u64, u64);

impl From<&TransactionId> for WireTransaction {
    fn from(id: &TransactionId) -> WireTransaction {
        WireTransaction(id.coordinator.0, id.epoch.0, id.counter)
    }
}

impl From<&WireTransaction> for TransactionId {
    fn from(&WireTransaction(coordinator, epoch, counter): &WireTransaction) -> TransactionId {
        TransactionId { coordinator: ShardId(coordinator), epoch: Epoch(epoch), counter }
    }
}

/// Epoch, number.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct WireAttempt(u64, u64);

impl From<&SplitAttempt> for WireAttempt {
    fn from(attempt: &SplitAttempt) -> WireAttempt {
        WireAttempt(attempt.epoch.0, attempt.number)
    }
}

impl From<&WireAttempt> for SplitAttempt {
    fn from(&WireAttempt(epoch, number): &WireAttempt) -> SplitAttempt {
        SplitAttempt { epoch: Epoch(epoch), number }
    }
}

/// The variants of [`PeerCall`], in the same order.
#[derive(Serialize, Deserialize)]
enum WireCall<'a> {
    Fetch(#[serde(borrow, deserialize_with = "list")] Vec<EncodedBytes<'a>>),
    FetchToRemove(WireTransaction, #[serde(borrow, deserialize_with = "list")] Vec<EncodedBytes<'a>>),
    Map(u64),
    FreshInodes(u64),
    Apply(#[serde(borrow, deserialize_with = "list")] Vec<StoredChange<'a>>),
    /// The session is the last field.
    Prepare(
        WireTransaction,
        #[serde(borrow)] StoredIntent<'a>,
        #[serde(deserialize_with = "list")] Vec<u64>,
        Option<u64>,
    ),
    Resolve(WireTransaction, bool),
    Settle(#[serde(deserialize_with = "list")] Vec<WireTransaction>),
    Outcome(WireTransaction),
    IsPrepared(WireTransaction),
    LearnMap(u64, #[serde(borrow)] StoredMap<'a>),
    ImportBegin(u64, WireAttempt),
    ImportRows(
        u64,
        WireAttempt,
        #[serde(borrow, deserialize_with = "list")] Vec<StoredChange<'a>>,
        #[serde(borrow, deserialize_with = "list")] Vec<StoredReply<'a>>,
    ),
    /// A partition row.
    ImportEnd(u64, WireAttempt, #[serde(borrow)] EncodedBytes<'a>),
    ImportLive(u64, u16),
    SplitOutcome(u64, u16),
    Files(WireFileCall),
}

impl<'a> From<&'a PeerCall> for WireCall<'a> {
    fn from(call: &'a PeerCall) -> WireCall<'a> {
        match call {
            PeerCall::Fetch(keys) => WireCall::Fetch(keys_out(keys)),
            PeerCall::FetchToRemove(transaction, keys) => WireCall::FetchToRemove(transaction.into(), keys_out(keys)),
            PeerCall::Map(directory) => WireCall::Map(directory.0),
            PeerCall::FreshInodes(count) => WireCall::FreshInodes(*count),
            PeerCall::Apply(changes) => WireCall::Apply(all(changes)),
            PeerCall::Prepare(transaction, intent, unopened, session) => {
                let unopened = unopened.iter().map(|inode| inode.0).collect();
                WireCall::Prepare(transaction.into(), intent.into(), unopened, session.map(|session| session.0))
            }
            PeerCall::Resolve { transaction, commit } => WireCall::Resolve(transaction.into(), *commit),
            PeerCall::Settle(transactions) => WireCall::Settle(all(transactions)),
            PeerCall::Outcome(transaction) => WireCall::Outcome(transaction.into()),
            PeerCall::IsPrepared(transaction) => WireCall::IsPrepared(transaction.into()),
            PeerCall::LearnMap { directory, map } => WireCall::LearnMap(directory.0, map.into()),
            PeerCall::ImportBegin { directory, attempt } => WireCall::ImportBegin(directory.0, attempt.into()),
            PeerCall::ImportRows { directory, attempt, changes, replies } => {
                WireCall::ImportRows(directory.0, attempt.into(), all(changes), all(replies))
            }
            PeerCall::ImportEnd { directory, attempt, partition } => {
                WireCall::ImportEnd(directory.0, attempt.into(), encode_row(partition).into())
            }
            PeerCall::ImportLive { directory, index } => WireCall::ImportLive(directory.0, index.0),
            PeerCall::SplitOutcome { directory, index } => WireCall::SplitOutcome(directory.0, index.0),
            PeerCall::Files(call) => WireCall::Files(call.into()),
        }
    }
}

impl WireCall<'_> {
    fn to_call(&self) -> Result<PeerCall, Unsound> {
        Ok(match self {
            WireCall::Fetch(keys) => PeerCall::Fetch(keys_in(keys)?),
            WireCall::FetchToRemove(transaction, keys) => PeerCall::FetchToRemove(transaction.into(), keys_in(keys)?),
            WireCall::Map(directory) => PeerCall::Map(InodeId(*directory)),
            WireCall::FreshInodes(count) => PeerCall::FreshInodes(*count),
            WireCall::Apply(changes) => PeerCall::Apply(changes_in(changes)?),
            WireCall::Prepare(transaction, intent, unopened, session) => {
                let unopened = unopened.iter().map(|inode| InodeId(*inode)).collect();
                PeerCall::Prepare(transaction.into(), intent.to_row()?, unopened, session.map(SessionId))
            }
            WireCall::Resolve(transaction, commit) => {
                PeerCall::Resolve { transaction: transaction.into(), commit: *commit }
            }
            WireCall::Settle(transactions) => PeerCall::Settle(all(transactions)),
            WireCall::Outcome(transaction) => PeerCall::Outcome(transaction.into()),
            WireCall::IsPrepared(transaction) => PeerCall::IsPrepared(transaction.into()),
            WireCall::LearnMap(directory, map) => {
                PeerCall::LearnMap { directory: InodeId(*directory), map: map.to_map()? }
            }
            WireCall::ImportBegin(directory, attempt) => {
                PeerCall::ImportBegin { directory: InodeId(*directory), attempt: attempt.into() }
            }
            WireCall::ImportRows(directory, attempt, changes, replies) => PeerCall::ImportRows {
                directory: InodeId(*directory),
                attempt: attempt.into(),
                changes: changes_in(changes)?,
                replies: replies.iter().map(StoredReply::to_record).collect::<Vec<ReplyRecord>>(),
            },
            WireCall::ImportEnd(directory, attempt, partition) => PeerCall::ImportEnd {
                directory: InodeId(*directory),
                attempt: attempt.into(),
                partition: decode_row(Kind::Partition, &partition.0).map_err(|error| error.to_string())?,
            },
            WireCall::ImportLive(directory, index) => {
                PeerCall::ImportLive { directory: InodeId(*directory), index: PartitionIndex(*index) }
            }
            WireCall::SplitOutcome(directory, index) => {
                PeerCall::SplitOutcome { directory: InodeId(*directory), index: PartitionIndex(*index) }
            }
            WireCall::Files(call) => PeerCall::Files(call.into()),
        })
    }
}

/// The variants of [`PeerReply`], in the same order.
#[derive(Serialize, Deserialize)]
enum WireReply<'a> {
    Done,
    Rows(#[serde(borrow, deserialize_with = "list")] Vec<WireRow<'a>>),
    Prepared(#[serde(borrow, deserialize_with = "list")] Vec<WireRow<'a>>),
    Map(#[serde(borrow)] StoredMap<'a>),
    Moved(u64, #[serde(borrow)] StoredMap<'a>),
    InodesFrom(u64),
    Vote(bool),
    Committed(bool),
    Imported(u64, u64),
    Split(WireSplit),
    Busy,
    Absent,
    Failed(i32, &'a str),
    WrongTerm,
    Superseded(u64),
    Repeated,
    Files(WireFileReply),
    Elsewhere,
}

#[derive(Clone, Copy, Serialize, Deserialize)]
enum WireSplit {
    Committed,
    Pending,
}

/// The tag of the row's kind, and the row.
#[derive(Serialize, Deserialize)]
struct WireRow<'a>(#[serde(borrow)] Option<(u8, EncodedBytes<'a>)>);

impl From<&ForeignRow> for WireRow<'_> {
    fn from(row: &ForeignRow) -> Self {
        WireRow(row.as_ref().map(|row| (row.kind().tag(), encode_row(row).into())))
    }
}

impl WireRow<'_> {
    fn to_row(&self) -> Result<ForeignRow, Unsound> {
        let decoded = |(tag, row): &(u8, EncodedBytes<'_>)| -> Result<Row, Unsound> {
            let kind = Kind::ALL.into_iter().find(|kind| kind.tag() == *tag);
            let kind = kind.ok_or_else(|| format!("no rows have the tag {tag}"))?;
            decode_row(kind, &row.0).map_err(|error| error.to_string())
        };
        self.0.as_ref().map(decoded).transpose()
    }
}

impl<'a> From<&'a PeerReply> for WireReply<'a> {
    fn from(reply: &'a PeerReply) -> WireReply<'a> {
        match reply {
            PeerReply::Done => WireReply::Done,
            PeerReply::Rows(rows) => WireReply::Rows(all(rows)),
            PeerReply::Prepared(rows) => WireReply::Prepared(all(rows)),
            PeerReply::Map(map) => WireReply::Map(map.into()),
            PeerReply::Moved(directory, map) => WireReply::Moved(directory.0, map.into()),
            PeerReply::InodesFrom(first) => WireReply::InodesFrom(*first),
            PeerReply::Vote(vote) => WireReply::Vote(*vote),
            PeerReply::Committed(committed) => WireReply::Committed(*committed),
            PeerReply::Imported { entries, subdirectories } => WireReply::Imported(*entries, *subdirectories),
            PeerReply::Split(SplitState::Committed) => WireReply::Split(WireSplit::Committed),
            PeerReply::Split(SplitState::Pending) => WireReply::Split(WireSplit::Pending),
            PeerReply::Busy => WireReply::Busy,
            PeerReply::Absent => WireReply::Absent,
            PeerReply::Failed(cause) => WireReply::Failed(cause.errno.number(), shortened(&cause.reason)),
            PeerReply::WrongTerm => WireReply::WrongTerm,
            PeerReply::Superseded(term) => WireReply::Superseded(term.0),
            PeerReply::Repeated => WireReply::Repeated,
            PeerReply::Files(reply) => WireReply::Files(reply.into()),
            PeerReply::Elsewhere => WireReply::Elsewhere,
        }
    }
}

impl WireReply<'_> {
    fn to_reply(&self) -> Result<PeerReply, Unsound> {
        let rows = |rows: &[WireRow<'_>]| rows.iter().map(WireRow::to_row).collect::<Result<_, _>>();
        Ok(match self {
            WireReply::Done => PeerReply::Done,
            WireReply::Rows(found) => PeerReply::Rows(rows(found)?),
            WireReply::Prepared(found) => PeerReply::Prepared(rows(found)?),
            WireReply::Map(map) => PeerReply::Map(map.to_map()?),
            WireReply::Moved(directory, map) => PeerReply::Moved(InodeId(*directory), map.to_map()?),
            WireReply::InodesFrom(first) => PeerReply::InodesFrom(*first),
            WireReply::Vote(vote) => PeerReply::Vote(*vote),
            WireReply::Committed(committed) => PeerReply::Committed(*committed),
            WireReply::Imported(entries, subdirectories) => {
                PeerReply::Imported { entries: *entries, subdirectories: *subdirectories }
            }
            WireReply::Split(WireSplit::Committed) => PeerReply::Split(SplitState::Committed),
            WireReply::Split(WireSplit::Pending) => PeerReply::Split(SplitState::Pending),
            WireReply::Busy => PeerReply::Busy,
            WireReply::Absent => PeerReply::Absent,
            WireReply::Failed(_, reason) if reason.len() > REASON_BYTES_MAX => {
                return Err(format!("a reason of {} bytes", reason.len()));
            }
            WireReply::Failed(errno, reason) => {
                PeerReply::Failed(Cause { errno: Errno::from_number(*errno), reason: (*reason).to_owned() })
            }
            WireReply::WrongTerm => PeerReply::WrongTerm,
            WireReply::Superseded(term) => PeerReply::Superseded(Epoch(*term)),
            WireReply::Repeated => PeerReply::Repeated,
            WireReply::Files(reply) => PeerReply::Files(reply.into()),
            WireReply::Elsewhere => PeerReply::Elsewhere,
        })
    }
}

fn all<'a, T, W: From<&'a T>>(items: &'a [T]) -> Vec<W> {
    items.iter().map(W::from).collect()
}

fn keys_out<'a>(keys: &[Key]) -> Vec<EncodedBytes<'a>> {
    keys.iter().map(|key| encode_key(key).into()).collect()
}

fn keys_in(keys: &[EncodedBytes<'_>]) -> Result<Vec<Key>, Unsound> {
    keys.iter().map(|key| decode_key(&key.0).map_err(|error| error.to_string())).collect()
}

fn changes_in(changes: &[StoredChange<'_>]) -> Result<Vec<Change>, Unsound> {
    changes.iter().map(StoredChange::to_change).collect()
}

/// The first [`REASON_BYTES_MAX`] bytes of a reason, in whole characters.
fn shortened(reason: &str) -> &str {
    let mut end = reason.len().min(REASON_BYTES_MAX);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    &reason[..end]
}

#[cfg(test)]
mod tests;
