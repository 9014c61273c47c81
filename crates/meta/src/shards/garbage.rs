//! Backing files that lost their files.
//!
//! The change that takes a large file's rows away puts a garbage row in the shard that made it, in the same batch. The
//! backing file is removed only after that batch is fsynced: else a machine that fails could come back with a name whose
//! data are gone. The row goes when the removal of the backing file is on disk, so whoever opens the shard next goes on
//! where a crash cut this short. Ids are never given twice, so a late removal meets no other file.

use super::refusal::ShardRefusal;
use super::shard::Shard;
use crate::namespace::Effect;
use crate::tables::{Change, Key, Row};
use std::collections::HashSet;
use std::io;
use std::rc::Rc;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::disk;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::VolumeDir;
use varve_types::InodeId;

/// How often backing files are removed.
const COLLECT_EVERY: Duration = Duration::from_secs(1);

/// Backing files removed in one go, for one fsync of the log and one of each directory; a close may be waiting between.
const ROUND_MAX: usize = 1024;

/// How long nothing is removed after the store has refused it.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// What a shard that closes spends on removing; what is left then is removed when it is opened again.
const AT_CLOSE_MAX: Duration = Duration::from_secs(5);

/// Backing files that have garbage rows in this shard.
#[derive(Default)]
pub(super) struct Garbage {
    waiting: Vec<InodeId>,
    /// After a refusal of the store: not before.
    not_before: Option<Instant>,
    /// A round is under way.
    at_work: bool,
}

impl Garbage {
    /// The row of `inode` is in the open batch, or earlier.
    pub fn add(&mut self, inode: InodeId) {
        self.waiting.push(inode);
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    fn take(&mut self, now: Instant) -> Vec<InodeId> {
        if self.at_work || self.waiting.is_empty() || self.not_before.is_some_and(|then| now < then) {
            return Vec::new();
        }
        self.at_work = true;
        self.waiting.split_off(self.waiting.len().saturating_sub(ROUND_MAX))
    }

    fn end_round(&mut self, left: impl IntoIterator<Item = InodeId>, not_before: Option<Instant>) {
        self.at_work = false;
        self.not_before = not_before;
        self.waiting.extend(left);
    }
}

/// The rows that a decision with these effects leaves.
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
    /// Removes backing files that lost their files. Runs until the shard closes.
    pub(super) async fn collect_garbage(self: Rc<Self>) {
        loop {
            tokio::time::sleep(COLLECT_EVERY).await;
            if self.stopping() {
                return;
            }
            // An idle shard gives back what others need.
            self.shrink(&mut self.state.borrow_mut());
            while self.collect_round().await {}
        }
    }

    /// What can be removed before the shard closes; in vain where the store does not let it.
    pub(super) async fn collect_last_garbage(&self) {
        let collect = async {
            self.wait_until(|state| !state.garbage.at_work).await?;
            while self.collect_round().await {}
            Ok::<(), ShardRefusal>(())
        };
        // Too slow, busy or failed: what is left is left behind.
        let _ = tokio::time::timeout(AT_CLOSE_MAX, collect).await;
    }

    /// `false`: there is no more to do at present.
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
            tracing::warn!(
                "shard {shard}: {number} backing files of removed files stay until the store lets them go: {reason}"
            );
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

/// The inodes whose backing files are gone, on disk too, and what kept others.
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

/// Whether `error` says that there is no such file, and not that the whole store is away.
fn is_gone(volume: &VolumeDir, path: &StorePath, error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound && volume.lacks(path).is_ok_and(|lacks| lacks)
}
