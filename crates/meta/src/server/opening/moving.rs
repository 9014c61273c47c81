//! Moves a shard to another worker of the server while clients use it.
//!
//! 1. The worker that owns it flushes its tables while it serves.
//! 2. Calls of clients wait, then those of other shards, until the calls in progress have ended. If that takes too long,
//!    the shard serves again for a while before the next try.
//! 3. The shard is closed with its log synced. Its rows hold all that it keeps for sessions, such as replies, but for
//!    their open files: that table goes with the shard. Meanwhile the calls of other shards about open files wait, and
//!    clients repeat their releases.
//! 4. The other worker opens it, and publishes it in the shard map. Calls that wait are answered with the new map; no
//!    part of them was carried out. If the other worker cannot open it, the first one opens it again.
//!
//! A crash at any time leaves what a crash without a move leaves: the map is not stored, and the next server assigns
//! shards anew.

use super::loss::LostChanges;
use super::slots::Gate;
use super::{FailureKind, OpenFailure, released};
use crate::server::inbox::WorkerMessage;
use crate::server::worker::Worker;
use crate::shards::{CallOrigin, Cause, LeaseTable, Leases, MovingOpenFiles, OpenFiles, Shard};
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;
use varve_env::clock::Instant;
use varve_types::ShardId;

/// How long the flush of a shard that moves may take: the store writes a memtable in well below a second.
const FLUSH_MAX: Duration = Duration::from_secs(10);

/// How long calls wait for those in progress to end. With the time to close and open the shard this stays below the
/// half second for which a moving shard may be away.
const QUIET_MAX: Duration = Duration::from_millis(200);

/// How long a move is tried, and the pause between two tries, in which calls that waited are served.
const TRIED_FOR: Duration = Duration::from_secs(5);
const TRY_AGAIN: Duration = Duration::from_millis(50);

/// How long the inbox of the other worker may be full.
const DELIVERY_MAX: Duration = Duration::from_secs(5);

/// A worker's knowledge of a shard beside the rows, for the worker to which the shard moves.
pub struct ShardHandover {
    had: bool,
    /// Boxed, because it is rarely there.
    lost: Option<Box<LostChanges>>,
    open_files: MovingOpenFiles,
    leases: Box<LeaseTable>,
}

/// Why a worker has not taken a shard over.
pub struct NotTakenOver {
    failure: OpenFailure,
    handover: ShardHandover,
}

impl Worker {
    /// Moves a shard of this worker to the worker `to`. Returns for how long calls had to wait, or why the shard stays.
    pub async fn move_shard(self: &Rc<Self>, id: ShardId, to: usize) -> Result<Duration, String> {
        let workers = self.shared.shard_map.workers();
        if to >= workers {
            return Err(format!("there is no worker {to}: the server has workers 0 to {}", workers - 1));
        }
        if to == self.index {
            return Ok(Duration::ZERO);
        }
        // One at a time: two shards that both keep calls waiting could wait for each other's calls.
        let Ok(_one) = self.shared.moving.try_lock() else {
            return Err("another shard is being moved: try again when it has been".into());
        };
        let under_way = self.slots.begin();
        let moved = self.move_open_shard(id, to).await;
        drop(under_way);
        self.changed.notify_waiters();
        if let Ok(away) = &moved {
            tracing::info!("shard {id} moved from worker {} to worker {to}, away for {away:.2?}", self.index);
        }
        moved
    }

    async fn move_open_shard(self: &Rc<Self>, id: ShardId, to: usize) -> Result<Duration, String> {
        let (shard, begun) = self.close_for_successor(id).await?;
        match self.have_taken_over(id, to).await {
            Ok(()) => {
                self.slots.of(id).moved(self.slots.now());
                Ok(self.slots.now().since(begun))
            }
            Err(NotTakenOver { failure, handover }) => {
                let reason = failure.cause.reason.clone();
                self.receive(id, handover);
                match failure.is(FailureKind::Fenced) {
                    true => self.release_closed(id),
                    false => self.fail(&shard, failure.cause),
                }
                Err(reason)
            }
        }
    }

    /// Closes an open shard for its next owner. Returns it with the time from which calls wait.
    pub(super) async fn close_for_successor(self: &Rc<Self>, id: ShardId) -> Result<(Rc<Shard>, Instant), String> {
        let Some(shard) = self.shard(id).filter(|shard| !shard.has_failed()) else {
            let why = self.slots.of(id).cause().map_or(String::new(), |cause| format!(": {cause}"));
            return Err(format!("shard {id} is not open{why}"));
        };
        match tokio::time::timeout(FLUSH_MAX, shard.flush()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(format!("shard {id} cannot be flushed: {error}")),
            Err(_) => return Err(format!("the store has not taken the rows of shard {id} within {FLUSH_MAX:?}")),
        }
        let begun = self.keep_waiting(&shard).await?;
        if let Err(error) = shard.close_for_successor().await {
            let reason = format!("shard {id} cannot be closed: {error}");
            self.fail(&shard, Cause { errno: error.errno(), reason: reason.clone() });
            return Err(reason);
        }
        Ok((shard, begun))
    }

