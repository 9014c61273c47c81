//! Rows that come late. What a client knows better of an open file than its row goes into the row before the file is closed;
//! but a row that was asked for before that may arrive after it, when nothing is known better any more.

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use varve_types::InodeId;

/// Files share a place if their numbers are alike: then a row is asked for once more than was needed.
const PLACES: usize = 1024;

/// Taken before a row is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FetchTicket(u64);

pub(super) struct Outdated {
    /// Times that a row came to say all that was known here of its file.
    reported: AtomicU64,
    /// The latest of those, by the file.
    latest: Box<[AtomicU64]>,
}

impl Default for Outdated {
    fn default() -> Outdated {
        Outdated { reported: AtomicU64::new(0), latest: (0..PLACES).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Outdated {
    /// The row of `inode` says all that is known of it. Called before anybody here can see that it does.
    pub fn note_reply(&self, inode: InodeId) {
        let now = self.reported.fetch_add(1, SeqCst) + 1;
        self.place(inode).fetch_max(now, SeqCst);
    }

    pub fn asking(&self) -> FetchTicket {
        FetchTicket(self.reported.load(SeqCst))
    }

    /// Whether a row of `inode` may be older than what was told since it was asked for.
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

    /// Promise: a row that was asked for before its file's was told is outdated, and none that is asked for after that.
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
