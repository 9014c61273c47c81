//! Which files are open, in which sessions. One table for all shards of a server, because a file's rows may change
//! shards (by a split, or by getting an inode row) while it stays open.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use varve_types::{InodeId, SessionId};

#[derive(Default)]
struct Registered {
    files: HashMap<InodeId, HashMap<SessionId, u32>>,
    sessions: HashMap<SessionId, HashSet<InodeId>>,
}

/// Cheap to clone; shared by the workers.
#[derive(Clone, Default)]
pub struct OpenFiles(Arc<Mutex<Registered>>);

impl OpenFiles {
    pub fn open(&self, session: SessionId, inode: InodeId) {
        let mut registered = self.lock();
        *registered.files.entry(inode).or_default().entry(session).or_insert(0) += 1;
        registered.sessions.entry(session).or_default().insert(inode);
    }

    pub fn is_open(&self, inode: InodeId) -> bool {
        self.lock().files.contains_key(&inode)
    }

    pub fn has_open(&self, session: SessionId, inode: InodeId) -> bool {
        self.lock().files.get(&inode).is_some_and(|holders| holders.contains_key(&session))
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
        let inodes = self.lock().sessions.remove(&session).unwrap_or_default();
        inodes.into_iter().filter(|inode| self.release(session, *inode)).collect()
    }

    pub fn len(&self) -> usize {
        self.lock().files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Registered> {
        // The lock is held for map operations only; a panic within one is a broken invariant of the process.
        self.0.lock().expect("a thread panicked while it changed the table of open files")
    }
}
