//! One message between shards of every kind.

use crate::peer::{
    FileCall, FileReply, FileUse, MeasureTime, MeasureVerdict, Measurement, OpenedFor, Openness, OtherWriters,
    PeerCall, PeerReply, PeerRequest, PeerResponse, ShardTerm, SizeUse, SplitAttempt, SplitState,
};
use crate::{Change, EntryBody, EntryRow, IntentRow, Key, OrphanRow, PartitionRow, PartitionState, ReadRecord};
use crate::{ReplyRecord, Row, TransactionId};
use bytes::Bytes;
use std::time::Duration;
use varve_types::{
    Cause, Epoch, Errno, FileKind, InodeId, Mode, Name, NameHash, PartitionIndex, PartitionMap, SessionId, ShardCount,
    ShardId, Timestamp,
};

const DIRECTORY: InodeId = InodeId(0x0007_0000_0000_000a);
const TRANSACTION: TransactionId = TransactionId { coordinator: ShardId(1), epoch: Epoch(3), counter: 4 };
const ATTEMPT: SplitAttempt = SplitAttempt { epoch: Epoch(3), number: 2 };

/// `call` as shard 1 sends it to shard 2 in its third term.
pub fn peer_request(call: PeerCall) -> PeerRequest {
    PeerRequest {
        from: ShardTerm { shard: ShardId(1), term: Epoch(3) },
        to: ShardId(2),
        term: Some(Epoch(300)),
        id: 5,
        deadline: Duration::from_millis(1000),
        call,
    }
}

/// `reply` as shard 2 sends it.
pub fn peer_response(reply: PeerReply) -> PeerResponse {
    PeerResponse { id: 5, from: ShardTerm { shard: ShardId(2), term: Epoch(300) }, reply }
}

fn name() -> Name {
    Name::new(b"n").expect("a valid name")
}

fn map() -> PartitionMap {
    let mut map = PartitionMap::whole(ShardCount::new(4).expect("a power of two"));
    map.add(PartitionIndex(1));
    map
}

fn partition() -> Row {
    Row::Partition(PartitionRow {
        index: PartitionIndex(1),
        depth: 1,
        state: PartitionState::Incoming,
        mode: Mode(0o755),
        uid: 0,
        gid: 1,
        entries: 3,
        subdirectories: 2,
        mtime: Timestamp { seconds: 9, nanoseconds: 5 },
        map: map(),
    })
}

fn changes() -> Vec<Change> {
    let entry = EntryRow { inode: InodeId(9), body: EntryBody::Reference(FileKind::Regular) };
    vec![
        Change::Delete(Key::Directory(DIRECTORY)),
        Change::put(Key::Entry(DIRECTORY, name()), Row::Entry(entry)),
        Change::Tally {
            directory: DIRECTORY,
            name: name(),
            entries: 1,
            subdirectories: -1,
            at: Timestamp { seconds: 1, nanoseconds: 0 },
        },
    ]
}

fn replies() -> Vec<ReplyRecord> {
    let about = Some((DIRECTORY, NameHash(16)));
    vec![ReplyRecord { session: SessionId(1), slot: 2, number: 3, about, reply: Bytes::from_static(b"ok") }]
}

fn intent() -> IntentRow {
    IntentRow {
        participants: vec![ShardId(2)],
        changes: changes(),
        reads: vec![ReadRecord { key: Key::Directory(DIRECTORY), digest: Some(300) }],
        reply: None,
    }
}

