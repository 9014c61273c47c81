//! Detects rows that arrive late. Before a file is closed, the client writes its newer state into the row. But a row
//! that was requested before that may arrive after it, when the client no longer has the newer state.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use varve_types::InodeId;

/// Number of slots. Files with similar numbers share a slot, which can cause an unnecessary request.
const PLACES: usize = 1024;

/// Taken before a row is requested.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchTicket(u64);

pub(super) struct Outdated {
    /// Number of times that a row became complete: it has all that this client knew of its file.
    reported: AtomicU64,
    /// The latest of those numbers, by file.
    latest: Box<[AtomicU64]>,
}

impl Default for Outdated {
    fn default() -> Outdated {
        Outdated { reported: AtomicU64::new(0), latest: (0..PLACES).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Outdated {
    /// Records that the row of `inode` is complete. Called before any other thread can observe it.
    pub fn note_reply(&self, inode: InodeId) {
        let now = self.reported.fetch_add(1, SeqCst) + 1;
        self.place(inode).fetch_max(now, SeqCst);
    }

    pub fn asking(&self) -> FetchTicket {
        FetchTicket(self.reported.load(SeqCst))
    }

    /// Whether a row of `inode`, requested when `asked` was taken, may be older than the last complete row.
    pub fn is(&self, inode: InodeId, asked: FetchTicket) -> bool {
        self.place(inode).load(SeqCst) > asked.0
    }

    fn place(&self, inode: InodeId) -> &AtomicU64 {
        &self.latest[(inode.0 ^ (inode.0 >> 48)) as usize % PLACES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: a row requested before its file's row became complete is outdated; a row requested after that is not.
    #[test]
    fn rows_fetched_before_a_change_are_stale() {
        let (outdated, file) = (Outdated::default(), InodeId(7));
        let before = outdated.asking();
        assert!(!outdated.is(file, before));
        outdated.note_reply(file);
        outdated.note_reply(InodeId(8));
        assert!(outdated.is(file, before));
        assert!(!outdated.is(InodeId(9), before));
        assert!(!outdated.is(file, outdated.asking()));
    }
}
