//! Opens a worker's shards when it starts, opens failed shards again, and closes all shards when it stops.
//!
//! A worker listens before its shards are open, because replaying the logs after a crash may take seconds. A call for a
//! shard that is not open yet waits for it and moves it to the front of the queue. So the first replies come after the
//! replay of one or two logs, not of all.
//!
//! A shard that cannot be opened does not affect the others: calls for it fail with the reason, and the worker retries
//! it later, a damaged shard only when a call needs it. The server ends only if it can neither open nor read any shard,
//! because it would serve nothing.
//!
//! Opening a shard writes to the store. While the store takes no writes, the worker opens a read-only recovery view of
//! the last owner's rows and serves calls that only read from there. Nobody owns the shard then, so its rows stay as
//! they are until this server opens it.

mod closing;
mod loss;
mod reopening;

use super::dispatch::translate;
use super::worker::Worker;
use crate::shards::{Cause, Shard, ShardConfig, ShardError, TableConfig};
use futures::future;
use loss::{LostChanges, Owing};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use varve_proto::CallFailure;
use varve_types::{Epoch, Errno, InodeId, ShardId};

/// Shards that one worker opens concurrently: while one waits for the store, another uses the processor. With more, a
/// shard that a call waits for would share the processors with shards that nobody waits for.
const OPENING_MAX: usize = 2;

/// How long a call waits for its shard to be open before the worker replies Busy; the client then retries until its own
/// deadline. Clients rely on this (`client/calls.rs`).
const WANTED_MAX: Duration = Duration::from_secs(5);

/// How long a sync waits for a shard: an attempt that the store refuses takes some seconds, one may be in progress, and
/// the next one starts after a pause.
const SYNC_MAX: Duration = Duration::from_secs(10);

/// Why a caller needs a shard to be open.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OpenPurpose {
    Read,
    Change,
    /// A recent failure may be over by now. The caller of a sync would rather wait than get an error for trouble that
    /// is over and lost nothing. So the sync is answered by the next attempt to open the shard, and hastens that
    /// attempt.
    Sync,
    /// Like `Sync`, for a server that is about to end. It waits even if changes may be lost, because the next attempt
    /// shows whether they are.
    End,
}

/// The shards of a worker that are not open.
#[derive(Default)]
pub struct ShardOpening {
    /// Shards to be opened for the first time, in this order.
    waiting: RefCell<VecDeque<ShardId>>,
    under_way: Cell<usize>,
    /// Shards that could not be opened, and why.
    refused: RefCell<HashMap<ShardId, OpenFailure>>,
    /// Shards that were open and failed, with the cause, until the next attempt to open them has ended.
    failed: RefCell<HashMap<ShardId, Cause>>,
    /// Read-only recovery views of shards, until the shards can be opened.
    read_only: RefCell<HashMap<ShardId, Rc<Shard>>>,
    /// `asked`: shards that were refused and requested since. `hurried`: shards whose next attempt a caller waits for.
    asked: RefCell<HashSet<ShardId>>,
    hurried: RefCell<HashSet<ShardId>>,
    attempts: RefCell<HashMap<ShardId, Attempts>>,
    /// Shards that failed with acknowledged changes that may or may not have survived.
    owing: RefCell<HashMap<ShardId, Owing>>,
    /// Shards that are open again without some acknowledged changes: syncs report the loss.
    lost: RefCell<HashMap<ShardId, LostChanges>>,
    /// Shards that this server has had open.
    had: RefCell<HashSet<ShardId>>,
    /// The worker ends and starts no more attempts.
    given_up: Cell<bool>,
}

impl ShardOpening {
    /// `shards` in order, but first the shard of the root, through which every path leads.
    pub fn of(shards: impl Iterator<Item = ShardId>) -> ShardOpening {
        let opening = ShardOpening { waiting: RefCell::new(shards.collect()), ..ShardOpening::default() };
        opening.prefer(InodeId::ROOT.shard());
        opening
    }

