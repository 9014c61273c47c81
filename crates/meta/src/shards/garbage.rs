//! Backing files whose files are gone, and the free space of the store. `garbage_collection.rs` removes the files.
//!
//! The change that removes a large file's rows adds a garbage row, in the same batch, to the shard that made the
//! change. The backing file is removed only after that batch is fsynced: otherwise a machine failure could bring back a
//! name whose data are gone. The row is deleted when the removal of the backing file is on disk, so the shard's next
//! owner continues after a crash. Ids are never reused, so a late removal hits no other file.
//!
//! Removals are gathered for a second. While the store has little free space, each is done before the reply to the
//! change that caused it, so that a program which removes files finds the space that they had.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use varve_env::clock::Instant;
use varve_env::reserve::Reserve;
use varve_posix::Effect;
use varve_schema::{Change, Key, Row};
use varve_types::InodeId;

/// Backing files removed in one round, with one fsync of the log and one of each directory. A close may wait for a
/// round.
const ROUND_MAX: usize = 1024;

/// How long the free space of the store is believed, so that removals of many large files do not each look at it.
const ROOM_BELIEVED: Duration = Duration::from_millis(5);

/// Backing files that have garbage rows in this shard.
#[derive(Default)]
pub(super) struct Garbage {
    waiting: Vec<InodeId>,
    /// After a refusal of the store, no removal before this time.
    not_before: Option<Instant>,
    /// The files of the round in progress.
    at_work: Vec<InodeId>,
}

/// The free space of a shard's store.
pub(super) struct Room {
    /// `None`: nothing is known of the store's space.
    reserve: Option<Arc<Reserve>>,
    looked: Cell<Option<Instant>>,
    /// Wakes the removal of backing files.
    wanted: Notify,
}

impl Room {
    pub fn of(reserve: Option<Arc<Reserve>>) -> Room {
        Room { reserve, looked: Cell::new(None), wanted: Notify::new() }
    }

    /// Whether the free space was looked at a moment ago.
    pub fn is_believed(&self, now: Instant) -> bool {
        self.looked.get().is_some_and(|looked| now.since(looked) < ROOM_BELIEVED)
    }

    pub fn note_look(&self, now: Instant) {
        self.looked.set(Some(now));
    }

    /// Wakes the removal of backing files.
    pub fn want(&self) {
        self.wanted.notify_one();
    }

    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Looks at the store's free space, and takes the reserve again or reports the shortage.
    pub async fn look(&self) {
        let Some(reserve) = self.reserve.clone() else { return };
        // The server logs failures of its own checks.
        let _ = tokio::task::spawn_blocking(move || reserve.tend()).await;
    }

    pub fn is_tight(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.is_tight())
    }
}

impl Garbage {
    /// Adds `inode`, whose row is in the open batch or an earlier one.
    pub fn add(&mut self, inode: InodeId) {
        self.waiting.push(inode);
    }

    pub fn len(&self) -> usize {
        self.waiting.len() + self.at_work.len()
    }

    /// Whether a round is in progress.
    pub fn is_at_work(&self) -> bool {
        !self.at_work.is_empty()
    }

    pub fn is_refused(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|then| now < then)
    }

    pub fn holds(&self, inode: InodeId) -> bool {
        self.waiting.contains(&inode) || self.at_work.contains(&inode)
    }

    /// Begins a round.
    pub fn take(&mut self, now: Instant) -> Vec<InodeId> {
        if !self.at_work.is_empty() || self.waiting.is_empty() || self.is_refused(now) {
            return Vec::new();
        }
        self.at_work = self.waiting.split_off(self.waiting.len().saturating_sub(ROUND_MAX));
        self.at_work.clone()
    }

    pub fn end_round(&mut self, left: impl IntoIterator<Item = InodeId>, not_before: Option<Instant>) {
        self.at_work.clear();
        self.not_before = not_before;
        self.waiting.extend(left);
    }
}

/// The garbage rows for a decision with these effects.
pub(super) fn rows_for(effects: &[Effect]) -> impl Iterator<Item = Change> {
    effects.iter().filter_map(|effect| match effect {
        Effect::Reap(inode) => Some(row_for(*inode)),
        _ => None,
    })
}

pub(super) fn row_for(inode: InodeId) -> Change {
    Change::put(Key::Garbage(inode), Row::Garbage)
}
