//! From a worker's shards being closed to all of them being open, and back.
//!
//! A worker listens before its shards are open, for what a crash left in their logs may take seconds to replay. A call
//! for a shard that is not open yet waits for it, and has it opened next; so the first answers come after the replay of
//! one or two logs and not of all.
//!
//! A shard that cannot be opened takes no other with it: calls for it are answered with the reason, and it is tried again
//! when somebody asks for it. Only where none at all can be opened or read the server ends, for it would serve nothing.
//!
//! Opening writes. Where the store takes no writes, what the last owner left is opened *at rest* meanwhile: calls that
//! only read are answered from there. Nobody owns the shard then, so it stays as it is until this server opens it.

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

/// Shards that one worker opens at a time: while one waits for the store, another uses the processor. With more, one that
/// is asked for would share the processors with those that nobody waits for.
const OPENING_MAX: usize = 2;

/// How long a call waits for its shard to be open before it is answered Busy, whereupon the client asks again until its own
/// deadline. Clients count on it (`client/calls.rs`).
const WANTED_MAX: Duration = Duration::from_secs(5);

/// How long a sync waits for a shard: an attempt that the store refuses takes some seconds, one may be under way, and the
/// next comes a pause later.
const SYNC_MAX: Duration = Duration::from_secs(10);

/// What a shard is wanted for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum OpenPurpose {
    Read,
    Change,
    /// What failed a moment ago may go now, and who syncs would rather wait for that than be told of trouble that is over and
    /// cost nothing: the next attempt to open the shard, which comes sooner for it, is the answer.
    Sync,
    /// The same, of a server that is about to end: also where something may be lost, for the next attempt tells.
    End,
}

/// The shards that are not open.
#[derive(Default)]
pub struct ShardOpening {
    /// Those to be opened for the first time, in the order in which they will be.
    waiting: RefCell<VecDeque<ShardId>>,
    under_way: Cell<usize>,
    /// Those that could not be, and why.
    refused: RefCell<HashMap<ShardId, OpenFailure>>,
    /// Those that were open and failed, with what, until the next attempt to open them has ended.
    failed: RefCell<HashMap<ShardId, Cause>>,
    /// Those that are read at rest until they can be opened.
    read_only: RefCell<HashMap<ShardId, Rc<Shard>>>,
    /// Those that were refused and asked for since; those whose next attempt somebody waits for.
    asked: RefCell<HashSet<ShardId>>,
    hurried: RefCell<HashSet<ShardId>>,
    attempts: RefCell<HashMap<ShardId, Attempts>>,
    /// Those that failed with something acknowledged, of which nobody knows whether it is still there.
    owing: RefCell<HashMap<ShardId, Owing>>,
    /// Those that are open again without it: syncs are told.
    lost: RefCell<HashMap<ShardId, LostChanges>>,
    /// Those that this server has had open.
    had: RefCell<HashSet<ShardId>>,
    /// The worker ends: no attempt is begun any more.
    given_up: Cell<bool>,
}

impl ShardOpening {
    /// `shards`, but first the one with the root, through which every path leads.
    pub fn of(shards: impl Iterator<Item = ShardId>) -> ShardOpening {
        let opening = ShardOpening { waiting: RefCell::new(shards.collect()), ..ShardOpening::default() };
        opening.prefer(InodeId::ROOT.shard());
        opening
    }

    /// The shard is asked for: it comes next, if it has not begun.
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

    /// Whether a sync is told of the trouble: time does not heal it, or it may have cost what the sync is about.
    fn is_reported(&self, shard: ShardId) -> bool {
        self.is_damaged(shard) || self.may_have_lost(shard)
    }

    fn is_damaged(&self, shard: ShardId) -> bool {
        self.refused.borrow().get(&shard).is_some_and(|refused| refused.damaged)
    }

    fn was_refused(&self, shard: ShardId) -> bool {
        self.refused.borrow().contains_key(&shard)
    }

    /// Why the shard is not open, if it failed or could not be.
    fn cause(&self, shard: ShardId) -> Option<Cause> {
        let failed = self.failed.borrow().get(&shard).cloned();
        failed.or_else(|| self.refused.borrow().get(&shard).map(|refused| refused.cause.clone()))
    }

