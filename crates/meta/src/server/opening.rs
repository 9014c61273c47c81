//! Opens a worker's shards when it starts, opens failed shards again, moves shards to other workers, and closes all shards
//! when the worker stops. [`slots`] has the states of a shard.
//!
//! A worker listens before its shards are open, because replaying the logs after a crash may take seconds. A call for a
//! shard that is not open yet waits for it and moves it to the front of the queue. So the first replies come after the
//! replay of one or two logs, not of all.
//!
//! A shard that cannot be opened does not affect the others: calls for it fail with the reason, and the worker retries
//! it later, a damaged shard only when a call needs it. The server ends only if it can neither open nor read any shard,
//! because it would serve nothing. A shard that another server has taken over is released: opening it again would take
//! it away from that server.
//!
//! Opening a shard writes to the store. While the store takes no writes, the worker opens a read-only recovery view of
//! the last owner's rows and serves calls that only read from there. Nobody owns the shard then, so its rows stay as
//! they are until this server opens it.

mod closing;
mod loss;
mod moving;
mod owning;
mod reopening;
mod slots;

pub use moving::{NotTakenOver, ShardHandover};
pub use slots::ShardSlots;

use super::dispatch::translate;
use super::worker::Worker;
use crate::shards::{Cause, OpenFiles, Shard, ShardConfig, ShardError};
use futures::future;
use slots::SlotState;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use varve_proto::{CallFailure, ShardLocation, ShardPhase, WireShardMap};
use varve_store::{TableConfig, TableError};
use varve_types::{Epoch, Errno, ShardId};

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

/// Why a caller that waited for a shard does not get it.
pub enum NotOpen {
    /// Another worker owns it.
    Elsewhere,
    Failed(Cause),
}

/// Why a shard could not be opened.
#[derive(Clone)]
pub(in crate::server) struct OpenFailure {
    pub cause: Cause,
    kind: FailureKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FailureKind {
    /// The store failed and may recover.
    Passing,
    /// The store was unreachable.
    Unreachable,
    /// Time alone does not heal it.
    Damaged,
    /// Another server has taken the shard over.
    Fenced,
}

impl OpenFailure {
    fn is(&self, kind: FailureKind) -> bool {
        self.kind == kind
    }
}

impl ShardSlots {
    /// Whether a sync reports the trouble: time does not heal it, or it may have lost changes that the sync covers.
    fn is_reported(&self, shard: ShardId) -> bool {
        self.is_damaged(shard) || self.may_have_lost(shard)
    }

    fn is_damaged(&self, shard: ShardId) -> bool {
        let is_damage = |failure: &OpenFailure| failure.is(FailureKind::Damaged);
        matches!(&self.of(shard).state, SlotState::Refused { failure, .. } if is_damage(failure))
    }

    /// Whether the caller waits for the next attempt instead of getting the result of the last one.
    fn asks_next(&self, shard: ShardId, to: OpenPurpose) -> bool {
        match to {
            OpenPurpose::Read | OpenPurpose::Change => false,
            OpenPurpose::Sync => !self.is_reported(shard),
            OpenPurpose::End => !self.is_damaged(shard),
        }
    }

