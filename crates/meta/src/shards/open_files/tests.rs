use super::*;
use crate::shards::SESSIONS_RETURN;
use varve_types::ShardId;

const FILE: InodeId = InodeId(77);
const ONE: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);
const NOW: Instant = Instant(Duration::from_secs(1));

impl OpenFiles {
    fn measured(&self, session: SessionId, inode: InodeId, by: MeasuredBy, time: MeasureTime) -> bool {
        let right = self.judge(&Measurement { session, inode, by, time }, NOW) == MeasureVerdict::Right;
        self.register(&FileUse::size(session, inode, SizeUse::Measured(by, time)), NOW);
        right
    }

    fn records_size(&self, session: SessionId, inode: InodeId, by: MeasuredBy) -> bool {
        self.measured(session, inode, by, MeasureTime::Last)
    }

    /// Records the size by a call with a new number.
    fn records_size_now(&self, session: SessionId, inode: InodeId) -> bool {
        static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        self.records_size(session, inode, (0, CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
    }

    fn measures_alone(&self, session: SessionId, inode: InodeId) -> bool {
        self.measured(session, inode, (0, 0), MeasureTime::Underway)
    }

    /// Whether a server that does not know all sessions yet knows the writers of the file.
    fn knows_writers(&self, inode: InodeId) -> bool {
        let measurement = Measurement { session: ONE, inode, by: (0, 0), time: MeasureTime::Last };
        !matches!(self.judge(&measurement, NOW), MeasureVerdict::WritersUnknown(_))
    }
}

#[test]
fn sole_writer_records_the_size() {
    let open_files = OpenFiles::default();
    open_files.open(ONE, FILE, true);
    open_files.changes_size(ONE, FILE, OtherWriters::Perhaps);
    open_files.open(OTHER, FILE, false);
    assert!(open_files.has_changed_size(ONE, FILE) && !open_files.has_changed_size(OTHER, FILE));
    assert!(open_files.records_size_now(ONE, FILE), "readers do not matter");
    assert!(!open_files.has_changed_size(ONE, FILE));
}

/// A size is taken only after all other writers are done, and only if it was measured after that.
#[test]
fn last_writer_records_the_size() {
    let open_files = OpenFiles::default();
    for session in [ONE, OTHER] {
        open_files.open(session, FILE, true);
        open_files.changes_size(session, FILE, OtherWriters::Perhaps);
    }
    open_files.release(ONE, FILE);
    assert!(
        !open_files.records_size_now(ONE, FILE),
        "the other one's change came after, and may be missing in the measure"
    );
    assert!(!open_files.records_size_now(ONE, FILE), "the other one still writes");
    open_files.release(OTHER, FILE);
    assert!(!open_files.records_size_now(OTHER, FILE), "may be older than the end of the first one's writing");
    assert!(open_files.records_size_now(OTHER, FILE));
}

/// A finished writer is not waited for, however long the other continues, and need not retry because of the other.
#[test]
fn finished_writer_leaves_size_to_active_writer() {
    let open_files = OpenFiles::default();
    let writes = |session| {
        open_files.open(session, FILE, true);
        open_files.changes_size(session, FILE, OtherWriters::Known);
    };
    writes(ONE);
    writes(OTHER);
    open_files.release(ONE, FILE);
    assert!(!open_files.records_size_now(ONE, FILE));
    assert!(!open_files.has_changed_size(ONE, FILE), "it is not asked again");
    open_files.release(OTHER, FILE);
    assert!(!open_files.records_size_now(OTHER, FILE), "it may have measured before the first was done");
    assert!(open_files.records_size_now(OTHER, FILE));
}

/// Two writers that report in turns, however often, finish: a finished writer does not delay the other.
#[test]
fn finished_writer_does_not_delay_the_other() {
    let open_files = OpenFiles::default();
    for session in [ONE, OTHER] {
        open_files.changes_size(session, FILE, OtherWriters::Known);
    }
    assert!(!open_files.records_size_now(ONE, FILE), "it is done");
    assert!(!open_files.records_size_now(OTHER, FILE), "to be measured after that");
    assert!(!open_files.records_size_now(ONE, FILE));
    assert!(open_files.records_size_now(OTHER, FILE));
}

/// A repeated call, whose reply was lost, reports the size measured before its first arrival.
#[test]
fn retried_call_is_not_a_new_measurement() {
    let open_files = OpenFiles::default();
    open_files.changes_size(ONE, FILE, OtherWriters::Known);
    open_files.size_changed(FILE);
    assert!(!open_files.records_size(ONE, FILE, (3, 8)) && !open_files.records_size(ONE, FILE, (3, 8)));
    assert!(open_files.records_size(ONE, FILE, (3, 9)));
}

/// A writer whose size is rejected because the row has a better one does not keep others from recording theirs.
#[test]
fn rejected_measurement_ends_the_writer() {
    let open_files = OpenFiles::default();
    for session in [ONE, OTHER] {
        open_files.changes_size(session, FILE, OtherWriters::Known);
    }
    open_files.done(ONE, FILE);
    open_files.done(ONE, FILE);
    assert!(!open_files.records_size_now(OTHER, FILE));
    assert!(open_files.records_size_now(OTHER, FILE));
}

/// A session that has a file open and has written nothing is not waited for if all writers are known: it has no size to
/// report.
#[test]
fn idle_writer_is_not_waited_for() {
    for (others, settled) in [(OtherWriters::Known, true), (OtherWriters::Perhaps, false)] {
        let open_files = OpenFiles::default();
        open_files.open(ONE, FILE, true);
        open_files.changes_size(ONE, FILE, others);
        open_files.open(OTHER, FILE, true);
        open_files.release(ONE, FILE);
        assert_eq!(open_files.records_size_now(ONE, FILE), settled, "{others:?}");
    }
}

#[test]
fn truncate_and_session_end_require_a_new_measurement() {
    let open_files = OpenFiles::default();
    open_files.changes_size(ONE, FILE, OtherWriters::Perhaps);
    open_files.size_changed(FILE);
    assert!(!open_files.records_size_now(ONE, FILE));
    assert!(open_files.records_size_now(ONE, FILE));
    open_files.changes_size(OTHER, FILE, OtherWriters::Perhaps);
    open_files.changes_size(ONE, FILE, OtherWriters::Perhaps);
    open_files.end_session(OTHER);
    assert!(!open_files.records_size_now(ONE, FILE));
    assert!(open_files.records_size_now(ONE, FILE));
    assert!(open_files.lock().sizes.writers.is_empty() && open_files.lock().sizes.sessions.is_empty());
}

/// A new server does not know all writers of a file that was stale when it started; it knows those of a file without
/// writers then.
#[test]
fn writers_are_tracked_from_the_first_open() {
    let open_files = OpenFiles::after(SESSIONS_RETURN);
    open_files.changes_size(ONE, FILE, OtherWriters::Perhaps);
    assert!(!open_files.knows_writers(FILE));
    open_files.end_session(ONE);
    open_files.changes_size(ONE, FILE, OtherWriters::Known);
    open_files.changes_size(OTHER, FILE, OtherWriters::Perhaps);
    assert!(open_files.knows_writers(FILE), "the first one found the file settled");
    open_files.end_session(ONE);
    open_files.end_session(OTHER);
    assert!(!open_files.knows_writers(FILE), "nothing is remembered of a file that nobody writes");
}

/// A writer's bytes on disk are recorded only if no other session may have truncated the file since: neither another
/// writer nor one unknown to this server.
#[test]
fn sole_writers_size_is_trusted() {
    let open_files = OpenFiles::default();
    assert!(!open_files.is_written(FILE));
    open_files.open(ONE, FILE, true);
    assert!(open_files.is_written(FILE), "it may be");
    assert!(!open_files.measures_alone(ONE, FILE), "it was granted it by another server");
    assert!(open_files.measures_alone(ONE, FILE));
    open_files.open(OTHER, FILE, false);
    assert!(open_files.measures_alone(ONE, FILE), "readers do not matter");
    assert!(!open_files.measures_alone(OTHER, FILE), "it does not write");
    open_files.size_changed(FILE);
    assert!(!open_files.measures_alone(ONE, FILE), "it may have measured before the cut");
    assert!(open_files.measures_alone(ONE, FILE));
    open_files.open(OTHER, FILE, true);
    assert!(!open_files.measures_alone(ONE, FILE));
    open_files.changes_size(OTHER, FILE, OtherWriters::Perhaps);
    open_files.release(OTHER, FILE);
    assert!(!open_files.measures_alone(ONE, FILE), "the other one has still to sync what it did");
    open_files.end_session(OTHER);
    assert!(!open_files.measures_alone(ONE, FILE), "it may have measured before");
    assert!(open_files.measures_alone(ONE, FILE));
    open_files.release(ONE, FILE);
    assert!(open_files.is_written(FILE), "it has still to settle it");
    assert!(open_files.records_size_now(ONE, FILE) && !open_files.is_written(FILE));
}

/// Sessions of an earlier server may come back for a while after the first opening of the shard: until then a file may
/// be open, and a session may keep one without access.
#[test]
fn sessions_of_an_earlier_server_may_return() {
    let (open_files, reopened) = (OpenFiles::after(SESSIONS_RETURN), NOW.after(Duration::from_secs(10)));
    assert_eq!(open_files.openness(FILE, NOW.after(SESSIONS_RETURN)), Openness::Perhaps, "the shard is not open yet");
    open_files.shard_opens(NOW);
    open_files.shard_opens(reopened);
    assert!(!open_files.is_quiet(reopened));
    assert_eq!(open_files.openness(FILE, reopened), Openness::Perhaps);
    let known = NOW.after(SESSIONS_RETURN);
    assert_eq!(open_files.openness(FILE, known), Openness::Closed);
    assert!(open_files.is_quiet(known));
    let keep = |session| FileUse { session, inode: FILE, opened: Some(OpenedFor::Keeping), size: None };
    open_files.register(&keep(ONE), known);
    assert_eq!(open_files.openness(FILE, known), Openness::Closed, "it comes too late");
    open_files.register(&keep(ONE), reopened);
    assert_eq!(open_files.openness(FILE, known), Openness::Open);
    assert!(!open_files.has_open_to(ONE, FILE, false));
}

const CALLER: ShardId = ShardId(1);

fn request(id: u64, term: Epoch, call: FileCall) -> PeerRequest {
    let from = ShardTerm { shard: CALLER, term };
    let deadline = Duration::from_secs(1);
    PeerRequest { from, to: FILE.shard(), term: None, id, deadline, call: PeerCall::Files(call) }
}

fn reply(open_files: &OpenFiles, request: PeerRequest) -> PeerReply {
    let response = open_files.serve(request, ShardCount::new(4).unwrap(), NOW);
    assert_eq!(response.from, ShardTerm { shard: FILE.shard(), term: ShardTerm::NONE });
    response.reply
}

/// Promise: a table carries out a request of another shard once, and none of an earlier term of that shard, also after
/// it has moved to another worker.
#[test]
fn repeated_and_late_requests_are_refused() {
    let open_files = OpenFiles::default();
    let opened = |session, id, term| request(id, Epoch(term), FileCall::Register(FileUse::open(session, FILE, false)));
    let done = PeerReply::Files(FileReply::Registered { writer_gone: true });
    assert_eq!(reply(&open_files, opened(ONE, 2, 5)), done);
    assert_eq!(reply(&open_files, opened(ONE, 1, 5)), done, "they may arrive in another order");
    open_files.release(ONE, FILE);
    assert_eq!(reply(&open_files, opened(ONE, 2, 5)), PeerReply::Repeated);
    let open_files = OpenFiles::from(open_files.move_away());
    assert_eq!(reply(&open_files, opened(ONE, 1, 5)), PeerReply::Repeated);
    assert_eq!(open_files.openness(FILE, NOW), Openness::Closed);
    assert_eq!(reply(&open_files, opened(OTHER, 1, 6)), done, "a new term numbers anew");
    assert_eq!(reply(&open_files, opened(ONE, 3, 5)), PeerReply::Superseded(Epoch(6)));
    for _ in 0..2 {
        let view = request(
            1,
            ShardTerm::NONE,
            FileCall::HasOpen { session: OTHER, inode: FILE, writes: false, or_changed: false },
        );
        assert_eq!(reply(&open_files, view), PeerReply::Files(FileReply::HasOpen(true)), "a view has no term");
    }
    let of_another = FileCall::AreOpen(vec![FILE, InodeId::new(ShardId(2), 1)]);
    assert!(matches!(reply(&open_files, request(9, Epoch(6), of_another)), PeerReply::Failed(_)));
}

/// Promise: a table refuses a request to another term of its shard than its last one, also after it has moved.
#[test]
fn request_to_another_term_is_refused() {
    let asks = |id, term| PeerRequest { term, ..request(id, Epoch(5), FileCall::AreOpen(vec![FILE])) };
    let served = |open_files: &OpenFiles, request| {
        let response = open_files.serve(request, ShardCount::new(4).unwrap(), NOW);
        (response.from.term, response.reply)
    };
    let closed = || PeerReply::Files(FileReply::Openness(vec![Openness::Closed]));
    let open_files = OpenFiles::default();
    assert_eq!(served(&open_files, asks(1, Some(Epoch(3)))), (ShardTerm::NONE, PeerReply::WrongTerm));
    assert_eq!(served(&open_files, asks(1, None)), (ShardTerm::NONE, closed()), "the shard is not open yet");
    open_files.enter_term(Epoch(3));
    let open_files = OpenFiles::from(open_files.move_away());
    open_files.enter_term(Epoch(2));
    for other in [2, 4] {
        assert_eq!(served(&open_files, asks(2, Some(Epoch(other)))), (Epoch(3), PeerReply::WrongTerm));
    }
    assert_eq!(served(&open_files, asks(2, Some(Epoch(3)))), (Epoch(3), closed()), "no refused id counts");
    assert_eq!(served(&open_files, asks(3, None)), (Epoch(3), closed()));
}

/// Promise: a table that moves keeps the files and the writers of sessions that live, and drops those of others.
#[test]
fn moved_table_drops_ended_sessions() {
    let open_files = OpenFiles::after(SESSIONS_RETURN);
    open_files.shard_opens(NOW);
    open_files.open(ONE, FILE, true);
    open_files.open(OTHER, FILE, false);
    open_files.changes_size(ONE, FILE, OtherWriters::Known);
    let clone = open_files.clone();
    let moved = OpenFiles::from(open_files.move_away());
    assert!(clone.is_empty());
    assert_eq!(moved.until_sessions_known(NOW), SESSIONS_RETURN, "the time goes on");
    moved.end_sessions(|session| session == OTHER);
    assert!(moved.has_open_to(ONE, FILE, true) && moved.has_changed_size(ONE, FILE));
    assert!(!moved.has_open_to(OTHER, FILE, false));
    moved.end_sessions(|_| true);
    assert!(moved.is_quiet(NOW.after(SESSIONS_RETURN)));
}
