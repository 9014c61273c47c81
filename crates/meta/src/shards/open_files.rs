//! Which files are open, in which sessions, and which sessions have changed sizes of backing files. One table for all
//! shards of a server, because a file's rows may change shards (by a split, or by getting an inode row) while it stays
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
    /// By this server; else the session says that one before it has.
    granted: bool,
    writes: bool,
}

/// Sessions that may have changed a backing file since its size was last settled.
///
/// A session measures a file when it has closed it and synced its own bytes, and what it measured is right only if nobody
/// else changed the file since. So a size is taken from the last such session alone, measured after all others were done.
#[derive(Default)]
struct SizeTracker {
    writers: HashMap<InodeId, Writers>,
    sessions: HashMap<SessionId, HashSet<InodeId>>,
}

#[derive(Default)]
struct Writers {
    measured: HashMap<SessionId, MeasureOutcome>,
    /// These are all there are.
    known: bool,
}

/// Whether a session that begins to change a backing file may find others at it of which this server has not heard:
/// they were granted it by its predecessor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherWriters {
    Perhaps,
    Known,
}

/// What a writer's next measure is worth.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MeasureOutcome {
    Right,
    /// Unless it comes with this call again, whose answer was lost.
    RightAfter(MeasuredBy),
    /// Another session changed the file, or had still to sync its bytes, and the measure may be older.
    Again,
}

/// The call by which a session tells what it has measured: its slot and number there, which a call that is made again has too.
pub type MeasuredBy = (u32, u64);

/// Cheap to clone; shared by the workers.
#[derive(Clone, Default)]
pub struct OpenFiles(Arc<Mutex<RegisteredFiles>>);

impl OpenFiles {
    /// `writes`: perhaps.
    pub fn open(&self, session: SessionId, inode: InodeId, writes: bool) {
        self.note(session, inode, SessionOpens { granted: true, writes });
    }

    /// The session says that it has opened the file before, and is not let read or write it by that: it stays as long as it is open.
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

    /// The session has closed the file for the last time. `true` if nobody has it open now.
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

    /// The session is gone: the inodes that nobody has open any more.
    pub fn end_session(&self, session: SessionId) -> Vec<InodeId> {
        let inodes = {
            let mut registered = self.lock();
            registered.sizes.end_session(session);
            registered.sessions.remove(&session).unwrap_or_default()
        };
        inodes.into_iter().filter(|inode| self.release(session, *inode)).collect()
    }

    /// The session may change the size of the backing file of `inode` from now on.
    pub fn changes_size(&self, session: SessionId, inode: InodeId, others: OtherWriters) {
        self.lock().sizes.changes(session, inode, others);
    }

    /// Whether all sessions are known that may be changing the backing file of `inode`.
    pub fn knows_writers(&self, inode: InodeId) -> bool {
        self.lock().sizes.writers.get(&inode).is_some_and(|writers| writers.known)
    }

    /// The size of a backing file was changed by the server: what sessions measured before is not right any more.
    pub fn size_changed(&self, inode: InodeId) {
        self.lock().sizes.measure_again(inode, None);
    }

    pub fn has_changed_size(&self, session: SessionId, inode: InodeId) -> bool {
        self.lock().sizes.has_changed(session, inode)
    }

    /// Whether the size that `session` has just told, having closed and synced the file, is its size. If not, another
    /// session will tell it, or this one after a further measure.
    pub fn records_size(&self, session: SessionId, inode: InodeId, by: MeasuredBy) -> bool {
        let mut registered = self.lock();
        let holders = registered.files.get(&inode);
        let written = holders.is_some_and(|holders| holders.iter().any(|(other, of)| *other != session && of.writes));
        registered.sizes.records_size(session, inode, by, written)
    }

    /// The session has closed and synced the file, and nothing is made of its size, for the row knows better.
    pub fn done(&self, session: SessionId, inode: InodeId) {
        let mut registered = self.lock();
        if registered.sizes.has_changed(session, inode) {
            registered.sizes.done(session, inode);
            registered.sizes.measure_again(inode, None);
        }
    }

    /// Whether the bytes that `session`, which goes on to write the file, has just measured and synced are there to stay:
    /// nobody else may have cut the file since. If not, they may be when it measures again.
    pub fn measures_alone(&self, session: SessionId, inode: InodeId) -> bool {
        let mut registered = self.lock();
        let holders = registered.files.get(&inode);
        let here = holders.is_some_and(|holders| holders.get(&session).is_some_and(|of| of.writes));
        let elsewhere = holders.is_some_and(|holders| holders.iter().any(|(other, of)| *other != session && of.writes));
        registered.sizes.measures_alone(session, inode, here) && !elsewhere
    }

    /// Whether some session writes the file, or has still to settle it.
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

    /// No session has a file open, or has to tell what size one has come to.
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
            // What it wrote is on disk, and whoever is the last measures after that. Who was done before disturbs nobody.
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
        // Who has it open and is not among the writers where all are known has written nothing, and comes to be one first.
        known || !written
    }

    /// `writes`: the session has the file open for writing.
    fn measures_alone(&mut self, session: SessionId, inode: InodeId, writes: bool) -> bool {
        let Some(writers) = self.writers.get_mut(&inode) else {
            // A predecessor of this server let it write: from now on it is known who else comes.
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

    /// What the session changed is synced, or it is gone.
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
