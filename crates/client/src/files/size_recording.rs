//! Sizes of closed files.
//!
//! A row is told the size of a backing file when the file has been closed and synced, so that a loss of power leaves no row
//! that says more or less than the store has. Close does not wait for that: the file goes to a queue, is synced within the
//! volume's sync interval, and until then its own size counts, as while it was open. What never comes so far, because
//! this process ends, is left stale, which is right and only slower to ask for, until somebody opens it: then it goes
//! the same way. What cannot be settled, as while the store is away, is kept and tried again.

mod queue;

pub(super) use queue::SizeQueue;

use super::OpenInode;
use super::backing::{self, BackingStat};
use super::content::ContentState;
use crate::calls::{CallRefusal, Wait};
use crate::{Failure, FileSystem, Result};
use queue::{Due, EnqueueOutcome, Outcome, Round, RoundTurn};
use std::sync::Arc;
use std::time::Duration;
use varve_env::disk;
use varve_proto::handshake::Purpose;
use varve_proto::{Call, FileContent, SizeState};
use varve_types::{Errno, InodeId};

/// Closed files that wait. Beyond, those that could not be settled give way, the oldest first; where there are none, who
/// closes a file syncs it: then files are made faster than the store can sync them.
const WAITING_MAX: usize = 65_536;

/// Up to so many files are synced one by one, more by one sync of the store's file system.
const SYNCED_ALONE_MAX: usize = 8;

/// A round ends when so many could not be settled: with the store in trouble every further one would take as long.
const FAILURES_MAX: usize = 8;

/// Times that a shutdown asks the server, each after it has answered that another client has changed the file too.
const ASKED_MAX: u32 = 5;

/// First and longest wait of a sync before it tries again what could not be settled.
const LATE_WAIT: Wait = Wait { first: Duration::from_millis(50), longest: Duration::from_secs(1) };

/// Closed files whose sizes the server does not let anybody settle yet, because it does not know who else writes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleSizes {
    pub files: usize,
    /// After so long it knows.
    pub known_in: Duration,
    /// Whether a shutdown waits for that: its deadline is no earlier.
    pub awaited: bool,
}

impl Default for SizeQueue {
    fn default() -> SizeQueue {
        SizeQueue::new(WAITING_MAX)
    }
}

impl FileSystem {
    /// Nobody here writes the file any more: it is settled soon.
    pub(super) async fn record_written_sizes(&self, open: &OpenInode, content: &mut ContentState) -> Result<()> {
        if !(open.backing.read().size_stale || content.writer_gone) || self.record_size_later(open, content) {
            return Ok(());
        }
        if let Some(file) = open.file() {
            file.sync_data().map_err(|error| Failure::store("cannot sync a backing file", &error))?;
        }
        // Once more where the server wants a measure made after others were done, for nobody asks later.
        if let Outcome::Later = self.record_sizes(open, content).await? {
            self.record_sizes(open, content).await?;
        }
        Ok(())
    }

    /// Whether this client changes anything: what others have left, too.
    pub(super) fn may_record_size(&self) -> bool {
        !self.core.config.read_only && self.core.config.purpose == Purpose::Work
    }

    /// Has the file wait until it is settled. `false`: too many do.
    pub(super) fn record_size_later(&self, open: &OpenInode, content: &ContentState) -> bool {
        let due = self.core.clock.monotonic().after(self.core.settings.sync_interval);
        let added = self.files.size_queue.lock().add(open.inode, due, content.generation, &content.writer);
        if matches!(added, EnqueueOutcome::Anew | EnqueueOutcome::InPlaceOf(_)) {
            // How it is asked for is remembered for as long as it waits.
            self.core.inodes.opened(open.inode);
        }
        if let EnqueueOutcome::InPlaceOf(oldest) = added {
            tracing::error!(
                inode = %oldest,
                "too many sizes of closed files could not be settled: one is left to who opens the file after this mount"
            );
            self.core.inodes.closed(oldest);
        }
        added != EnqueueOutcome::Full
    }

    /// Closed files whose sizes are not settled yet.
    pub fn sizes_to_record(&self) -> usize {
        self.files.size_queue.lock().len()
    }

    /// Settles what was closed a sync interval ago.
    pub(crate) async fn record_closed_sizes(&self) {
        // What could not be settled is tried again.
        let _ = self.record_sizes_round(RoundTurn::By(self.core.clock.monotonic())).await;
    }