    /// A caller requests the shard: it is opened next, unless its opening has begun.
    fn prefer(&self, shard: ShardId) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(place) = waiting.iter().position(|waits| *waits == shard) {
            waiting.remove(place);
            waiting.push_front(shard);
        }
    }

    fn next(&self) -> Option<ShardId> {
        self.waiting.borrow_mut().pop_front()
    }

    fn attempts_of(&self, shard: ShardId) -> Attempts {
        self.attempts.borrow().get(&shard).copied().unwrap_or_default()
    }

    /// Whether a sync reports the trouble: time does not heal it, or it may have lost changes that the sync covers.
    fn is_reported(&self, shard: ShardId) -> bool {
        self.is_damaged(shard) || self.may_have_lost(shard)
    }

    fn is_damaged(&self, shard: ShardId) -> bool {
        self.refused.borrow().get(&shard).is_some_and(|refused| refused.damaged)
    }

    fn was_refused(&self, shard: ShardId) -> bool {
        self.refused.borrow().contains_key(&shard)
    }

    /// Why the shard is not open, if it failed or could not be opened.
    fn cause(&self, shard: ShardId) -> Option<Cause> {
        let failed = self.failed.borrow().get(&shard).cloned();
        failed.or_else(|| self.refused.borrow().get(&shard).map(|refused| refused.cause.clone()))
    }

    /// Whether the caller waits for the next attempt instead of getting the result of the last one.
    fn asks_next(&self, shard: ShardId, to: OpenPurpose) -> bool {
        match to {
            OpenPurpose::Read | OpenPurpose::Change => false,
            OpenPurpose::Sync => !self.is_reported(shard),
            OpenPurpose::End => !self.is_damaged(shard),
        }
    }

    fn give_up(&self) {
        self.given_up.set(true);
        self.waiting.borrow_mut().clear();
    }

    fn has_given_up(&self) -> bool {
        self.given_up.get()
    }
}

impl Worker {
    /// Opens all shards, and retries those that cannot be opened later. An error if the server could open none.
    pub(super) async fn open_shards(self: &Rc<Self>) -> Result<(), String> {
        let lane = || async {
            while let Some(shard) = self.opening.next() {
                let opened = self.open_shard(shard).await;
                let all_tried = self.shared.count_opening(opened.is_ok() || self.read_only(shard).is_some());
                if let Err(refused) = opened {
                    if all_tried && !self.shared.any_opened.load(SeqCst) {
                        return Err(refused.cause.reason);
                    }
                    tracing::error!("{}; calls for it fail until it opens", refused.cause);
                    self.spawn(Rc::clone(self).open_later(shard, refused));
                }
            }
            Ok(())
        };
        future::join_all((0..OPENING_MAX).map(|_| lane())).await.into_iter().collect()
    }

    async fn open_shard(&self, id: ShardId) -> Result<(), OpenFailure> {
        self.opening.under_way.set(self.opening.under_way.get() + 1);
        self.opening.hurried.borrow_mut().remove(&id);
        self.opening.attempts.borrow_mut().entry(id).or_default().begun += 1;
        let opened = Shard::open(self.shard_config(id)).await;
        self.opening.under_way.set(self.opening.under_way.get() - 1);
        self.opening.failed.borrow_mut().remove(&id);
        let opened = match opened {
            Ok(shard) => {
                self.opening.refused.borrow_mut().remove(&id);
                self.opening.has_found(id, shard.found());
                self.opening.had.borrow_mut().insert(id);
                self.shards.borrow_mut().insert(id, shard);
                self.end_read_only(id);
                Ok(())
            }
            Err(error) => {
                let damaged = is_damage(&error);
                let next = if damaged { "; stop the server and run `varve fsck` on the volume" } else { "" };
                let reason = format!("shard {id} cannot be opened: {error}{next}");
                // A call for a damaged shard triggers the next attempt, but does not wait for it.
                let unreachable = !damaged && (is_unreachable(&error) || !self.tables.table.store.is_there());
                let refused = OpenFailure { cause: Cause { errno: error.errno(), reason }, damaged, unreachable };
                // Before the refusal is recorded, so that no read-only call is refused.
                if !damaged {
                    self.serve_read_only(id, None, refused.cause.errno).await;
                }
                self.opening.refused.borrow_mut().insert(id, refused.clone());
                Err(refused)
            }
        };
        self.opening.attempts.borrow_mut().entry(id).or_default().ended += 1;
        self.changed.notify_waiters();
        opened
    }

    /// Opens the read-only recovery view of the shard, unless it is open. The shard must have no owner: if it failed
    /// because another server took it over, its epoch is later than the `owned` one, and the view is closed again.
    /// Changes fail with `errno`.
    async fn serve_read_only(&self, id: ShardId, owned: Option<Epoch>, errno: Errno) {
        if self.read_only(id).is_some() {
            return;
        }
        match Shard::open_read_only(self.shard_config(id), errno).await {
            Ok(shard) if owned.is_some_and(|owned| shard.epoch() > owned) => shard.close_read_only().await,
            Ok(shard) => {
                tracing::warn!("shard {id} is read-only until its store accepts writes");
                self.opening.read_only.borrow_mut().insert(id, shard);
                self.changed.notify_waiters();
            }
            Err(error) => tracing::error!("cannot open shard {id} read-only: {error}"),
        }
    }

    /// The read-only recovery view of the shard, if the shard is not open but can be read.
    pub fn read_only(&self, id: ShardId) -> Option<Rc<Shard>> {
        self.opening.read_only.borrow().get(&id).cloned()
    }

