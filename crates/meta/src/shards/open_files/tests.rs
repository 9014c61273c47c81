use super::*;

const FILE: InodeId = InodeId(77);
const ONE: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);

impl OpenFiles {
    /// Records the size by a call with a new number.
    fn records_size_now(&self, session: SessionId, inode: InodeId) -> bool {
        static CALLS: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        self.records_size(session, inode, (0, CALLS.fetch_add(1, std::sync::atomic::Ordering::Relaxed)))
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
    let open_files = OpenFiles::default();
    open_files.changes_size(ONE, FILE, OtherWriters::Perhaps);
    assert!(!open_files.knows_writers(FILE));
    assert!(open_files.records_size_now(ONE, FILE));
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