    /// The shard for a caller, the reason why it gets none, or `None`: it has to wait. `next`: the attempt for which a
    /// caller of a sync waits. The second value: an attempt is to be made sooner than planned.
    fn look(
        &self,
        id: ShardId,
        to: OpenPurpose,
        next: u64,
        store_is_there: impl Fn() -> bool,
    ) -> (Option<Result<Rc<Shard>, NotOpen>>, bool) {
        let asks_next = self.asks_next(id, to);
        let mut slot = self.of(id);
        match &slot.state {
            SlotState::Open(shard) => return (Some(Ok(Rc::clone(shard))), false),
            SlotState::Elsewhere => return (Some(Err(NotOpen::Elsewhere)), false),
            SlotState::Released { cause, by_map: false } => return (Some(Err(NotOpen::Failed(cause.clone()))), false),
            SlotState::Released { by_map: true, .. } | SlotState::MovingAway(..) | SlotState::Closed => {
                return (None, false);
            }
            SlotState::Waiting | SlotState::Opening | SlotState::Failed { .. } | SlotState::Refused { .. } => {}
        }
        if let Some(view) = slot.view().filter(|_| to == OpenPurpose::Read) {
            return (Some(Ok(Rc::clone(view))), false);
        }
        if slot.attempts.ended < next && asks_next {
            return (None, !std::mem::replace(&mut slot.hurried, true));
        }
        let (cause, waits) = match &slot.state {
            SlotState::Failed { cause, .. } if takes_no_writes(cause.errno) => {
                return (Some(Err(NotOpen::Failed(cause.clone()))), false);
            }
            // If the store is back, the next attempt is about to find that.
            SlotState::Refused { failure, .. } => {
                (failure.cause.clone(), failure.is(FailureKind::Unreachable) && store_is_there())
            }
            _ => return (None, false),
        };
        let flag = if waits { &mut slot.hurried } else { &mut slot.asked };
        let hastens = !std::mem::replace(flag, true);
        ((!waits).then_some(Err(NotOpen::Failed(cause))), hastens)
    }
}

impl Worker {
    /// Opens all shards, and retries those that cannot be opened later. An error if the server could open none.
    pub(super) async fn open_shards(self: &Rc<Self>) -> Result<(), String> {
        let lane = || async {
            while let Some(shard) = self.slots.next() {
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
        let under_way = self.slots.begin();
        let begun = self.slots.now();
        self.slots.of(id).begin_attempt(begun);
        let opened = match self.attempt(id).await {
            Ok(shard) => {
                let (epoch, took) = (shard.epoch().0, self.slots.now().since(begun));
                tracing::info!("shard {id} is open at worker {}: epoch {epoch}, opened in {took:.2?}", self.index);
                self.slots.has_found(id, shard.found());
                let view = self.slots.of(id).opened(shard, self.slots.now());
                end_read_only(view);
                Ok(())
            }
            Err(failure) if failure.is(FailureKind::Fenced) => {
                self.release_shard(id);
                Err(failure)
            }
            Err(failure) => {
                // Before the refusal is recorded, so that no read-only call is refused. A call for a damaged shard
                // triggers the next attempt, but does not wait for it.
                let view = match failure.is(FailureKind::Damaged) || self.read_only(id).is_some() {
                    true => None,
                    false => self.open_read_only(id, None, failure.cause.errno).await,
                };
                self.slots.of(id).refused(failure.clone(), view, self.slots.now());
                Err(failure)
            }
        };
        drop(under_way);
        let outcome = if opened.is_ok() { "done" } else { "failed" };
        metrics::counter!("varve_shard_openings_total", "outcome" => outcome).increment(1);
        self.changed.notify_waiters();
        opened
    }

    async fn attempt(&self, id: ShardId) -> Result<Rc<Shard>, OpenFailure> {
        self.under_lease().await?;
        Shard::open(self.shard_config(id)).await.map_err(|error| {
            let kind = match &error {
                ShardError::Table(TableError::Fenced { .. }) => FailureKind::Fenced,
                error if is_damage(error) => FailureKind::Damaged,
                error if is_unreachable(error) || !self.tables.table.store.is_there() => FailureKind::Unreachable,
                _ => FailureKind::Passing,
            };
            let cause = match kind {
                FailureKind::Fenced => released(id),
                kind => {
                    let next = match kind {
                        FailureKind::Damaged => "; stop the server and run `varve fsck` on the volume",
                        _ => "",
                    };
                    Cause { errno: error.errno(), reason: format!("shard {id} cannot be opened: {error}{next}") }
                }
            };
            OpenFailure { cause, kind }
        })
    }

    /// Opens a read-only recovery view of the shard. The shard must have no owner: if it failed because another server
    /// took it over, its epoch is later than the `owned` one, and the view is closed again. Changes fail with `errno`.
    async fn open_read_only(&self, id: ShardId, owned: Option<Epoch>, errno: Errno) -> Option<Rc<Shard>> {
        match Shard::open_read_only(self.shard_config(id), errno).await {
            Ok(shard) if owned.is_some_and(|owned| shard.epoch() > owned) => {
                shard.close_read_only().await;
                None
            }
            Ok(shard) => {
                // Other shards ask the table of open files in the term that the view tells them.
                if let Some(open_files) = &self.slots.of(id).open_files {
                    open_files.enter_term(shard.epoch());
                }
                tracing::warn!("shard {id} is read-only until its store accepts writes");
                Some(shard)
            }
            Err(error) => {
                tracing::error!("cannot open shard {id} read-only: {error}");
                None
            }
        }
    }

    /// The read-only recovery view of the shard, if the shard is not open but can be read.
    pub fn read_only(&self, id: ShardId) -> Option<Rc<Shard>> {
        self.slots.of(id).view().cloned()
    }

    /// Waits until the shard is open, and has it opened next. An error if another worker owns it, or if the last attempt
    /// failed or, for a sync, the next one. For [`OpenPurpose::Read`] the read-only recovery view is enough.
    pub async fn opened(&self, shard: ShardId, to: OpenPurpose) -> Result<Rc<Shard>, NotOpen> {
        self.slots.prefer(shard);
        let next = self.slots.of(shard).attempts.begun + 1;
        loop {
            let changed = self.changed.notified();
            let (found, hastens) = self.slots.look(shard, to, next, || self.tables.table.store.is_there());
            if hastens {
                self.changed.notify_waiters();
            }
            if let Some(found) = found {
                return found;
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
            opened = self.opened(shard, to) => opened.map_err(|why| match why {
                NotOpen::Elsewhere => self.not_owner(),
                NotOpen::Failed(cause) => translate::failed(cause),
            }),
            () = self.stopping() => Err(CallFailure::Busy),
            () = tokio::time::sleep(wait_max) => {
                // Opening the shard may take longer than that: the caller of a sync retries until its own deadline.
                let reported = self.slots.is_reported(shard);
                let slot = self.slots.of(shard);
                let refused = matches!(slot.state, SlotState::Refused { .. });
                let cause = slot.cause().filter(|_| to == OpenPurpose::Sync && (reported || refused));
                Err(cause.cloned().map_or(CallFailure::Busy, translate::failed))
            }
        }
    }

    /// The reply to a call for a shard of another worker.
    pub fn not_owner(&self) -> CallFailure {
        CallFailure::NotOwner { map: WireShardMap::from(&*self.shared.shard_map.current()) }
    }

    /// The open files of the shard for a request of a client. The shard need not be open.
    pub fn open_files_now(&self, shard: ShardId) -> Result<OpenFiles, CallFailure> {
        match self.slots.open_files(shard) {
            Some(Ok(open_files)) => Ok(open_files),
            Some(Err(NotOpen::Elsewhere)) => Err(self.not_owner()),
            Some(Err(NotOpen::Failed(cause))) => Err(translate::failed(cause)),
            // The shard is between two owners.
            None => Err(CallFailure::Busy),
        }
    }

    /// Where the shard, which belongs to this worker, is, and in which state.
    pub fn locate(&self, id: ShardId) -> ShardLocation {
        let slot = self.slots.of(id);
        let figures = match &slot.state {
            SlotState::Open(shard) | SlotState::MovingAway(shard, _) => Some(shard.status()),
            _ => slot.view().map(|view| view.status()),
        };
        let phase = match &slot.state {
            // It is being taken over.
            SlotState::Elsewhere | SlotState::Opening => ShardPhase::Opening,
            SlotState::Waiting => ShardPhase::Waiting,
            SlotState::Open(_) => ShardPhase::Open,
            SlotState::MovingAway(..) => ShardPhase::MovingAway,
            SlotState::Failed { view: Some(_), .. } | SlotState::Refused { view: Some(_), .. } => ShardPhase::ReadOnly,
            SlotState::Failed { .. } => ShardPhase::Failed,
            SlotState::Refused { .. } => ShardPhase::Refused,
            SlotState::Released { .. } | SlotState::Closed => ShardPhase::Released,
        };
        ShardLocation {
            shard: id.0,
            // At most WORKERS_MAX workers.
            worker: self.index as u16,
            phase,
            since_ms: u64::try_from(self.slots.now().since(slot.since).as_millis()).unwrap_or(u64::MAX),
            names_loaded: figures.map_or(0, |figures| figures.names_loaded),
            partitions_loaded: figures.map_or(0, |figures| figures.partitions_loaded),
            problem: slot.cause().map(|cause| cause.reason.clone()).unwrap_or_default(),
        }
    }

    fn shard_config(&self, id: ShardId) -> ShardConfig {
        let (open_files, leases) = self.slots.of(id).sessions().expect("a worker opens a shard when it has this");
        ShardConfig {
            id,
            settings: self.shared.settings.clone(),
            volume: self.shared.volume.clone(),
            table: TableConfig { shard: id, ..self.tables.table.clone() },
            peers: Rc::clone(&self.peers),
            clock: Arc::clone(&self.shared.clock),
            lease: Arc::clone(&self.shared.lease),
            commits: Rc::clone(&self.commits),
            open_files,
            leases,
            cache: Arc::clone(&self.tables.cache),
            names: Arc::clone(&self.tables.names),
        }
    }
}

/// The shard has an owner again. Reads in progress on the read-only view fail, and the clients repeat them at the owner.
fn end_read_only(view: Option<Rc<Shard>>) {
    if let Some(view) = view {
        tokio::task::spawn_local(async move { view.close_read_only().await });
    }
}

/// The error of calls for a shard that another server has taken over.
fn released(shard: ShardId) -> Cause {
    Cause::from(format!(
        "another server has taken shard {shard} over, and this server has released it: see with `varve status` which \
         server serves the volume, and stop this one"
    ))
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
