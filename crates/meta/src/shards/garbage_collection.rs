//! Removes the backing files in a shard's [`Garbage`](super::garbage::Garbage), in rounds.

use super::refusal::ShardRefusal;
use super::shard::{Shard, ShardState};
use std::collections::HashSet;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use varve_env::disk;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::VolumeDir;
use varve_schema::{Change, Key};
use varve_types::InodeId;

/// How often backing files are removed.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// How long nothing is removed after the store refused a removal.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// Time limit for removals when a shard closes; the rest is removed after the next open.
const AT_CLOSE_MAX: Duration = Duration::from_secs(5);

/// How long a reply waits for the removal of a backing file from a full store: fsyncs of the log and of a directory.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(2);

impl Shard {
    /// Removes backing files until the shard closes.
    pub(super) async fn collect_garbage(self: Rc<Self>) {
        loop {
            let wanted = tokio::time::timeout(COLLECT_EVERY, self.room.wanted()).await.is_ok();
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
        let believed = self.room.is_believed(now);
        let room = async {
            if !believed && !self.room.is_tight() {
                self.room.note_look(now);
                self.room.look().await;
            }
            if !self.room.is_tight() {
                return;
            }
            self.room.want();
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
            self.wait_until(|state| !state.garbage.is_at_work()).await?;
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
