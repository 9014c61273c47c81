//! Records the sizes of closed files.
//!
//! The client records the size of a backing file in its row when the file has been closed and synced, so that after a
//! power loss no row differs from the store. Close does not wait for that: the file is queued and synced within the
//! volume's sync interval. Until then its own size counts, as while it was open. If the process ends first, the size
//! stays stale, which is correct but slower to query, until a client opens the file: then its size is recorded in the
//! same way. A size that cannot be recorded, for example while the store is unreachable, stays queued and is tried
//! again.

mod queue;

pub(super) use queue::SizeQueue;

use super::OpenInode;
use super::backing::{self, BackingStat};
use super::content::ContentState;
use crate::calls::{CallRefusal, Wait};
use crate::{Failure, FileSystem, Result};
use queue::{Due, EnqueueOutcome, Outcome, Round, RoundTurn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use varve_env::{disk, flock};
use varve_proto::handshake::Purpose;
use varve_proto::{Call, FileContent, SizeState};
use varve_types::{Errno, InodeId};

/// Limit of the queue. Beyond it, the entries that failed are evicted, the oldest first. If there are none, the close
/// itself syncs the file, because files are then made faster than the store can sync them.
const WAITING_MAX: usize = 65_536;

/// Up to this many files are synced one by one, more by one syncfs of the store's file system.
const SYNCED_ALONE_MAX: usize = 8;

/// A round ends after this many failures: if the store fails, every further file would take as long.
const FAILURES_MAX: usize = 8;

/// Number of requests of a shutdown for one file, each after the reply that another client has changed the file too.
const ASKED_MAX: u32 = 5;

/// First and longest wait of a sync before it retries failed sizes.
const LATE_WAIT: Wait = Wait { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// Closed files whose sizes cannot be recorded yet, because the server does not know which other clients write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleSizes {
    pub files: usize,
    /// The server knows after this time.
    pub known_in: Duration,
    /// Whether a shutdown waits for that: its deadline is not earlier.
    pub awaited: bool,
}

impl Default for SizeQueue {
    fn default() -> SizeQueue {
        SizeQueue::new(WAITING_MAX)
    }
}

impl FileSystem {
    /// Called when this client has no writer of the file left: its size is recorded soon.
    pub(super) async fn record_written_sizes(&self, open: &OpenInode, content: &mut ContentState) -> Result<()> {
        if !(open.backing.read().size_stale || content.writer_gone) || self.record_size_later(open, content) {
            return Ok(());
        }
        if let Some(file) = open.file() {
            file.sync_data().map_err(|error| Failure::store("cannot sync a backing file", &error))?;
        }
        // Retried if the server requires a size measured after other clients have finished, because no later retry will
        // come.
        if let Outcome::Later = self.record_sizes(open, content).await? {
            self.record_sizes(open, content).await?;
        }
        Ok(())
    }

    /// Whether this client may record sizes, also those that other clients left stale.
    pub(super) fn may_record_size(&self) -> bool {
        !self.core.config.read_only && self.core.config.purpose == Purpose::Work
    }

    /// Queues the file for recording its size. `false`: the queue is full.
    pub(super) fn record_size_later(&self, open: &OpenInode, content: &ContentState) -> bool {
        let due = self.core.clock.monotonic().after(self.core.settings.sync_interval);
        let may_be_mapped = open.may_be_mapped.load(Relaxed);
        let added =
            self.files.size_queue.lock().add(open.inode, due, content.generation, &content.writer, may_be_mapped);
        if matches!(added, EnqueueOutcome::Anew | EnqueueOutcome::InPlaceOf(_)) {
            // The file's locator is kept while it is queued.
            self.core.inodes.opened(open.inode);
        }
        if let EnqueueOutcome::InPlaceOf(oldest) = added {
            tracing::error!(
                inode = %oldest,
                "too many unrecorded sizes of closed files: the next open after this mount records one of them"
            );
            self.core.inodes.closed(oldest);
        }
        added != EnqueueOutcome::Full
    }

    /// Closed files whose sizes are not recorded yet.
    pub fn sizes_to_record(&self) -> usize {
        self.files.size_queue.lock().len()
    }

    /// Records the sizes of files that were closed a sync interval ago.
    pub(crate) async fn record_closed_sizes(&self) {
        // Failed sizes are tried again.
        let _ = self.record_sizes_round(RoundTurn::By(self.core.clock.monotonic())).await;
    }

    /// Records the sizes that can be recorded now; returns those that a shutdown has to wait for.
    pub async fn record_known_sizes(&self) -> Option<StaleSizes> {
        // Failed sizes are tried again, and a sync reports them.
        let _ = self.record_sizes_round(RoundTurn::All).await;
        let (files, known_from) = self.files.size_queue.lock().unknown()?;
        let known_in = known_from.since(self.core.clock.monotonic());
        Some(StaleSizes { files, known_in, awaited: known_from <= self.core.deadline() })
    }

    /// Records the size of every closed file now, as far as the server permits: for a shutdown, or for a caller that
    /// needs correct rows. If the server does not know yet which other clients write them, waits for it, if the
    /// deadline permits. (A sync retries sizes that the store refuses, and reports the failure.)
    pub async fn record_all_sizes(&self) {
        let deadline = self.core.deadline();
        self.files.size_queue.lock().hurry(self.core.clock.monotonic());
        let mut asked = 0;
        while asked < ASKED_MAX && self.sizes_to_record() > 0 {
            let failed = self.record_sizes_round(RoundTurn::All).await.is_err();
            let unknown = self.files.size_queue.lock().unknown();
            match unknown {
                Some((_, known_from)) if failed || known_from > deadline => {
                    return tracing::warn!(
                        "sizes of {} closed files are not recorded: the server was started too recently to know their \
                         other writers; the next open of each file records its size",
                        self.sizes_to_record()
                    );
                }
                Some((_, known_from)) => self.core.pause(known_from.since(self.core.clock.monotonic())).await,
                None if failed => return,
                None => asked += 1,
            }
        }
    }

    /// Records sizes that could not be recorded when they were due, for example while the store was unreachable.
    /// Retries until the deadline. `true` if there were any.
    pub(crate) async fn record_late_sizes(&self) -> Result<bool> {
        let deadline = self.core.deadline();
        let mut wait = LATE_WAIT;
        let closes = self.files.size_queue.lock().closes();
        let mut any = false;
        while self.files.size_queue.lock().failed() > 0 {
            any = true;
            let now = self.core.clock.monotonic();
            let Err(failure) = self.record_sizes_round(RoundTurn::Late { closes, now }).await else { break };
            if !heals_soon(failure.errno) || self.core.clock.monotonic() >= deadline {
                let left = self.files.size_queue.lock().failed();
                let text = format!("cannot record the sizes of {left} closed files: {failure}");
                return Err(Failure::new(failure.errno, text));
            }
            self.core.pause(wait.next()).await;
        }
        Ok(any)
    }

    /// Tries each due file once. An error: the last failure.
    async fn record_sizes_round(&self, turn: RoundTurn) -> Result<()> {
        let (round, failed_before) = {
            let mut size_queue = self.files.size_queue.lock();
            (size_queue.begin_round(), size_queue.failed())
        };
        let (mut failures, mut last) = (0, Ok(()));
        'round: loop {
            let due = self.files.size_queue.lock().due(turn, round);
            if due.is_empty() {
                break;
            }
            let synced = due.len() > SYNCED_ALONE_MAX && self.sync_backing_files().is_ok();
            for due in due {
                let Err(failure) = self.record_one_size(due, synced, round).await else { continue };
                failures += 1;
                // The server is gone, and every further file would wait as long.
                let gone = failure.errno == Errno::ETIMEDOUT;
                last = Err(failure);
                if gone || failures >= FAILURES_MAX {
                    break 'round;
                }
            }
        }
        let failed = self.files.size_queue.lock().failed();
        match &last {
            Err(failure) if failed_before == 0 => {
                tracing::warn!("cannot record the sizes of closed files, retrying: {failure}");
            }
            Ok(()) if failed_before > 0 && failed == 0 => tracing::info!("all sizes of closed files are recorded"),
            _ => {}
        }
        last
    }

    /// An error if it must be tried again.
    async fn record_one_size(&self, due: Due, synced: bool, round: Round) -> Result<()> {
        let written = self.files.find(due.inode).is_some_and(|open| open.counts.lock().writers > 0);
        let there = if synced || written { Ok(true) } else { self.sync_closed(due.inode) };
        let recorded = match there {
            // The mapping changes the times of the backing file, which count while the size is stale.
            Ok(true) if written || due.may_be_mapped && self.is_mapped(due.inode) => Ok(Outcome::Later),
            Ok(true) => self.record_closed_size(due).await,
            // Removed since.
            Ok(false) => Ok(Outcome::Done),
            Err(failure) => Err(failure),
        };
        let (outcome, failed) = match recorded {
            Ok(outcome) => (outcome, Ok(())),
            // The row still says that the backing file's own size counts, which is correct, but slower, and a
            // truncation by another program goes unnoticed.
            Err(failure) if may_pass(failure.errno) => (Outcome::Failed, Err(failure)),
            Err(failure) => {
                if let Some(suppressed) = self.core.log_is_due("size", &failure) {
                    let inode = due.inode;
                    tracing::warn!(%inode, "cannot record the size of a closed file{suppressed}: {failure}");
                }
                (Outcome::Done, Ok(()))
            }
        };
        let now = self.core.clock.monotonic();
        let pause = self.core.settings.sync_interval;
        if self.files.size_queue.lock().end(due, &outcome, round, now, pause) {
            self.core.inodes.closed(due.inode);
        }
        failed
    }

    /// `false`: the file no longer exists.
    fn sync_closed(&self, inode: InodeId) -> Result<bool> {
        let path = self.core.config.store.backing_file(inode);
        let in_place = self.core.config.store.data_in_place();
        match in_place.and_then(|()| disk::File::open(&path)).and_then(|file| file.sync_data()) {
            Ok(()) => Ok(true),
            Err(_) if self.is_removed(inode) => Ok(false),
            Err(error) => Err(Failure::store("cannot sync a backing file", &error)),
        }
    }

    /// Whether somebody has the closed file mapped for writing. The kernel tells of the close of a passthrough file, but
    /// not of the end of its mapping.
    fn is_mapped(&self, inode: InodeId) -> bool {
        let file = disk::File::open(&self.core.config.store.backing_file(inode));
        file.is_ok_and(|file| flock::has_writer(&file.into_lock()) == Some(true))
    }

    /// `false` also if the store is unreachable.
    fn is_removed(&self, inode: InodeId) -> bool {
        let store = &self.core.config.store;
        store.lacks(&store.backing_file(inode)).is_ok_and(|none| none)
    }

    /// The file has been synced since its close.
    async fn record_closed_size(&self, due: Due) -> Result<Outcome> {
        let open = self.files.enter(due.inode, false);
        self.core.inodes.opened(due.inode);
        let recorded = self.record_size_entered(&open, due).await;
        self.leave(&open);
        recorded
    }

    async fn record_size_entered(&self, open: &OpenInode, due: Due) -> Result<Outcome> {
        // Held to the end: a writer of this client must mark the size stale first, and waits for the lock.
        let mut content = open.content.lock().await;
        let Some(closed) = self.files.size_queue.lock().get(due).cloned() else { return Ok(Outcome::Done) };
        if open.counts.lock().writers > 0 {
            // It may have been opened meanwhile, and closed again without a write.
            return Ok(Outcome::Later);
        }
        if open.file().is_none() {
            content.generation = closed.generation;
            content.writer = closed.writer;
            let file = match backing::open(&self.core, due.inode) {
                // Removed since it was synced.
                Err(_) if self.is_removed(due.inode) => return Ok(Outcome::Done),
                opened => opened?,
            };
            open.backing.write().file = Some(Arc::new(file));
        }
        self.record_sizes(open, &mut content).await
    }

    /// Records size and mtime of the backing file, which has been synced since it was last written.
    async fn record_sizes(&self, open: &OpenInode, content: &mut ContentState) -> Result<Outcome> {
        let file = {
            // Locked exclusively, so no write is in progress. The next writer must mark the size stale first, which
            // waits for `content`. Cleared even if the server does not accept the size: the server may still have
            // counted this client as done.
            let mut backing = open.backing.write();
            self.files.outdated.note_reply(open.inode);
            backing.size_stale = false;
            backing.file.clone()
        };
        let Some(file) = file else { return Ok(Outcome::Done) };
        let BackingStat { size, mtime, .. } = backing::stat(&file)?;
        let generation = content.generation;
        let call = |at| Call::RecordSize { at, generation, size, mtime: mtime.into() };
        match self.ask_open(&content.writer, open.inode, call).await {
            Ok(reply) => {
                open.note_reply(content, &reply);
                open.size_noted(&reply);
                let size_stale = reply.content != FileContent::Backing(SizeState::Authoritative);
                content.writer_gone &= size_stale;
                if size_stale && open.ends_early(size) {
                    tracing::error!("{}", self.cut_short(open, size));
                    return Ok(Outcome::Done);
                }
                Ok(if size_stale { Outcome::Later } else { Outcome::Done })
            }
            // Removed, or changed by another client, which will record the size.
            Err(CallRefusal::Stale | CallRefusal::NotHere | CallRefusal::Moved { .. }) => Ok(Outcome::Done),
            Err(CallRefusal::Failure(failure)) if failure.errno == Errno::ESTALE => Ok(Outcome::Done),
            // A client of a single user that had only read a file with a stale size: the next writer records it.
            Err(CallRefusal::Failure(failure)) if failure.errno == Errno::EBADF => Ok(Outcome::Done),
            Err(CallRefusal::WritersUnknown(wait)) => Ok(Outcome::NotYet(wait)),
            Err(refusal) => Err(refusal.into()),
        }
    }
}

/// Whether the store's refusal with this errno may end when its trouble is over.
fn may_pass(errno: Errno) -> bool {
    heals_soon(errno) || matches!(errno, Errno::ETIMEDOUT | Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS)
}

/// Whether it may end shortly, so that a sync waits for it.
fn heals_soon(errno: Errno) -> bool {
    errno == Errno::EIO
}
