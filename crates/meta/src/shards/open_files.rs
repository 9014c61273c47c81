//! The open files of each session, and the sessions that have changed sizes of backing files.
//!
//! Each shard keeps this for the inodes whose numbers are its own, because a number never moves, while a file's rows do
//! (by a split, or by getting an inode row). A shard that has only a row asks and notifies the shard in the number
//! ([`super::opens_elsewhere`]). The table belongs to the server, not to one ownership of the shard: it outlives a shard
//! that fails and is opened again, answers while the shard is not open, and moves with the shard to another worker.

pub use varve_schema::peer::{
    FileUse, MeasureTime, MeasureVerdict, MeasuredBy, Measurement, OpenedFor, Openness, OtherWriters, SizeUse,
};

use super::peers::{self, FileCall, FileReply, PeerCall, PeerReply, PeerRequest, PeerResponse, ShardTerm};
use super::received_ids::Callers;
use std::cell::{Cell, RefCell, RefMut};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_types::{Epoch, InodeId, SessionId, ShardCount};

#[derive(Default)]
struct RegisteredFiles {
    files: HashMap<InodeId, HashMap<SessionId, SessionOpens, KeyHashing>, KeyHashing>,
    sessions: HashMap<SessionId, HashSet<InodeId, KeyHashing>, KeyHashing>,
    sizes: SizeTracker,
}

#[derive(Clone, Copy, Default)]
struct SessionOpens {
    /// This server granted the open. Otherwise the session reports that an earlier server granted it.
    granted: bool,
    writes: bool,
}

/// Sessions that may have changed a backing file since its size was last recorded.
///
/// A session measures a file after it has closed it and synced its own bytes. The measured size is right only if no
/// other session changed the file since. So the server takes a size only from the last such session, measured after all
/// others were done.
#[derive(Default)]
struct SizeTracker {
    writers: HashMap<InodeId, Writers>,
    sessions: HashMap<SessionId, HashSet<InodeId>>,
}

#[derive(Default)]
struct Writers {
    measured: HashMap<SessionId, MeasureOutcome>,
    /// `measured` lists all writers.
    known: bool,
}

/// Validity of a writer's next measured size.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MeasureOutcome {
    Right,
    /// Valid, unless the session repeats this call, whose reply was lost.
    RightAfter(MeasuredBy),
    /// Another session changed the file, or had not yet synced its bytes, so the measured size may be outdated.
    Again,
}

/// The table of one shard. Cheap to clone; it stays with the worker that serves the shard.
#[derive(Clone, Default)]
pub struct OpenFiles(Rc<OpenFilesState>);

#[derive(Default)]
struct OpenFilesState {
    registered: RefCell<RegisteredFiles>,
    /// The last term of the shard in this server.
    term: Cell<Option<Epoch>>,
    /// The shards that have called.
    callers: RefCell<Callers>,
    /// How long after the first opening of the shard began sessions of an earlier server may come back.
    sessions_return: Duration,
    /// By then all of them have registered their open files; `None`: no opening of the shard has begun.
    known_from: Cell<Option<Instant>>,
}

/// A table on its way to another worker.
pub struct MovingOpenFiles(Box<OpenFilesState>);

impl From<MovingOpenFiles> for OpenFiles {
    fn from(MovingOpenFiles(state): MovingOpenFiles) -> OpenFiles {
        OpenFiles(Rc::from(state))
    }
}

impl OpenFiles {
    /// `sessions_return`: how long after the first opening of the shard began sessions of an earlier server may come back.
    pub fn after(sessions_return: Duration) -> OpenFiles {
        OpenFiles(Rc::new(OpenFilesState { sessions_return, ..OpenFilesState::default() }))
    }

    /// Takes the content of the table, whose clones nobody uses any more.
    pub fn move_away(self) -> MovingOpenFiles {
        let OpenFilesState { registered, term, callers, sessions_return, known_from } = &*self.0;
        MovingOpenFiles(Box::new(OpenFilesState {
            registered: RefCell::new(registered.take()),
            term: term.clone(),
            callers: RefCell::new(callers.take()),
            sessions_return: *sessions_return,
            known_from: known_from.clone(),
        }))
    }

    /// An opening of the shard begins. Only the first one counts.
    pub(super) fn shard_opens(&self, now: Instant) {
        let known_from = &self.0.known_from;
        known_from.set(known_from.get().or(Some(now.after(self.0.sessions_return))));
    }