    /// Settles what can be settled now; answers what a shutdown has to wait for.
    pub async fn record_known_sizes(&self) -> Option<StaleSizes> {
        // What could not be settled is tried again, and told by a sync.
        let _ = self.record_sizes_round(RoundTurn::All).await;
        let (files, known_from) = self.files.size_queue.lock().unknown()?;
        let known_in = known_from.since(self.core.clock.monotonic());
        Some(StaleSizes { files, known_in, awaited: known_from <= self.core.deadline() })
    }

    /// Settles every closed file now, as far as the server lets it: for a shutdown, or who wants the rows to be right. A
    /// server that does not know yet who else writes them is waited for, if it can know by the deadline. (What the store
    /// refuses is tried again by a sync, and told by it.)
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
                        "sizes of {} closed files are not settled: the server has been at work for so short a time that it \
                         does not know yet who else writes them; who opens them next settles them",
                        self.sizes_to_record()
                    );
                }
                Some((_, known_from)) => self.core.pause(known_from.since(self.core.clock.monotonic())).await,
                None if failed => return,
                None => asked += 1,
            }
        }
    }

    /// Settles what could not be settled when it was due, as while the store was away, and tries that again until the
    /// deadline. `true` if there was any.
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
                let text = format!("sizes of closed files, {left} of them, cannot be settled: {failure}");
                return Err(Failure::new(failure.errno, text));
            }
            self.core.pause(wait.next()).await;
        }
        Ok(any)
    }

    /// Tries each file once whose turn it is. An error: the last one over which one could not be settled.
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
                tracing::warn!("sizes of closed files cannot be settled, and are tried again: {failure}");
            }
            Ok(()) if failed_before > 0 && failed == 0 => tracing::info!("all sizes of closed files are settled"),
            _ => {}
        }
        last
    }

    /// An error if it is to be tried again.
    async fn record_one_size(&self, due: Due, synced: bool, round: Round) -> Result<()> {
        let written = self.files.find(due.inode).is_some_and(|open| open.counts.lock().writers > 0);
        let there = if synced || written { Ok(true) } else { self.sync_closed(due.inode) };
        let recorded = match there {
            Ok(true) if written => Ok(Outcome::Later),
            Ok(true) => self.record_closed_size(due).await,
            // Removed since.
            Ok(false) => Ok(Outcome::Done),
            Err(failure) => Err(failure),
        };
        let (outcome, failed) = match recorded {
            Ok(outcome) => (outcome, Ok(())),
            // The row goes on to say that the backing file's size counts, which is right, only slower; but nobody notices if
            // something cuts the file.
            Err(failure) if may_pass(failure.errno) => (Outcome::Failed, Err(failure)),
            Err(failure) => {
                tracing::warn!(inode = %due.inode, "the size of a closed file could not be settled: {failure}");
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

    /// `false`: there is no such file any more.
    fn sync_closed(&self, inode: InodeId) -> Result<bool> {
        let path = self.core.config.store.backing_file(inode);
        let in_place = self.core.config.store.data_in_place();
        match in_place.and_then(|()| disk::File::open(&path)).and_then(|file| file.sync_data()) {
            Ok(()) => Ok(true),
            Err(_) if self.is_removed(inode) => Ok(false),
            Err(error) => Err(Failure::store("cannot sync a backing file", &error)),
        }
    }

    /// `false` also where the store is away.
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
        // Held to the end: who wants to write here unsettles first, and waits for it.
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

    /// Tells the row size and mtime of the backing file, which has been synced since it was last written.
    async fn record_sizes(&self, open: &OpenInode, content: &mut ContentState) -> Result<Outcome> {
        let file = {
            // Taken alone, so no write is under way; the next one has to unsettle first, which waits for `content`. Also where
            // the size is not taken: then the server may have taken this client for done.
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
            // Removed, or changed by who will settle it.
            Err(CallRefusal::Stale | CallRefusal::NotHere | CallRefusal::Moved { .. }) => Ok(Outcome::Done),
            Err(CallRefusal::Failure(failure)) if failure.errno == Errno::ESTALE => Ok(Outcome::Done),
            // A client that speaks for one user, and had only looked at what another left: who writes it settles it.
            Err(CallRefusal::Failure(failure)) if failure.errno == Errno::EBADF => Ok(Outcome::Done),
            Err(CallRefusal::WritersUnknown(wait)) => Ok(Outcome::NotYet(wait)),
            Err(refusal) => Err(refusal.into()),
        }
    }
}

/// Whether what the store refuses with it may go when its trouble is over.
fn may_pass(errno: Errno) -> bool {
    heals_soon(errno) || matches!(errno, Errno::ETIMEDOUT | Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS)
}

/// Whether that may be in a moment, so that who syncs waits for it.
fn heals_soon(errno: Errno) -> bool {
    errno == Errno::EIO
}