    /// The shard has an owner again. Reads in progress on the read-only view fail, and the clients repeat them at the
    /// owner.
    fn end_read_only(&self, id: ShardId) {
        if let Some(shard) = self.opening.read_only.borrow_mut().remove(&id) {
            tokio::task::spawn_local(async move { shard.close_read_only().await });
        }
    }

    /// Whether this server has never had the shard open, and so has acknowledged no change in it.
    pub fn never_had(&self, shard: ShardId) -> bool {
        !self.opening.had.borrow().contains(&shard)
    }

    /// Waits until the shard is open, and has it opened next; waits forever if the shard belongs to another worker. An
    /// error if the last attempt failed or, for a sync, the next one. For [`OpenPurpose::Read`] the read-only recovery
    /// view is enough.
    pub async fn opened(&self, shard: ShardId, to: OpenPurpose) -> Result<Rc<Shard>, Cause> {
        self.opening.prefer(shard);
        let next = self.opening.attempts_of(shard).begun + 1;
        loop {
            let changed = self.changed.notified();
            if let Some(shard) = self.shard(shard) {
                return Ok(shard);
            }
            if let Some(shard) = self.read_only(shard).filter(|_| to == OpenPurpose::Read) {
                return Ok(shard);
            }
            if self.opening.attempts_of(shard).ended < next && self.opening.asks_next(shard, to) {
                if self.opening.hurried.borrow_mut().insert(shard) {
                    self.changed.notify_waiters();
                }
                changed.await;
                continue;
            }
            if let Some(cause) = self.opening.failed.borrow().get(&shard).filter(|cause| takes_no_writes(cause.errno)) {
                return Err(cause.clone());
            }
            if let Some(OpenFailure { cause, unreachable, .. }) = self.opening.refused.borrow().get(&shard) {
                // The store is back, and the next attempt is about to find that.
                let waits = *unreachable && self.tables.table.store.is_there();
                let asked = if waits { &self.opening.hurried } else { &self.opening.asked };
                if asked.borrow_mut().insert(shard) {
                    self.changed.notify_waiters();
                }
                if !waits {
                    return Err(cause.clone());
                }
            }
            changed.await;
        }
    }

    /// Returns the shard, which belongs to this worker, when it is open, or the error of the last attempt to open it.
    /// Replies Busy after a while if an attempt is still in progress, or if the store is back and the next attempt has
    /// not ended.
    pub async fn wanted(&self, shard: ShardId, to: OpenPurpose) -> Result<Rc<Shard>, CallFailure> {
        let wait_max = if to == OpenPurpose::Sync { SYNC_MAX } else { WANTED_MAX };
        tokio::select! {
            opened = self.opened(shard, to) => opened.map_err(translate::failed),
            () = self.stopping() => Err(CallFailure::Busy),
            () = tokio::time::sleep(wait_max) => {
                // Opening the shard may take longer than that: the caller of a sync retries until its own deadline.
                let reported = to == OpenPurpose::Sync && (self.opening.is_reported(shard) || self.opening.was_refused(shard));
                let cause = self.opening.cause(shard).filter(|_| reported);
                Err(cause.map_or(CallFailure::Busy, translate::failed))
            }
        }
    }

    fn shard_config(&self, id: ShardId) -> ShardConfig {
        ShardConfig {
            id,
            settings: self.shared.settings.clone(),
            volume: self.shared.volume.clone(),
            table: TableConfig { shard: id, ..self.tables.table.clone() },
            peers: Rc::clone(&self.peers),
            clock: Arc::clone(&self.shared.clock),
            open_files: self.shared.open_files.clone(),
            sessions_known_from: self.shared.sessions_known_from,
            cache: Arc::clone(&self.tables.cache),
            names: Arc::clone(&self.tables.names),
        }
    }
}

/// Attempts to open a shard; they do not overlap.
#[derive(Clone, Copy, Default)]
struct Attempts {
    begun: u64,
    ended: u64,
}

/// Why a shard could not be opened.
#[derive(Clone)]
struct OpenFailure {
    cause: Cause,
    /// Time alone does not heal it.
    damaged: bool,
    /// The store was unreachable.
    unreachable: bool,
}

/// Whether the store is full or read-only, which does not pass within moments.
pub fn takes_no_writes(errno: Errno) -> bool {
    matches!(errno, Errno::ENOSPC | Errno::EDQUOT | Errno::EROFS)
}

fn is_damage(error: &ShardError) -> bool {
    match error {
        ShardError::Table(error) => error.is_damage(),
        ShardError::Damaged(..) => true,
        ShardError::Refused(_) => false,
    }
}

fn is_unreachable(error: &ShardError) -> bool {
    matches!(error, ShardError::Table(error) if error.is_unreachable())
}
