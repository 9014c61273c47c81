//! Removes backing files whose files are gone.
//!
//! The change that removes a large file's rows adds a garbage row, in the same batch, to the shard that made the
//! change. The backing file is removed only after that batch is fsynced: otherwise a machine failure could bring back a
//! name whose data are gone. The row is deleted when the removal of the backing file is on disk, so the shard's next
//! owner continues after a crash. Ids are never reused, so a late removal hits no other file.
//!
//! Removals are gathered for a second. While the store has little free space, each is done before the reply to the
//! change that caused it, so that a program which removes files finds the space that they had.

use super::refusal::ShardRefusal;
use super::shard::{Shard, ShardState};
use std::cell::Cell;
use std::collections::HashSet;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use varve_env::clock::Instant;
use varve_env::disk;
use varve_env::reserve::Reserve;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::VolumeDir;
use varve_posix::Effect;
use varve_schema::{Change, Key, Row};
use varve_types::InodeId;

/// How often backing files are removed.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// Backing files removed in one round, with one fsync of the log and one of each directory. A close may wait for a
/// round.
const ROUND_MAX: usize = 1024;

/// How long nothing is removed after the store refused a removal.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Time limit for removals when a shard closes; the rest is removed after the next open.
const AT_CLOSE_MAX: Duration = Duration::from_secs(5);

/// How long a reply waits for the removal of a backing file from a full store: fsyncs of the log and of a directory.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(2);

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

    /// Looks at the store's free space, and takes the reserve again or reports the shortage.
    async fn look(&self) {
        let Some(reserve) = self.reserve.clone() else { return };
        // The server logs failures of its own checks.
        let _ = tokio::task::spawn_blocking(move || reserve.tend()).await;
    }

    fn is_tight(&self) -> bool {
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

    fn is_refused(&self, now: Instant) -> bool {
        self.not_before.is_some_and(|then| now < then)
    }

    fn holds(&self, inode: InodeId) -> bool {
        self.waiting.contains(&inode) || self.at_work.contains(&inode)
    }

    fn take(&mut self, now: Instant) -> Vec<InodeId> {
        if !self.at_work.is_empty() || self.waiting.is_empty() || self.is_refused(now) {
            return Vec::new();
        }
        self.at_work = self.waiting.split_off(self.waiting.len().saturating_sub(ROUND_MAX));
        self.at_work.clone()
    }

    fn end_round(&mut self, left: impl IntoIterator<Item = InodeId>, not_before: Option<Instant>) {
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

impl Shard {
    /// Removes backing files until the shard closes.
    pub(super) async fn collect_garbage(self: Rc<Self>) {
        loop {
            let wanted = tokio::time::timeout(COLLECT_EVERY, self.room.wanted.notified()).await.is_ok();
            if self.stopping() {
                return;
            }
            if !wanted {
                // An idle shard gives back memory that others need.
                self.shrink(&mut self.state.borrow_mut());
            }
            while self.collect_round().await {}
        }
    }

    /// Called when the garbage row of `inode` is appended. If the store has little space, returns when that of its
    /// backing file is free, unless the store refuses or takes too long.
    pub(super) async fn make_room(&self, inode: InodeId) {
        let now = self.clock.monotonic();
        let believed = self.room.looked.get().is_some_and(|looked| now.since(looked) < ROOM_BELIEVED);
        let room = async {
            if !believed && !self.room.is_tight() {
                self.room.looked.set(Some(now));
                self.room.look().await;
            }
            if !self.room.is_tight() {
                return;
            }
            self.room.wanted.notify_one();
            let gone =
                |state: &ShardState| !state.garbage.holds(inode) || state.garbage.is_refused(self.clock.monotonic());
            if self.wait_until(gone).await.is_ok() {
                self.room.look().await;
            }
        };
        // Too slow: the space is free later.
        let _ = tokio::time::timeout(ROOM_WAIT_MAX, room).await;
    }

    /// Removes as much as possible before the shard closes, unless the store refuses.
    pub(super) async fn collect_last_garbage(&self) {
        let collect = async {
            self.wait_until(|state| state.garbage.at_work.is_empty()).await?;
            while self.collect_round().await {}
            Ok::<(), ShardRefusal>(())
        };
        // Too slow, busy or failed: the rest stays behind.
        let _ = tokio::time::timeout(AT_CLOSE_MAX, collect).await;
    }

    /// Runs one round. `false`: nothing more to do at present.
    async fn collect_round(&self) -> bool {
        let (inodes, batch) = {
            let mut state = self.state.borrow_mut();
            if state.failed.is_some() {
                return false;
            }
            (state.garbage.take(self.clock.monotonic()), state.open.number)
        };
        if inodes.is_empty() {
            return false;
        }
        self.work.notify_one();
        let recorded = match self.appended(batch).await {
            Ok(()) => self.sync().await,
            Err(refusal) => Err(refusal),
        };
        let (gone, refused) = match recorded {
            Ok(()) => {
                let files: Vec<_> = inodes.iter().map(|inode| (*inode, self.volume.backing_file(*inode))).collect();
                let volume = self.volume.clone();
                match tokio::task::spawn_blocking(move || remove(&volume, &files)).await {
                    Ok(removed) => removed,
                    Err(error) => (HashSet::new(), Some(error.to_string())),
                }
            }
            Err(refusal) => (HashSet::new(), Some(refusal.to_string())),
        };
        let mut state = self.state.borrow_mut();
        let left: Vec<_> = inodes.iter().copied().filter(|inode| !gone.contains(inode)).collect();
        let not_before = refused.as_ref().map(|_| self.clock.monotonic().after(AGAIN_AFTER));
        if let Some(reason) = &refused {
            let (shard, number) = (self.id, left.len());
            tracing::warn!("shard {shard}: cannot remove {number} backing files of removed files yet: {reason}");
        }
        if state.failed.is_none() {
            gone.into_iter().for_each(|inode| self.apply(&mut state, Change::Delete(Key::Garbage(inode))));
        }
        state.garbage.end_round(left, not_before);
        drop(state);
        self.changed.notify_waiters();
        self.work.notify_one();
        refused.is_none()
    }
}

/// Returns the inodes whose backing files are gone, on disk too, and the reason why others are not.
fn remove(volume: &VolumeDir, files: &[(InodeId, StorePath)]) -> (HashSet<InodeId>, Option<String>) {
    let mut refused = None;
    let mut refuse = |path: &StorePath, error: io::Error| {
        refused.get_or_insert_with(|| format!("{}: {error}", path.display()));
    };
    if let Err(error) = volume.data_in_place() {
        refuse(&volume.data(), error);
        return (HashSet::new(), refused);
    }
    let mut gone: Vec<_> = files
        .iter()
        .filter(|(_, path)| match disk::remove_file(path) {
            Err(error) if !is_gone(volume, path, &error) => {
                refuse(path, error);
                false
            }
            _ => true,
        })
        .collect();
    let mut directories: Vec<_> = gone.iter().copied().map(|(_, path)| path.parent()).collect();
    directories.sort_unstable();
    directories.dedup();
    for directory in directories {
        match disk::sync_directory(&directory) {
            Err(error) if !is_gone(volume, &directory, &error) => {
                refuse(&directory, error);
                gone.retain(|(_, path)| path.parent() != directory);
            }
            _ => {}
        }
    }
    let gone = gone.into_iter().map(|(inode, _)| *inode).collect();
    (gone, refused)
}

/// Whether `error` means that the file does not exist, and not that the whole store is unreachable.
fn is_gone(volume: &VolumeDir, path: &StorePath, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && volume.lacks(path).is_ok_and(|lacks| lacks)
}
