//! Sizes of closed files.
//!
//! A row is told the size of a backing file when the file has been closed and synced, so that a loss of power leaves no row
//! that says more or less than the store has. Close does not wait for that: the file goes to a queue, is synced within the
//! volume's sync interval, and until then its own size counts, as while it was open. What never comes so far, because
//! this process ends, is left unsettled, which is right and only slower to ask for, until somebody opens it: then it goes
//! the same way.

use super::OpenInode;
use super::backing::{self, BackingStat};
use super::content::Content;
use crate::calls::Refusal;
use crate::{Failure, FileSystem, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use varve_types::{Credentials, Errno, InodeId};
use varve_wire::handshake::Purpose;
use varve_wire::{Call, FileContent, SizeState};
use varve_world::clock::Moment;
use varve_world::disk;

/// Closed files that wait. Beyond, who closes one syncs it: then files are made faster than the store can sync them.
const WAITING_MAX: usize = 65_536;

/// Files that are settled after one sync of the store's file system.
const ROUND_MAX: usize = 1024;

/// Up to so many files are synced one by one, more by one sync of the store's file system.
const SYNCED_ALONE_MAX: usize = 8;

/// Times that the server is asked while other clients change the file too; the pause doubles.
const ASKED_MAX: u32 = 5;

/// Closed files whose sizes are not settled yet.
#[derive(Default)]
pub(crate) struct Settling {
    files: HashMap<InodeId, Closed>,
    /// Closes so far.
    closes: u64,
}

#[derive(Clone)]
struct Closed {
    due: Moment,
    /// Which close it was: a later one is to be synced anew.
    close: u64,
    asked: u32,
    generation: u32,
    writer: Credentials,
}

/// A file whose turn it is.
#[derive(Clone, Copy)]
struct Due {
    inode: InodeId,
    close: u64,
}

enum Added {
    Anew,
    Again,
    Full,
}

/// What became of one.
enum Outcome {
    /// Settled, or not to be settled by this close.
    Done,
    /// The server waits for other clients.
    Later,
}

impl Settling {
    fn add(&mut self, inode: InodeId, due: Moment, generation: u32, writer: &Credentials) -> Added {
        let waiting = self.files.get(&inode).map(|closed| closed.due);
        if waiting.is_none() && self.files.len() >= WAITING_MAX {
            return Added::Full;
        }
        self.closes += 1;
        // A file that is closed again and again is settled as early as one that is closed once.
        let due = waiting.unwrap_or(due);
        self.files.insert(inode, Closed { due, close: self.closes, asked: 0, generation, writer: writer.clone() });
        if waiting.is_some() { Added::Again } else { Added::Anew }
    }

    fn due(&self, now: Moment) -> Vec<Due> {
        let due = self.files.iter().filter(|(_, closed)| closed.due <= now);
        due.map(|(inode, closed)| Due { inode: *inode, close: closed.close }).take(ROUND_MAX).collect()
    }

    fn get(&self, due: Due) -> Option<&Closed> {
        self.files.get(&due.inode).filter(|closed| closed.close == due.close)
    }

    /// Takes the file from the queue, which is `true`, or puts it off. Nothing if it was closed again meanwhile.
    fn end(&mut self, due: Due, outcome: &Outcome, now: Moment, pause: Duration) -> bool {
        let Some(closed) = self.files.get_mut(&due.inode).filter(|closed| closed.close == due.close) else {
            return false;
        };
        if matches!(outcome, Outcome::Later) && closed.asked + 1 < ASKED_MAX {
            closed.due = now.after(pause * 2_u32.pow(closed.asked));
            closed.asked += 1;
            return false;
        }
        self.files.remove(&due.inode);
        true
    }
}

impl FileSystem {
    /// Nobody here writes the file any more: it is settled soon.
    pub(super) async fn settle_written(&self, open: &OpenInode, content: &mut Content) -> Result<()> {
        if !(open.backing.read().unsettled || content.left) || self.settle_later(open, content) {
            return Ok(());
        }
        if let Some(file) = open.file() {
            file.sync_data().map_err(|error| Failure::store("cannot sync a backing file", &error))?;
        }
        self.settle(open, content).await.map(drop)
    }

    /// Whether this client changes anything: what others have left, too.
    pub(super) fn may_settle(&self) -> bool {
        !self.core.config.read_only && self.core.config.purpose == Purpose::Work
    }

    /// Has the file wait until it is settled. `false`: too many do.
    pub(super) fn settle_later(&self, open: &OpenInode, content: &Content) -> bool {
        let due = self.core.clock.monotonic().after(self.core.settings.sync_interval);
        let added = self.files.settling.lock().add(open.inode, due, content.generation, &content.writer);
        if matches!(added, Added::Anew) {
            // How it is asked for is remembered for as long as it waits.
            self.core.inodes.opened(open.inode);
        }
        !matches!(added, Added::Full)
    }

    /// Settles what was closed a sync interval ago.
    pub(crate) async fn settle_closed(&self) {
        self.settle_due(self.core.clock.monotonic()).await;
    }

    /// Settles every closed file now, as far as the server lets it: for a shutdown, or who wants the rows to be right.
    pub async fn settle_all(&self) {
        self.settle_due(Moment(Duration::MAX)).await;
    }

    async fn settle_due(&self, until: Moment) {
        loop {
            let due = self.files.settling.lock().due(until);
            if due.is_empty() {
                return;
            }
            let synced = due.len() > SYNCED_ALONE_MAX && self.sync_backing_files().is_ok();
            for due in due {
                if !self.settle_one(due, synced).await {
                    return;
                }
            }
        }
    }

    /// `false`: the server is gone, and every further file would wait as long.
    async fn settle_one(&self, due: Due, synced: bool) -> bool {
        let there = if synced { Ok(true) } else { self.sync_closed(due.inode) };
        let settled = match there {
            Ok(true) => self.settle_closed_file(due).await,
            // Removed since.
            Ok(false) => Ok(Outcome::Done),
            Err(failure) => Err(failure),
        };
        let gone = matches!(&settled, Err(failure) if failure.errno == Errno::ETIMEDOUT);
        let outcome = settled.unwrap_or_else(|failure| {
            // The row goes on to say that the backing file's size counts, which is right, only slower.
            tracing::warn!(inode = %due.inode, "the size of a closed file could not be settled: {failure}");
            if gone { Outcome::Later } else { Outcome::Done }
        });
        let now = self.core.clock.monotonic();
        let pause = self.core.settings.sync_interval;
        if self.files.settling.lock().end(due, &outcome, now, pause) {
            self.core.inodes.closed(due.inode);
        }
        !gone
    }

    /// `false`: there is no such file any more.
    fn sync_closed(&self, inode: InodeId) -> Result<bool> {
        let store = &self.core.config.store;
        let path = store.backing_file(inode);
        match disk::File::open(&path).and_then(|file| file.sync_data()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && store.lacks(&path).is_ok_and(|none| none) => {
                Ok(false)
            }
            Err(error) => Err(Failure::store("cannot sync a backing file", &error)),
        }
    }

    /// The file has been synced since its close.
    async fn settle_closed_file(&self, due: Due) -> Result<Outcome> {
        let open = self.files.enter(due.inode, false);
        self.core.inodes.opened(due.inode);
        let settled = self.settle_entered(&open, due).await;
        self.leave(&open);
        settled
    }

    async fn settle_entered(&self, open: &OpenInode, due: Due) -> Result<Outcome> {
        // Held to the end: who wants to write here unsettles first, and waits for it.
        let mut content = open.content.lock().await;
        let Some(closed) = self.files.settling.lock().get(due).cloned() else { return Ok(Outcome::Done) };
        if open.counts.lock().writers > 0 {
            // Its close will come.
            return Ok(Outcome::Done);
        }
        if open.file().is_none() {
            content.generation = closed.generation;
            content.writer = closed.writer;
            let file = match backing::open(&self.core, due.inode) {
                // Removed since it was synced.
                Err(_) if !self.core.config.store.backing_file(due.inode).exists() => return Ok(Outcome::Done),
                opened => opened?,
            };
            open.backing.write().file = Some(Arc::new(file));
        }
        self.settle(open, &mut content).await
    }

    /// Tells the row size and mtime of the backing file, which has been synced since it was last written.
    async fn settle(&self, open: &OpenInode, content: &mut Content) -> Result<Outcome> {
        let file = {
            // Taken alone, so no write is under way; the next one has to unsettle first, which waits for `content`.
            let mut backing = open.backing.write();
            backing.unsettled = false;
            backing.file.clone()
        };
        let Some(file) = file else { return Ok(Outcome::Done) };
        let BackingStat { size, mtime, .. } = backing::stat(&file)?;
        let generation = content.generation;
        let call = |at| Call::SettleSize { at, generation, size, mtime: mtime.into() };
        match self.ask_open(&content.writer, open.inode, call).await {
            Ok(reply) => {
                content.told(&reply);
                open.size_told(&reply);
                let unsettled = reply.content != FileContent::Backing(SizeState::Settled);
                open.backing.write().unsettled = unsettled;
                content.left &= unsettled;
                if unsettled && open.ends_early(size) {
                    tracing::error!("{}", self.cut_short(open, size));
                    return Ok(Outcome::Done);
                }
                Ok(if unsettled { Outcome::Later } else { Outcome::Done })
            }
            // Removed, or changed by who will settle it.
            Err(Refusal::Stale | Refusal::NotHere | Refusal::Moved { .. }) => Ok(Outcome::Done),
            Err(Refusal::Failure(failure)) if failure.errno == Errno::ESTALE => Ok(Outcome::Done),
            // A client that speaks for one user, and had only looked at what another left: who writes it settles it.
            Err(Refusal::Failure(failure)) if failure.errno == Errno::EBADF => Ok(Outcome::Done),
            Err(refusal) => Err(refusal.into()),
        }
    }
}