    /// This server has the shard in this term from now on. While it opens the shard again, the table is in the last term.
    pub fn enter_term(&self, term: Epoch) {
        let entered = &self.0.term;
        entered.set(entered.get().max(Some(term)));
    }

    /// How long sessions of an earlier server may still come back.
    pub fn until_sessions_known(&self, now: Instant) -> Duration {
        self.0.known_from.get().map_or(self.0.sessions_return, |from| from.since(now))
    }

    /// Registers what a session does with a file. Returns whether all sessions are known and none wrote the file or had
    /// yet to record its size before, this session included.
    pub fn register(&self, used: &FileUse, now: Instant) -> bool {
        let FileUse { session, inode, .. } = *used;
        let all_known = self.until_sessions_known(now).is_zero();
        let writer_gone = all_known && !self.is_written(inode);
        match used.opened {
            Some(OpenedFor::Reading) => self.open(session, inode, false),
            Some(OpenedFor::Writing) => self.open(session, inode, true),
            Some(OpenedFor::Keeping) if !all_known => self.note(session, inode, SessionOpens::default()),
            Some(OpenedFor::Keeping) | None => {}
        }
        match used.size {
            Some(SizeUse::Changes(others)) => self.changes_size(session, inode, others),
            Some(SizeUse::Measured(by, MeasureTime::Last)) => self.lock().sizes.note_size(session, inode, by),
            Some(SizeUse::Measured(_, MeasureTime::Underway)) => self.note_underway(session, inode),
            Some(SizeUse::Done) => self.done(session, inode),
            None => {}
        }
        writer_gone
    }

    /// Serves a request about open files, unless its terms or its id forbid it.
    pub fn serve(&self, request: PeerRequest, shards: ShardCount, now: Instant) -> PeerResponse {
        let PeerRequest { from, to, term, id, call, .. } = request;
        let own = ShardTerm { shard: to, term: self.0.term.get().unwrap_or(ShardTerm::NONE) };
        let reply = match call {
            PeerCall::Files(call)
                if from.shard.0 < shards.get() && call.inodes().iter().all(|inode| inode.shard() == to) =>
            {
                let admitted = self.admit(from, term, id);
                admitted.map_or_else(|refused| refused, |()| PeerReply::Files(self.answer(call, now)))
            }
            _ => PeerReply::Failed(format!("a call of shard {} to shard {to} went astray", from.shard).into()),
        };
        peers::response(id, own, reply)
    }

    /// Whether a request is to be carried out, else the reply to it. A request that names no term may change the table:
    /// the caller cannot learn the term of a shard that this server has not opened yet.
    fn admit(&self, from: ShardTerm, term: Option<Epoch>, id: u64) -> Result<(), PeerReply> {
        if term.is_some() && term != self.0.term.get() {
            return Err(PeerReply::WrongTerm);
        }
        match from.term == ShardTerm::NONE {
            // A read-only view, which registers files that its clients open for reading.
            true => Ok(()),
            false => self.0.callers.borrow_mut().admit(from, id),
        }
    }

    /// Carries out a call about open files.
    pub fn answer(&self, call: FileCall, now: Instant) -> FileReply {
        match call {
            FileCall::AreOpen(inodes) => {
                FileReply::Openness(inodes.into_iter().map(|inode| self.openness(inode, now)).collect())
            }
            FileCall::Register(used) => FileReply::Registered { writer_gone: self.register(&used, now) },
            FileCall::HasOpen { session, inode, writes, or_changed } => FileReply::HasOpen(
                (or_changed && self.has_changed_size(session, inode)) || self.has_open_to(session, inode, writes),
            ),
            FileCall::Judge(measurement) => FileReply::Judged(self.judge(&measurement, now)),
            FileCall::SizeChanged(inode) => {
                self.size_changed(inode);
                FileReply::Done
            }
        }
    }

    /// `writes`: the session may write.
    pub fn open(&self, session: SessionId, inode: InodeId, writes: bool) {
        self.note(session, inode, SessionOpens { granted: true, writes });
    }

    fn note(&self, session: SessionId, inode: InodeId, opened: SessionOpens) {
        let mut registered = self.lock();
        let known = registered.files.entry(inode).or_default().entry(session).or_default();
        known.granted |= opened.granted;
        known.writes |= opened.writes;
        registered.sessions.entry(session).or_default().insert(inode);
    }

    pub fn openness(&self, inode: InodeId, now: Instant) -> Openness {
        match self.lock().files.contains_key(&inode) {
            true => Openness::Open,
            false if self.until_sessions_known(now).is_zero() => Openness::Closed,
            false => Openness::Perhaps,
        }
    }