pub fn peer_calls() -> Vec<(&'static str, PeerCall)> {
    let directory = DIRECTORY;
    vec![
        ("fetch", PeerCall::Fetch(vec![Key::Directory(directory), Key::DirectoryMoves])),
        ("fetch-to-remove", PeerCall::FetchToRemove(TRANSACTION, vec![Key::Directory(directory)])),
        ("map", PeerCall::Map(directory)),
        ("fresh-inodes", PeerCall::FreshInodes(64)),
        ("apply", PeerCall::Apply(changes())),
        ("prepare", PeerCall::Prepare(TRANSACTION, intent(), vec![InodeId(9)], Some(SessionId(5)))),
        ("resolve", PeerCall::Resolve { transaction: TRANSACTION, commit: true }),
        ("settle", PeerCall::Settle(vec![TRANSACTION, TRANSACTION])),
        ("outcome", PeerCall::Outcome(TRANSACTION)),
        ("is-prepared", PeerCall::IsPrepared(TRANSACTION)),
        ("learn-map", PeerCall::LearnMap { directory, map: map() }),
        ("import-begin", PeerCall::ImportBegin { directory, attempt: ATTEMPT }),
        ("import-rows", PeerCall::ImportRows { directory, attempt: ATTEMPT, changes: changes(), replies: replies() }),
        ("import-end", PeerCall::ImportEnd { directory, attempt: ATTEMPT, partition: partition() }),
        ("import-live", PeerCall::ImportLive { directory, index: PartitionIndex(1) }),
        ("split-outcome", PeerCall::SplitOutcome { directory, index: PartitionIndex(1) }),
    ]
    .into_iter()
    .chain(file_calls().map(|(about, call)| (about, PeerCall::Files(call))))
    .collect()
}

fn file_calls() -> [(&'static str, FileCall); 6] {
    let (session, inode, by) = (SessionId(1), InodeId(9), (2, 3));
    let opened = Some(OpenedFor::Writing);
    let size = Some(SizeUse::Changes(OtherWriters::Perhaps));
    let measured = SizeUse::Measured(by, MeasureTime::Underway);
    [
        ("files-are-open", FileCall::AreOpen(vec![inode, InodeId(10)])),
        ("files-register-open", FileCall::Register(FileUse { session, inode, opened, size })),
        ("files-register-size", FileCall::Register(FileUse::size(session, inode, measured))),
        ("files-has-open", FileCall::HasOpen { session, inode, writes: true, or_changed: false }),
        ("files-judge", FileCall::Judge(Measurement { session, inode, by, time: MeasureTime::Last })),
        ("files-size-changed", FileCall::SizeChanged(inode)),
    ]
}

fn file_replies() -> [(&'static str, FileReply); 6] {
    let wait = Duration::from_millis(300);
    [
        ("files-openness", FileReply::Openness(vec![Openness::Closed, Openness::Perhaps, Openness::Open])),
        ("files-registered", FileReply::Registered { writer_gone: true }),
        ("files-has-open", FileReply::HasOpen(false)),
        ("files-judged", FileReply::Judged(MeasureVerdict::Right)),
        ("files-writers-unknown", FileReply::Judged(MeasureVerdict::WritersUnknown(wait))),
        ("files-done", FileReply::Done),
    ]
}

pub fn peer_replies() -> Vec<(&'static str, PeerReply)> {
    let orphan = Row::Orphan(OrphanRow { since: Timestamp { seconds: 1, nanoseconds: 0 } });
    vec![
        ("done", PeerReply::Done),
        ("rows", PeerReply::Rows(vec![None, Some(orphan)])),
        ("prepared", PeerReply::Prepared(vec![Some(partition())])),
        ("map", PeerReply::Map(map())),
        ("moved", PeerReply::Moved(DIRECTORY, map())),
        ("inodes-from", PeerReply::InodesFrom(300)),
        ("vote", PeerReply::Vote(true)),
        ("committed", PeerReply::Committed(false)),
        ("imported", PeerReply::Imported { entries: 3, subdirectories: 2 }),
        ("split-committed", PeerReply::Split(SplitState::Committed)),
        ("split-pending", PeerReply::Split(SplitState::Pending)),
        ("busy", PeerReply::Busy),
        ("absent", PeerReply::Absent),
        ("failed", PeerReply::Failed(Cause { errno: Errno::ENOSPC, reason: "full".to_owned() })),
        ("wrong-term", PeerReply::WrongTerm),
        ("superseded", PeerReply::Superseded(Epoch(4))),
        ("repeated", PeerReply::Repeated),
    ]
    .into_iter()
    .chain(file_replies().map(|(about, reply)| (about, PeerReply::Files(reply))))
    .chain([("elsewhere", PeerReply::Elsewhere)])
    .collect()
}