    /// Another server has taken over a shard that this worker has closed.
    fn release_closed(&self, id: ShardId) {
        self.slots.of(id).fail(released(id), self.slots.now());
        self.release_shard(id);
    }

    /// Lets calls for the shard wait, and returns when none is in progress, with the time from which they wait.
    async fn keep_waiting(&self, shard: &Rc<Shard>) -> Result<Instant, String> {
        let (id, end) = (shard.id(), self.slots.now().after(TRIED_FOR));
        loop {
            let begun = self.slots.now();
            if !self.shard(id).is_some_and(|open| Rc::ptr_eq(&open, shard)) || shard.has_failed() {
                return Err(format!("shard {id} has failed meanwhile, and is opened again"));
            }
            self.slots.of(id).move_away(begun);
            let quiet = tokio::time::timeout(QUIET_MAX, self.quiet(shard)).await;
            if quiet.is_ok() && !shard.has_failed() && !self.snapshots().are_held() {
                self.slots.of(id).set_gate(Gate::None);
                return Ok(begun);
            }
            self.slots.of(id).stay(self.slots.now());
            self.changed.notify_waiters();
            if self.slots.now() >= end {
                return Err(match self.snapshots().are_held() {
                    true => format!("a dump or a search reads shard {id} from a snapshot: try again when it has ended"),
                    false => format!(
                        "calls in progress at shard {id} did not end within {QUIET_MAX:?}, however often it was tried in \
                         {TRIED_FOR:?}: try again later"
                    ),
                });
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Returns when no call is in progress.
    async fn quiet(&self, shard: &Rc<Shard>) {
        shard.calls_ended(CallOrigin::Client).await;
        self.slots.of(shard.id()).set_gate(Gate::Ending);
        shard.calls_ended(CallOrigin::Peer).await;
    }

    fn hand_over(&self, id: ShardId) -> ShardHandover {
        let mut slot = self.slots.of(id);
        let open_files = slot.open_files.take().expect("the worker that has a shard has its open files").move_away();
        let leases = slot.leases.take().expect("the worker that has a shard has its leases");
        let leases = Box::new(leases.move_away());
        ShardHandover { had: slot.had, lost: slot.lost.take().map(Box::new), open_files, leases }
    }

    /// Takes what belongs to a shard that comes to this worker, or back to it.
    fn receive(&self, id: ShardId, handover: ShardHandover) {
        let open_files = OpenFiles::from(handover.open_files);
        // The end of a session reached no worker that had the table.
        open_files.end_sessions(|session| !self.shared.sessions.is_live(session));
        let mut slot = self.slots.of(id);
        (slot.lost, slot.open_files) = (handover.lost.map(|lost| *lost), Some(open_files));
        slot.leases = Some(Leases::from(*handover.leases));
    }

    async fn have_taken_over(&self, id: ShardId, to: usize) -> Result<(), NotTakenOver> {
        let handover = self.hand_over(id);
        let (reply, taken_over) = oneshot::channel();
        let message = WorkerMessage::TakeOver { shard: id, handover, reply };
        let gone = |handover| NotTakenOver::because(format!("worker {to} accepts no messages"), handover);
        match self.send(to, message, DELIVERY_MAX).await {
            // A worker that drops the message has ended, and the server ends with it.
            Ok(()) => taken_over.await.unwrap_or_else(|_| {
                let open_files = OpenFiles::after(self.shared.sessions_return).move_away();
                let leases = Box::new(Leases::new(self.shared.leases_since()).move_away());
                Err(gone(ShardHandover { had: true, lost: None, open_files, leases }))
            }),
            Err(WorkerMessage::TakeOver { handover, .. }) => Err(gone(handover)),
            Err(_) => unreachable!("a message that was not sent comes back"),
        }
    }

    /// Opens a shard that another worker has closed, and publishes it.
    pub async fn take_over(self: &Rc<Self>, id: ShardId, handover: ShardHandover) -> Result<(), NotTakenOver> {
        if self.slots.has_given_up() || !self.slots.of(id).begin_take_over(self.slots.now()) {
            let reason = format!("worker {} takes no shard over now", self.index);
            return Err(NotTakenOver::because(reason, handover));
        }
        let under_way = self.slots.begin();
        self.slots.of(id).begin_attempt(self.slots.now());
        let had = handover.had;
        self.receive(id, handover);
        let taken_over = match self.attempt(id).await {
            Ok(shard) => {
                let mut slot = self.slots.of(id);
                slot.opened(Rc::clone(&shard), self.slots.now());
                slot.had = had;
                drop(slot);
                shard.reap_closed_orphans();
                self.shared.shard_map.assign(id, self.index);
                Ok(())
            }
            Err(failure) => {
                let handover = self.hand_over(id);
                self.slots.of(id).not_taken_over(self.slots.now());
                Err(NotTakenOver { failure, handover: ShardHandover { had, ..handover } })
            }
        };
        drop(under_way);
        self.changed.notify_waiters();
        taken_over
    }
}

impl NotTakenOver {
    fn because(reason: String, handover: ShardHandover) -> NotTakenOver {
        let failure = OpenFailure { cause: Cause::from(reason), kind: FailureKind::Passing };
        NotTakenOver { failure, handover }
    }
}