    /// `writes`: for writing.
    pub fn has_open_to(&self, session: SessionId, inode: InodeId, writes: bool) -> bool {
        let registered = self.lock();
        let opened = registered.files.get(&inode).and_then(|holders| holders.get(&session));
        opened.is_some_and(|opened| opened.writes || (opened.granted && !writes))
    }

    /// Records that the session has closed the file for the last time. Returns `true` if no session has it open now.
    pub fn release(&self, session: SessionId, inode: InodeId) -> bool {
        let mut registered = self.lock();
        if let Some(inodes) = registered.sessions.get_mut(&session) {
            inodes.remove(&inode);
            if inodes.is_empty() {
                registered.sessions.remove(&session);
            }
        }
        let Some(holders) = registered.files.get_mut(&inode) else { return false };
        holders.remove(&session);
        let free = holders.is_empty();
        if free {
            registered.files.remove(&inode);
        }
        free
    }

    /// Removes all sessions for which `has_ended` is true.
    pub fn end_sessions(&self, has_ended: impl Fn(SessionId) -> bool) {
        let ended: HashSet<SessionId> = {
            let registered = self.lock();
            let known = registered.sessions.keys().chain(registered.sizes.sessions.keys());
            known.copied().filter(|session| has_ended(*session)).collect()
        };
        for session in ended {
            self.end_session(session);
        }
    }

    /// Removes an ended session. Returns the inodes that no session has open any more.
    pub fn end_session(&self, session: SessionId) -> Vec<InodeId> {
        let inodes = {
            let mut registered = self.lock();
            registered.sizes.end_session(session);
            registered.sessions.remove(&session).unwrap_or_default()
        };
        inodes.into_iter().filter(|inode| self.release(session, *inode)).collect()
    }

    /// Records that the session may change the size of the backing file of `inode` from now on.
    pub fn changes_size(&self, session: SessionId, inode: InodeId, others: OtherWriters) {
        self.lock().sizes.changes(session, inode, others);
    }

    /// Records that the server changed the size of a backing file: sizes measured before are no longer valid.
    pub fn size_changed(&self, inode: InodeId) {
        self.lock().sizes.measure_again(inode, None);
    }

    pub fn has_changed_size(&self, session: SessionId, inode: InodeId) -> bool {
        self.lock().sizes.has_changed(session, inode)
    }

    /// Whether a measured size is the file's size. If it was measured last, the session has closed and synced the file;
    /// if under way, the bytes it has synced are stable: no other session may have truncated the file since.
    pub fn judge(&self, measurement: &Measurement, now: Instant) -> MeasureVerdict {
        let Measurement { session, inode, by, time } = *measurement;
        let registered = self.lock();
        let unknown = self.until_sessions_known(now);
        let sizes = &registered.sizes;
        if !unknown.is_zero() && !sizes.writers.get(&inode).is_some_and(|writers| writers.known) {
            return MeasureVerdict::WritersUnknown(Duration::from_millis(unknown.as_millis() as u64 + 1));
        }
        let holders = registered.files.get(&inode);
        let others = holders.is_some_and(|holders| holders.iter().any(|(other, of)| *other != session && of.writes));
        let right = match time {
            MeasureTime::Last => sizes.is_size(session, inode, by, others),
            MeasureTime::Underway => sizes.is_stable(session, inode) && !others,
        };
        if right { MeasureVerdict::Right } else { MeasureVerdict::Wrong }
    }

    fn done(&self, session: SessionId, inode: InodeId) {
        let mut registered = self.lock();
        if registered.sizes.has_changed(session, inode) {
            registered.sizes.done(session, inode);
            registered.sizes.measure_again(inode, None);
        }
    }

    fn note_underway(&self, session: SessionId, inode: InodeId) {
        let mut registered = self.lock();
        let holders = registered.files.get(&inode);
        let writes = holders.is_some_and(|holders| holders.get(&session).is_some_and(|of| of.writes));
        registered.sizes.note_underway(session, inode, writes);
    }

    /// Whether a session writes the file or has yet to record its size.
    fn is_written(&self, inode: InodeId) -> bool {
        let registered = self.lock();
        let holders = registered.files.get(&inode);
        registered.sizes.writers.contains_key(&inode)
            || holders.is_some_and(|holders| holders.values().any(|of| of.writes))
    }

