//! Lookup pins: files that are kept open for the call that follows their lookup.
//!
//! A call by path is two kernel requests: a lookup of the name, and a request for the inode that it returned. If the
//! name is replaced in between, the second fails with ESTALE. The kernel then repeats both once, but not a third time,
//! and applications do not handle ESTALE. So, after a thread has missed a file, its lookups open the file at the server
//! before they are answered. If the name is replaced now, the file becomes an orphan instead of being removed, and the
//! call finds the file that had the name at the lookup.
//!
//! A pin is no handle: it is one more participant in the open inode, and is dropped in the background.

use crate::files::OpenInode;
use crate::{FileSystem, NodeInfo, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_types::{Credentials, Errno, FileKind, InodeId, Name};

/// Lifetime of a pin, and how long after a miss a thread's lookups pin: far longer than a call waits between its
/// requests, even on a busy machine.
const PIN_LIFETIME: Duration = Duration::from_secs(5);

/// Maximum number of pins: when there are more, the oldest is dropped, whose call has long ended.
const PINS_MAX: usize = 1024;

/// Threads that missed a file; when there are more, all are forgotten.
const THREADS_MAX: usize = 1024;

/// Lookups of a name that others keep replacing, until its file is pinned: each failed one has lost one race.
const TRIES_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct LookupPins {
    /// Threads that missed a file, and when.
    missed: Mutex<HashMap<u32, Instant>>,
    /// Whether `missed` has any entry: threads that missed nothing take no lock.
    any_missed: AtomicBool,
    pins: Mutex<HashMap<InodeId, LookupPin>>,
}

struct LookupPin {
    open: Arc<OpenInode>,
    since: Instant,
}

impl LookupPins {
    fn miss(&self, thread: u32, now: Instant) {
        let mut missed = self.missed.lock();
        if missed.len() >= THREADS_MAX {
            missed.clear();
        }
        missed.insert(thread, now);
        self.any_missed.store(true, Relaxed);
    }

    fn hit(&self, thread: u32) {
        if self.any_missed.load(Relaxed) {
            let mut missed = self.missed.lock();
            missed.remove(&thread);
            self.any_missed.store(!missed.is_empty(), Relaxed);
        }
    }

    fn has_missed(&self, thread: u32, now: Instant) -> bool {
        self.any_missed.load(Relaxed)
            && self.missed.lock().get(&thread).is_some_and(|at| now.since(*at) <= PIN_LIFETIME)
    }

    /// Whether the file is pinned. If so, its lifetime starts anew.
    fn renew(&self, inode: InodeId, now: Instant) -> bool {
        self.pins.lock().get_mut(&inode).map(|pins| pins.since = now).is_some()
    }

    /// Stores a pin; returns the one that must be dropped for it.
    fn keep(&self, open: Arc<OpenInode>, now: Instant) -> Option<Arc<OpenInode>> {
        let mut pins = self.pins.lock();
        let twice = pins.insert(open.inode, LookupPin { open, since: now });
        let oldest = || {
            let oldest = pins.iter().min_by_key(|(_, pins)| pins.since).map(|(inode, _)| *inode);
            (pins.len() > PINS_MAX).then(|| pins.remove(&oldest?)).flatten()
        };
        twice.or_else(oldest).map(|pins| pins.open)
    }

    /// Removes and returns the pins from before `then`.
    fn take(&self, then: Instant) -> Vec<Arc<OpenInode>> {
        self.pins.lock().extract_if(|_, pins| pins.since <= then).map(|(_, pins)| pins.open).collect()
    }
}

impl FileSystem {
    /// Records the `result` of a request by `thread` for `inode`: if the inode was gone, the thread's next lookups pin
    /// the files that they find.
    pub fn noticed<T>(&self, thread: u32, inode: InodeId, result: Result<T>) -> Result<T> {
        match &result {
            Err(failure) if failure.errno == Errno::ESTALE => {
                self.lookup_pins.miss(thread, self.core.clock.monotonic())
            }
            // Directories are requested on the way to every file.
            _ if inode == InodeId::ROOT || self.core.inodes.is_directory(inode) => {}
            _ => self.lookup_pins.hit(thread),
        }
        result
    }

    pub(crate) fn has_missed(&self, thread: u32) -> bool {
        self.lookup_pins.has_missed(thread, self.core.clock.monotonic())
    }

    /// [`FileSystem::lookup`], but the file still exists when the caller requests it next.
    pub(crate) async fn lookup_pinned(&self, caller: &Credentials, parent: InodeId, name: &Name) -> Result<NodeInfo> {
        for _ in 0..TRIES_MAX {
            let node = self.lookup(caller, parent, name).await?;
            if node.attributes.kind != FileKind::Regular {
                return Ok(node);
            }
            match self.pin(node.inode).await {
                Err(failure) if failure.errno == Errno::ESTALE => self.forget(node.inode, 1),
                Ok(()) => return Ok(node),
                Err(failure) => {
                    // The call that follows fails in the same way, if it needs the file.
                    tracing::debug!(inode = %node.inode, "cannot pin a looked-up file: {failure}");
                    return Ok(node);
                }
            }
        }
        self.lookup(caller, parent, name).await
    }

    async fn pin(&self, inode: InodeId) -> Result<()> {
        if self.lookup_pins.renew(inode, self.core.clock.monotonic()) {
            return Ok(());
        }
        let open = self.take_part(inode).await?;
        if let Some(other) = self.lookup_pins.keep(open, self.core.clock.monotonic()) {
            self.leave(&other);
        }
        Ok(())
    }

    /// Drops the pins whose lifetime is over.
    pub(crate) fn let_go_old(&self) {
        if let Some(then) = self.core.clock.monotonic().0.checked_sub(PIN_LIFETIME) {
            self.let_go(Instant(then));
        }
    }

    /// Drops all pins, for a shutdown.
    pub(crate) fn let_go_all(&self) {
        self.let_go(Instant(Duration::MAX));
    }

    fn let_go(&self, then: Instant) {
        for open in self.lookup_pins.take(then) {
            self.leave(&open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(seconds: u64) -> Instant {
        Instant(Duration::from_secs(seconds))
    }

    /// Promise: only threads that missed a file recently pin what they look up, and only until they have found one.
    #[test]
    fn thread_pins_lookups_after_estale() {
        let lookup_pins = LookupPins::default();
        assert!(!lookup_pins.has_missed(7, at(1)));
        lookup_pins.miss(7, at(1));
        assert!(lookup_pins.has_missed(7, at(2)) && !lookup_pins.has_missed(8, at(2)));
        assert!(!lookup_pins.has_missed(7, at(60)), "a miss of long ago is another call's");
        lookup_pins.hit(7);
        assert!(!lookup_pins.has_missed(7, at(2)) && !lookup_pins.any_missed.load(Relaxed));
    }

    /// Promise: the number of pins is bounded, the oldest is dropped first, and none is lost.
    #[test]
    fn lookup_pins_are_bounded() {
        let lookup_pins = LookupPins::default();
        let pins = |inode| Arc::new(OpenInode::new(InodeId(inode)));
        for inode in 0..PINS_MAX as u64 {
            assert!(lookup_pins.keep(pins(inode), at(inode)).is_none());
        }
        assert!(lookup_pins.renew(InodeId(0), at(5000)));
        let gone = lookup_pins.keep(pins(9999), at(5001)).expect("one goes");
        assert_eq!(gone.inode, InodeId(1));
        assert_eq!(lookup_pins.keep(pins(9999), at(5002)).expect("two of one file are one").inode, InodeId(9999));
        assert_eq!(lookup_pins.take(at(4999)).len(), PINS_MAX - 2);
        assert_eq!(lookup_pins.take(at(9999)).len(), 2);
    }
}
