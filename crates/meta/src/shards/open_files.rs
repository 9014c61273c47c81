//! The open files of each session, and the sessions that have changed sizes of backing files. All shards of a server
//! share one table, because a file's rows may change shards (by a split, or by getting an inode row) while it stays
//! open.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use varve_env::key_hash::KeyHashing;
use varve_types::{InodeId, SessionId};

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

/// Whether other sessions, unknown to this server, may be changing a backing file that a session begins to change: an
/// earlier server may have granted it to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherWriters {
    Perhaps,
    Known,
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

/// The call by which a session reports a measured size: its slot and its number there. A repeated call has the same.
pub type MeasuredBy = (u32, u64);

/// Cheap to clone; shared by the workers.
#[derive(Clone, Default)]
pub struct OpenFiles(Arc<Mutex<RegisteredFiles>>);

impl OpenFiles {
    /// `writes`: the session may write.
    pub fn open(&self, session: SessionId, inode: InodeId, writes: bool) {
        self.note(session, inode, SessionOpens { granted: true, writes });
    }

    /// Records that the session reports the file as opened before. This keeps the file while it is open, but does not
    /// permit the session to read or write it.
    pub fn keep(&self, session: SessionId, inode: InodeId) {
        self.note(session, inode, SessionOpens::default());
    }

    fn note(&self, session: SessionId, inode: InodeId, opened: SessionOpens) {
        let mut registered = self.lock();
        let known = registered.files.entry(inode).or_default().entry(session).or_default();
        known.granted |= opened.granted;
        known.writes |= opened.writes;
        registered.sessions.entry(session).or_default().insert(inode);
    }

    pub fn is_open(&self, inode: InodeId) -> bool {
        self.lock().files.contains_key(&inode)
    }

    pub fn has_open(&self, session: SessionId, inode: InodeId) -> bool {
        self.lock().files.get(&inode).is_some_and(|holders| holders.contains_key(&session))
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
        }
        let Some(holders) = registered.files.get_mut(&inode) else { return false };
        holders.remove(&session);
        let free = holders.is_empty();
        if free {
            registered.files.remove(&inode);
        }
        free
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

    /// Whether all sessions are known that may be changing the backing file of `inode`.
    pub fn knows_writers(&self, inode: InodeId) -> bool {
        self.lock().sizes.writers.get(&inode).is_some_and(|writers| writers.known)
    }

    /// Records that the server changed the size of a backing file: sizes measured before are no longer valid.
    pub fn size_changed(&self, inode: InodeId) {
        self.lock().sizes.measure_again(inode, None);
    }

    pub fn has_changed_size(&self, session: SessionId, inode: InodeId) -> bool {
        self.lock().sizes.has_changed(session, inode)
    }

    /// Whether the size just reported by `session`, which has closed and synced the file, is the file's size. If not,
    /// another session will report the size, or this one after another measurement.
    pub fn records_size(&self, session: SessionId, inode: InodeId, by: MeasuredBy) -> bool {
        let mut registered = self.lock();
        let holders = registered.files.get(&inode);
        let written = holders.is_some_and(|holders| holders.iter().any(|(other, of)| *other != session && of.writes));
        registered.sizes.records_size(session, inode, by, written)
    }

    /// Records that the session has closed and synced the file, and that its measured size is not used because the row
    /// has a better one.
    pub fn done(&self, session: SessionId, inode: InodeId) {
        let mut registered = self.lock();
        if registered.sizes.has_changed(session, inode) {
            registered.sizes.done(session, inode);
            registered.sizes.measure_again(inode, None);
        }
    }

    /// Whether the bytes that `session` has just measured and synced are stable, while it continues to write the file:
    /// no other session may have truncated the file since. If not, they may be at the next measurement.
    pub fn measures_alone(&self, session: SessionId, inode: InodeId) -> bool {
        let mut registered = self.lock();
        let holders = registered.files.get(&inode);
        let here = holders.is_some_and(|holders| holders.get(&session).is_some_and(|of| of.writes));
        let elsewhere = holders.is_some_and(|holders| holders.iter().any(|(other, of)| *other != session && of.writes));
        registered.sizes.measures_alone(session, inode, here) && !elsewhere
    }

    /// Whether a session writes the file or has yet to record its size.
    pub fn is_written(&self, inode: InodeId) -> bool {
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

    /// Whether no session has a file open or has yet to report a size.
    pub fn is_quiet(&self) -> bool {
        let registered = self.lock();
        registered.files.is_empty() && registered.sizes.writers.is_empty()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RegisteredFiles> {
        // The lock is held for map operations only; a panic within one is a broken invariant of the process.
        self.0.lock().expect("a thread panicked while it changed the table of open files")
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

    fn records_size(&mut self, session: SessionId, inode: InodeId, by: MeasuredBy, written: bool) -> bool {
        let Some(writers) = self.writers.get_mut(&inode) else { return !written };
        if writers.measured.keys().any(|other| *other != session) {
            // Its bytes are on disk, and the last session measures after that. A session that was done before changes
            // nothing.
            if writers.measured.contains_key(&session) {
                self.done(session, inode);
                self.measure_again(inode, None);
            }
            return false;
        }
        match writers.measured.get_mut(&session) {
            Some(measured @ MeasureOutcome::Again) => {
                *measured = MeasureOutcome::RightAfter(by);
                return false;
            }
            Some(MeasureOutcome::RightAfter(before)) if *before == by => return false,
            _ => {}
        }
        let known = writers.known;
        self.done(session, inode);
        // If all writers are known, a session that has the file open but is not a writer has written nothing, and it
        // registers as a writer first.
        known || !written
    }

    /// `writes`: the session has the file open for writing.
    fn measures_alone(&mut self, session: SessionId, inode: InodeId, writes: bool) -> bool {
        let Some(writers) = self.writers.get_mut(&inode) else {
            // An earlier server permitted the write. From now on this server knows of other writers.
            if writes {
                self.changes(session, inode, OtherWriters::Perhaps);
            }
            return false;
        };
        let alone = writers.measured.len() == 1;
        match writers.measured.get_mut(&session) {
            Some(MeasureOutcome::Right | MeasureOutcome::RightAfter(_)) => alone,
            Some(measured) => {
                *measured = MeasureOutcome::Right;
                false
            }
            None => false,
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