    pub fn len(&self) -> usize {
        self.lock().files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether all sessions are known, and none has a file open or has yet to report a size.
    pub fn is_quiet(&self, now: Instant) -> bool {
        let registered = self.lock();
        registered.files.is_empty() && registered.sizes.writers.is_empty() && self.until_sessions_known(now).is_zero()
    }

    fn lock(&self) -> RefMut<'_, RegisteredFiles> {
        self.0.registered.borrow_mut()
    }
}

impl SizeTracker {
    fn changes(&mut self, session: SessionId, inode: InodeId, others: OtherWriters) {
        self.measure_again(inode, Some(session));
        let writers = self.writers.entry(inode).or_default();
        writers.measured.insert(session, MeasureOutcome::Right);
        writers.known |= others == OtherWriters::Known;
        self.sessions.entry(session).or_default().insert(inode);
    }

    fn measure_again(&mut self, inode: InodeId, but_for: Option<SessionId>) {
        let writers = self.writers.get_mut(&inode);
        let measured = writers.into_iter().flat_map(|writers| &mut writers.measured);
        measured
            .filter(|(session, _)| Some(**session) != but_for)
            .for_each(|(_, measured)| *measured = MeasureOutcome::Again);
    }

    fn has_changed(&self, session: SessionId, inode: InodeId) -> bool {
        self.sessions.get(&session).is_some_and(|inodes| inodes.contains(&inode))
    }

    /// `written`: another session has the file open for writing.
    fn is_size(&self, session: SessionId, inode: InodeId, by: MeasuredBy, written: bool) -> bool {
        let Some(writers) = self.writers.get(&inode) else { return !written };
        let last = writers.measured.keys().all(|other| *other == session);
        let valid = match writers.measured.get(&session) {
            Some(MeasureOutcome::Again) => false,
            Some(MeasureOutcome::RightAfter(before)) => *before != by,
            Some(MeasureOutcome::Right) | None => true,
        };
        // If all writers are known, a session that has the file open but is not a writer has written nothing, and it
        // registers as a writer first.
        last && valid && (writers.known || !written)
    }

    /// The session has reported its measured size, which [`SizeTracker::is_size`] has judged.
    fn note_size(&mut self, session: SessionId, inode: InodeId, by: MeasuredBy) {
        let Some(writers) = self.writers.get_mut(&inode) else { return };
        if writers.measured.keys().any(|other| *other != session) {
            // Its bytes are on disk, and the last session measures after that. A session that was done before changes
            // nothing.
            if writers.measured.contains_key(&session) {
                self.done(session, inode);
                self.measure_again(inode, None);
            }
            return;
        }
        match writers.measured.get_mut(&session) {
            Some(measured @ MeasureOutcome::Again) => *measured = MeasureOutcome::RightAfter(by),
            Some(MeasureOutcome::RightAfter(before)) if *before == by => {}
            _ => self.done(session, inode),
        }
    }

    fn is_stable(&self, session: SessionId, inode: InodeId) -> bool {
        self.writers.get(&inode).is_some_and(|writers| {
            let measured = writers.measured.get(&session);
            let valid = measured.is_some_and(|measured| *measured != MeasureOutcome::Again);
            valid && writers.measured.len() == 1
        })
    }

    /// The session has reported a size that it measured while it goes on writing, and which [`SizeTracker::is_stable`]
    /// has judged. `writes`: it has the file open for writing.
    fn note_underway(&mut self, session: SessionId, inode: InodeId, writes: bool) {
        match self.writers.get_mut(&inode) {
            Some(writers) => {
                if let Some(measured @ MeasureOutcome::Again) = writers.measured.get_mut(&session) {
                    *measured = MeasureOutcome::Right;
                }
            }
            // An earlier server permitted the write. From now on this server knows of other writers.
            None if writes => self.changes(session, inode, OtherWriters::Perhaps),
            None => {}
        }
    }

    /// The session has synced its changes, or it is gone.
    fn done(&mut self, session: SessionId, inode: InodeId) {
        if let Some(inodes) = self.sessions.get_mut(&session) {
            inodes.remove(&inode);
            if inodes.is_empty() {
                self.sessions.remove(&session);
            }
        }
        if let Some(writers) = self.writers.get_mut(&inode) {
            writers.measured.remove(&session);
            if writers.measured.is_empty() {
                self.writers.remove(&inode);
            }
        }
    }

    fn end_session(&mut self, session: SessionId) {
        for inode in self.sessions.remove(&session).unwrap_or_default() {
            self.done(session, inode);
            self.measure_again(inode, None);
        }
    }
}

#[cfg(test)]
mod tests;
