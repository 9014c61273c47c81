//! Effects of a decision outside the tables: changes of backing files, and the removal of files without a name.
//!
//! Everything that a crash leaves undone is found again by its row: a truncate, an orphan, and a backing file to be
//! removed (`garbage.rs`).

use super::garbage;
use super::open_files::Openness;
use super::refusal::{Cause, ShardRefusal};
use super::replies::SessionChange;
use super::shard::Shard;
use futures::future::join_all;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::system_time;
use varve_env::disk::File;
use varve_env::stop_point::{self, StopPoint};
use varve_env::store_path::StorePath;
use varve_env::volume_dir::BACKING_MODE_BITS;
use varve_posix::{Effect, KeyState};
use varve_schema::{Change, Content, Key, Row};
use varve_store::errno_of_store;
use varve_types::{Credentials, Errno, InodeId, SessionId};

/// How long an opened shard waits for sessions of the server before it. A client with open files finds a restarted
/// server within seconds, even without calls, and registers its files again.
pub const SESSIONS_RETURN: Duration = Duration::from_secs(30);

/// Limit on orphans reaped in parallel after a start. A client that removed a large tree may leave a million.
pub(super) const REAPED_AT_ONCE: usize = 256;

impl Shard {
    /// Carries out the effects of a committed decision before its reply is sent. A retry runs this again, because its
    /// first reply may have been sent by a server that died before the effects. If an effect fails, this gives up that
    /// effect and the ones after it for good, and forgets the reply to the change `asked`.
    pub async fn perform(
        self: &Rc<Self>,
        effects: Vec<Effect>,
        asked: Option<SessionChange>,
    ) -> Result<(), ShardRefusal> {
        let mut effects = effects.into_iter();
        while let Some(effect) = effects.next() {
            if let Err(refusal) = self.perform_one(effect, asked).await {
                self.give_up_all(effects, asked, &refusal);
                return Err(refusal);
            }
        }
        Ok(())
    }

    async fn perform_one(self: &Rc<Self>, effect: Effect, asked: Option<SessionChange>) -> Result<(), ShardRefusal> {
        match effect {
            // The garbage row records it.
            Effect::Reap(inode) => self.make_room(inode).await,
            Effect::Own { inode, uid, gid, mode } => {
                if self.settings.owner_uid == Credentials::ROOT_UID {
                    let open = |path: &StorePath| File::open(path);
                    self.on_backing_file(inode, open, move |file| {
                        file.set_owner(uid, gid)?;
                        file.set_permissions(Permissions::from_mode(u32::from(mode.bits()) & BACKING_MODE_BITS))
                    })
                    .await?;
                }
            }
            Effect::Touch { inode, mtime } => {
                let open = |path: &StorePath| File::open_to_write(path);
                self.on_backing_file(inode, open, move |file| file.set_modified(system_time(mtime))).await?;
            }
            Effect::Truncate { at, decided } => self.truncate(at, decided, asked).await?,
            Effect::SizeStale(inode) => self.mark_size_stale_on_disk(inode).await?,
        }
        Ok(())
    }

    /// Returns when the row of `inode`, if it has just become stale, is stale on disk too. Otherwise a power failure
    /// after the first write to the backing file could leave a row with an authoritative size and a file of another
    /// size.
    pub async fn mark_size_stale_on_disk(self: &Rc<Self>, inode: InodeId) -> Result<(), ShardRefusal> {
        let Some(batch) = self.state.borrow().size_stale.get(&inode).copied() else { return Ok(()) };
        // The batch may not be appended yet.
        self.durable(batch).await?;
        let mut state = self.state.borrow_mut();
        // Otherwise the row became stale again in the meantime, in a later batch that is not on disk.
        if state.size_stale.get(&inode) == Some(&batch) {
            state.size_stale.remove(&inode);
        }
        Ok(())
    }

    /// Runs `work` on the path of a backing file, on a thread that may block on the store.
    ///
    /// `work` gets the opened file if the lease of the server runs then: the next owner of the shard repeats the change,
    /// and clients write the file after that. A server whose lease has ended refuses with `Busy`, because it cannot know
    /// whether it still owns the shard.
    pub(super) async fn on_backing_file(
        &self,
        inode: InodeId,
        open: impl FnOnce(&StorePath) -> io::Result<File> + Send + 'static,
        work: impl FnOnce(&File) -> io::Result<()> + Send + 'static,
    ) -> Result<(), ShardRefusal> {
        let path = self.volume.backing_file(inode);
        let shown = path.clone();
        let (volume, lease) = (self.volume.clone(), Arc::clone(&self.lease));
        let work = move || {
            // Report a store error, not an error that means that the file does not exist.
            volume.data_in_place().map_err(io::Error::other)?;
            let file = open(&path)?;
            stop_point::reach(StopPoint::BackingFileOpened);
            if !lease.is_valid() {
                return Ok(Err(ShardRefusal::Busy));
            }
            work(&file).map(Ok)
        };
        let done = tokio::task::spawn_blocking(work).await;
        match done {
            Ok(Ok(done)) => done,
            Ok(Err(error)) if error.raw_os_error() == Some(Errno::EFBIG.number()) => Err(Errno::EFBIG.into()),
            Ok(Err(error)) if error.kind() == io::ErrorKind::StorageFull => Err(Errno::ENOSPC.into()),
            Ok(Err(error)) => {
                let reason = format!("backing file {}: {error}", shown.display());
                Err(ShardRefusal::Failed(Cause { errno: errno_of_store(&error), reason }))
            }
            Err(error) => Err(ShardRefusal::Failed(format!("backing file {}: {error}", shown.display()).into())),
        }
    }