    /// Whether the next attempt is the answer to who wants the shard, and not the last one.
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
    /// Opens all shards. What cannot be opened is tried again later; an error if the server could open none.
    pub(super) async fn open_shards(self: &Rc<Self>) -> Result<(), String> {
        let lane = || async {
            while let Some(shard) = self.opening.next() {
                let opened = self.open_shard(shard).await;
                let all_tried = self.shared.count_opening(opened.is_ok() || self.read_only(shard).is_some());
                if let Err(refused) = opened {
                    if all_tried && !self.shared.any_opened.load(SeqCst) {
                        return Err(refused.cause.reason);
                    }
                    tracing::error!("{}; calls for it fail until it can", refused.cause);
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
                // What is damaged is asked for, and not waited for.
                let unreachable = !damaged && (is_unreachable(&error) || !self.tables.table.store.is_there());
                let refused = OpenFailure { cause: Cause { errno: error.errno(), reason }, damaged, unreachable };
                // Before anybody is told, so that nobody who only reads is refused.
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

    /// Opens the shard to be read until it can be opened, unless it is. Nobody may own it: where it failed because somebody
    /// has taken it over, there is a later epoch than the one that was `owned`. Changes are refused with `errno`.
    async fn serve_read_only(&self, id: ShardId, owned: Option<Epoch>, errno: Errno) {
        if self.read_only(id).is_some() {
            return;
        }
        match Shard::open_read_only(self.shard_config(id), errno).await {
            Ok(shard) if owned.is_some_and(|owned| shard.epoch() > owned) => shard.close_read_only().await,
            Ok(shard) => {
                tracing::warn!("shard {id} is only read until its store takes writes");
                self.opening.read_only.borrow_mut().insert(id, shard);
                self.changed.notify_waiters();
            }
            Err(error) => tracing::error!("shard {id} cannot be read meanwhile: {error}"),
        }
    }

    /// The shard as its last owner left it, if it is not open but can be read.
    pub fn read_only(&self, id: ShardId) -> Option<Rc<Shard>> {
        self.opening.read_only.borrow().get(&id).cloned()
    }

    /// The shard has an owner again. Reads under way at rest fail, and are asked again of the owner.
    fn end_read_only(&self, id: ShardId) {
        if let Some(shard) = self.opening.read_only.borrow_mut().remove(&id) {
            tokio::task::spawn_local(async move { shard.close_read_only().await });
        }
    }

    /// Whether this server can have acknowledged nothing that is in the shard.
    pub fn never_had(&self, shard: ShardId) -> bool {
        !self.opening.had.borrow().contains(&shard)
    }

    /// Waits until the shard is open, and has it opened next; for ever if it is another worker's. An error if the last
    /// attempt failed, or, for a sync, the next one. To be read it may be at rest.
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
                // The trouble is over, and the next attempt is about to find that.
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

    /// The shard, which is this worker's, when it is open; or why the last attempt to open it failed. While an attempt goes on, or
    /// the trouble is over and the next is about to find that, Busy after a while.
    pub async fn wanted(&self, shard: ShardId, to: OpenPurpose) -> Result<Rc<Shard>, CallFailure> {
        let wait_max = if to == OpenPurpose::Sync { SYNC_MAX } else { WANTED_MAX };
        tokio::select! {
            opened = self.opened(shard, to) => opened.map_err(translate::failed),
            () = self.stopping() => Err(CallFailure::Busy),
            () = tokio::time::sleep(wait_max) => {
                // Opening it may take longer than that: who syncs asks again until its own deadline.
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

/// Attempts to open a shard, one after the other.
#[derive(Clone, Copy, Default)]
struct Attempts {
    begun: u64,
    ended: u64,
}

/// Why a shard was not opened.
#[derive(Clone)]
struct OpenFailure {
    cause: Cause,
    /// Time alone does not heal it.
    damaged: bool,
    /// The store was not there.
    unreachable: bool,
}

/// A store that is full or read-only does not heal in a moment.
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