    // Files without a name.

    /// `session` has closed `inode`, a file of this shard, for the last time.
    pub fn release(self: &Rc<Self>, session: SessionId, inode: InodeId) {
        // In a read-only view the orphan is left to the next owner.
        if self.open_files.release(session, inode) && !self.is_read_only() {
            self.reap_if_orphan(inode);
        }
    }

    /// No session has `inode`, a file of this shard, open any more: if it has no name either, it is removed.
    pub(super) fn reap_if_orphan(self: &Rc<Self>, inode: InodeId) {
        if !self.may_be_orphan(inode) {
            return;
        }
        let shard = self.clone();
        tokio::task::spawn_local(async move { shard.reap(inode).await });
    }

    /// Removes the orphans that were closed while the shard moved to this worker.
    pub fn reap_closed_orphans(self: &Rc<Self>) {
        tokio::task::spawn_local(reap_closed(Rc::downgrade(self)));
    }

    async fn reap(self: &Rc<Self>, inode: InodeId) {
        if let Err(refusal) = self.reap_orphan(inode).await {
            tracing::warn!("shard {}: orphan {inode} stays until the next start: {refusal}", self.id);
        }
    }

    /// Whether an inode of this shard is an orphan, or an undecided change makes it one. Most closed files are not
    /// orphans, and this check avoids a table read for each.
    fn may_be_orphan(&self, inode: InodeId) -> bool {
        let state = self.state.borrow();
        state.orphans.contains(&inode) || state.locks.holds(&Key::Orphan(inode))
    }

    /// Removes an inode of this shard if it is an orphan and no session has it open.
    pub(super) async fn reap_orphan(self: &Rc<Self>, inode: InodeId) -> Result<(), ShardRefusal> {
        if !self.may_be_orphan(inode) {
            return Ok(());
        }
        let (orphan, node) = (Key::Orphan(inode), Key::Inode(inode));
        let (batch, has_backing_file) = loop {
            self.fetch_here(&orphan).await?;
            self.fetch_here(&node).await?;
            let mut state = self.state.borrow_mut();
            // One row may be dropped while the other is fetched, or a transaction may have locked both.
            if [&orphan, &node].into_iter().any(|key| self.seen_here(&state, key).0 == KeyState::Unknown) {
                continue;
            }
            let open = self.open_files.openness(inode, self.clock.monotonic()) != Openness::Closed;
            if open || !matches!(self.seen_here(&state, &orphan).0, KeyState::Present(_)) {
                return Ok(());
            }
            let mut changes = vec![Change::Delete(orphan)];
            let mut has_backing_file = false;
            if let KeyState::Present(Row::Inode(row)) = self.seen_here(&state, &node).0 {
                has_backing_file = matches!(row.content, Content::Backing(_));
                changes.extend(row.xattrs.iter().map(|name| Change::Delete(Key::Xattr(inode, name.clone()))));
                changes.push(Change::Delete(node));
            }
            if has_backing_file {
                changes.push(garbage::row_for(inode));
            }
            changes.into_iter().for_each(|change| self.apply(&mut state, change));
            break (state.open.number, has_backing_file);
        };
        self.work.notify_one();
        self.appended(batch).await?;
        if has_backing_file {
            self.make_room(inode).await;
        }
        Ok(())
    }
}

/// Removes orphans that earlier epochs left, or that were made before all sessions were known, if no session has
/// claimed them. Stops if the shard is gone.
pub(super) async fn reap_leftovers(shard: Weak<Shard>) {
    let mut wait = SESSIONS_RETURN;
    while !wait.is_zero() {
        tokio::time::sleep(wait).await;
        let Some(shard) = shard.upgrade() else { return };
        wait = shard.open_files.until_sessions_known(shard.clock.monotonic());
    }
    reap_closed(shard).await;
}

/// Removes the orphans that no session has open. Stops if the shard is gone.
async fn reap_closed(shard: Weak<Shard>) {
    let closed = |shard: Rc<Shard>| {
        let (state, now) = (shard.state.borrow(), shard.clock.monotonic());
        let is_closed = |inode: &InodeId| shard.open_files.openness(*inode, now) == Openness::Closed;
        state.orphans.iter().copied().filter(is_closed).collect::<Vec<_>>()
    };
    for some in shard.upgrade().map(closed).unwrap_or_default().chunks(REAPED_AT_ONCE) {
        let Some(shard) = shard.upgrade().filter(|shard| !shard.stopping()) else { return };
        join_all(some.iter().map(|inode| shard.reap(*inode))).await;
    }
}
