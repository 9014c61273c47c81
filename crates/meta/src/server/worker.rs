//! A worker: a thread with its own loop, which owns the shards that the shard map assigns to it.
//!
//! All code of a worker is single-threaded. Its input is connections and messages from other workers; both become tasks
//! of its loop. The tasks of shards are in a local set, which the loop polls; their timers and their blocking work are
//! those of the background runtime. Changes of requests that the loop begins in one turn are appended to the log together,
//! when nothing else is to be done ([`CommitRound`]). A task that panics has broken an invariant: the worker posts the failure, and its thread
//! ends without closing its tables, as if it had been killed. The appended changes are safe; the state in memory may
//! not be.

use super::calls::CallPlaces;
use super::clients::Clients;
use super::dispatch::{InFlight, UnknownOutcomeCalls};
use super::figures;
use super::inbox::{self, ServerCommand, WorkerMessage, WorkerPeers};
use super::keys;
use super::listener::{self, Listeners};
use super::memory_budget::MemoryBudget;
use super::metrics::Metrics;
use super::opening::{NotOpen, ShardSlots};
use super::shared::ServerShared;
use super::unauthenticated::UnauthenticatedConnections;
use super::worker_board::{WorkerBoard, WorkerStage};
use crate::shards::{CacheBudget, CommitRound, OpenFiles, Peers, Shard};
use futures::FutureExt;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tokio::sync::mpsc::error::SendTimeoutError;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::LocalSet;
use varve_cluster::map::ServerId;
use varve_cluster::membership::MembershipError;
use varve_env::rate_limited_log::RateLimitedLog;
use varve_proto::CallFailure;
use varve_rpc::{EventLoop, LoopHandle, default_spin};
use varve_store::TableConfig;
use varve_types::{Errno, InodeId, SessionId, ShardId};

/// How often the first worker checks for sessions whose grace period is over.
const SESSIONS_LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// Pause between two rounds through all shards that free memory. Shards allocate little in so short a time.
const GIVEN_BACK_EVERY: Duration = Duration::from_millis(20);

/// The configuration of one worker.
pub struct WorkerConfig {
    pub index: usize,
    pub shared: Arc<ServerShared>,
    pub board: Arc<WorkerBoard>,
    pub inbox: mpsc::Receiver<WorkerMessage>,
    pub inboxes: Vec<mpsc::Sender<WorkerMessage>>,
    pub command: watch::Receiver<ServerCommand>,
    pub unix: Option<(PathBuf, u32)>,
    pub tcp: Option<SocketAddr>,
    pub tables: TableLimits,
    pub measure: bool,
    /// For messages of all workers.
    pub memory_held: Arc<MemoryBudget>,
}

/// The configuration that a worker opens its shards with.
#[derive(Clone)]
pub struct TableLimits {
    /// The configuration of every shard's table, except for the shard number.
    pub table: TableConfig,
    pub cache: Arc<CacheBudget>,
    pub names: Arc<CacheBudget>,
}

/// The subject of a failure in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum About {
    Shard(ShardId),
    /// Connections that are closed because of the peer's input.
    Connections,
    /// Connections that are refused or evicted because a limit is reached.
    Crowd,
}

pub struct Worker {
    pub index: usize,
    pub shared: Arc<ServerShared>,
    pub metrics: Metrics,
    pub in_flight: InFlight,
    pub calls: CallPlaces,
    pub unknown_outcomes: UnknownOutcomeCalls,
    pub event_loop: LoopHandle,
    /// Changes to append when the requests at hand have been begun.
    pub commits: Rc<CommitRound>,
    pub error_log: RateLimitedLog<About>,
    pub memory_held: Arc<MemoryBudget>,
    board: Arc<WorkerBoard>,
    inboxes: Vec<mpsc::Sender<WorkerMessage>>,
    pub(super) peers: Rc<dyn Peers>,
    pub(super) tables: TableLimits,
    pub slots: ShardSlots,
    listeners: RefCell<Option<Listeners>>,
    connections: Cell<usize>,
    pub unauthenticated: UnauthenticatedConnections,
    /// Authenticated connections, counted by principal.
    pub clients: Clients,
    /// Connections that are being refused.
    pub turned_away: Cell<usize>,
    /// Notified when a shard was opened or could not be, when a connection has ended, and when the worker ends.
    pub(super) changed: Notify,
    stop: watch::Sender<bool>,
    end: RefCell<Option<Result<(), String>>>,
}

impl Worker {
    /// The shard, if this worker owns it and it is open.
    pub fn shard(&self, shard: ShardId) -> Option<Rc<Shard>> {
        self.slots.open(shard)
    }

    /// Consistent snapshots over all tables of the server.
    pub fn snapshots(&self) -> Arc<varve_store::ConsistentSnapshots> {
        self.tables.table.cache.snapshots()
    }

    /// Whether the shard belongs to this worker, open or not.
    pub fn owns(&self, shard: ShardId) -> bool {
        self.shared.shard_map.worker(shard) == Some(self.index)
    }

    /// Ready when the worker stops accepting and reading.
    pub fn stopping(&self) -> impl Future<Output = ()> + 'static {
        let mut stop = self.stop.subscribe();
        async move {
            // An error means that the worker itself is gone, which is a stop too.
            let _ = stop.wait_for(|stopped| *stopped).await;
        }
    }

    /// Sends a message to a worker; gives it back if the worker does not take it within `timeout`.
    pub async fn send(&self, to: usize, message: WorkerMessage, timeout: Duration) -> Result<(), WorkerMessage> {
        self.inboxes[to].send_timeout(message, timeout).await.map_err(SendTimeoutError::into_inner)
    }

    pub fn connections(&self) -> usize {
        self.connections.get()
    }

    /// Number of authenticated connections.
    pub fn clients(&self) -> usize {
        self.connections().saturating_sub(self.unauthenticated.count())
    }

    /// Runs a task on this worker; its panic ends the worker.
    pub fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        let worker = Rc::clone(self);
        self.event_loop.spawn(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                worker.end(Err(broken(worker.index, panic)));
            }
        });
    }

    // Commands of the server.

    pub fn accept(self: &Rc<Self>) {
        if let Some(listeners) = self.listeners.take() {
            self.spawn(listeners.accept(Rc::clone(self)));
        }
        if self.index == 0 {
            self.spawn(end_sessions(Rc::clone(self)));
            self.spawn(keys::tend(Rc::clone(self)));
        }
    }

    pub fn drain(self: &Rc<Self>) {
        self.stop.send_replace(true);
        drop(self.listeners.take());
        let worker = Rc::clone(self);
        self.spawn(async move {
            loop {
                let changed = worker.changed.notified();
                if worker.connections() == 0 {
                    break;
                }
                changed.await;
            }
            worker.end_transactions().await;
            worker.board.reach(worker.index, WorkerStage::Drained);
        });
    }

    /// Must run while the other shards of the transactions are still open.
    async fn end_transactions(&self) {
        let shards = self.slots.all_open();
        futures::future::join_all(shards.iter().map(Shard::end_transactions)).await;
    }

    pub fn close(self: &Rc<Self>) {
        self.stop.send_replace(true);
        if let Some(cause) = self.shared.ended.get() {
            // The shards are another server's: closing them would write to their logs.
            let ended = MembershipError::Ended(ServerId(self.shared.number), cause.clone());
            return self.end(Err(ended.to_string()));
        }
        let worker = Rc::clone(self);
        self.spawn(async move {
            let quiet = worker.slots.are_files_closed();
            let closed = worker.close_shards().await;
            worker.shared.quiet_workers.fetch_add(usize::from(quiet), SeqCst);
            worker.end(closed);
        });
    }

    pub fn end_session(self: &Rc<Self>, session: SessionId) {
        self.slots.forget(session);
        self.unknown_outcomes.end_session(session);
        for shard in self.slots.all_open().iter().filter(|shard| !shard.has_failed()) {
            shard.end_session(session);
        }
        // The openings of the other shards remove their orphans.
        self.slots.end_session(session);
    }

    /// Applies the releases in a request to the shard `home`: `session` has closed these files for the last time. The
    /// shard need not be open. After an error nothing is released.
    pub fn release(&self, session: SessionId, home: ShardId, inodes: &[u64]) -> Result<(), CallFailure> {
        if inodes.is_empty() {
            return Ok(());
        }
        if inodes.iter().any(|inode| InodeId(*inode).shard() != home) {
            return Err(CallFailure::Errno(Errno::EINVAL.number()));
        }
        let open_files = self.open_files_now(home)?;
        let shard = self.slots.open_or_moving(home).filter(|shard| !shard.has_failed());
        for inode in inodes.iter().map(|inode| InodeId(*inode)) {
            match &shard {
                Some(shard) => shard.release(session, inode),
                // If the file is an orphan, the opening of the shard removes it.
                None => {
                    open_files.release(session, inode);
                }
            }
        }
        Ok(())
    }

    /// The open files of a shard of this worker, whether it is open or not. Waits while the shard is between two workers.
    pub async fn open_files(&self, shard: ShardId) -> Result<OpenFiles, NotOpen> {
        loop {
            let changed = self.changed.notified();
            if let Some(open_files) = self.slots.open_files(shard) {
                return open_files;
            }
            changed.await;
        }
    }

    /// Only the first end counts.
    fn end(&self, end: Result<(), String>) {
        self.end.borrow_mut().get_or_insert(end);
        self.changed.notify_waiters();
    }

    async fn ended(&self) -> Result<(), String> {
        loop {
            let changed = self.changed.notified();
            if let Some(end) = self.end.borrow_mut().take() {
                return end;
            }
            changed.await;
        }
    }
}

/// Counts one connection while it lives.
pub struct ConnectionCount(Rc<Worker>);

impl ConnectionCount {
    pub fn new(worker: Rc<Worker>) -> ConnectionCount {
        worker.connections.set(worker.connections.get() + 1);
        worker.metrics.connections(worker.connections.get());
        ConnectionCount(worker)
    }
}

impl Drop for ConnectionCount {
    fn drop(&mut self) {
        let left = self.0.connections.get() - 1;
        self.0.connections.set(left);
        self.0.metrics.connections(left);
        self.0.changed.notify_waiters();
    }
}

fn broken(worker: usize, panic: Box<dyn Any + Send>) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    format!("worker {worker} broke an invariant and has ended: {text}")
}

/// How long a worker spins for the next request. The requests of a FUSE mount are 40 to 80 µs apart and take turns over the
/// workers.
const SPIN_TIME: Duration = Duration::from_micros(300);

/// The body of a worker's thread.
pub fn run(config: WorkerConfig) {
    let (index, board) = (config.index, Arc::clone(&config.board));
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let runtime = config.tables.table.background.clone();
        let _runtime = runtime.enter();
        let spin = if default_spin().is_zero() { Duration::ZERO } else { SPIN_TIME };
        let shards = LocalSet::new();
        let _shards = shards.enter();
        // Dropped first: its tasks may use the others.
        let event_loop = EventLoop::new(Arc::clone(&config.shared.clock), spin).map_err(|error| error.to_string())?;
        let handle = event_loop.handle().clone();
        event_loop.block_on(shards.run_until(live(config, handle)))
    }));
    if let Err(reason) = lived.unwrap_or_else(|panic| Err(broken(index, panic))) {
        tracing::error!("{reason}");
        board.fail(reason);
    }
    board.reach(index, WorkerStage::Ended);
}

async fn live(mut config: WorkerConfig, event_loop: LoopHandle) -> Result<(), String> {
    let commits = Rc::<CommitRound>::default();
    commits.set_open(true);
    let round = Rc::clone(&commits);
    event_loop.before_each_wait(move || round.send());
    let worker = Rc::new_cyclic(|own: &Weak<Worker>| Worker {
        peers: Rc::new(WorkerPeers { inboxes: config.inboxes.clone(), worker: own.clone() }),
        tables: config.tables.clone(),
        index: config.index,
        shared: Arc::clone(&config.shared),
        metrics: Metrics::new(config.index, config.measure, Arc::clone(&config.shared.clock)),
        in_flight: InFlight::default(),
        calls: CallPlaces::default(),
        unknown_outcomes: UnknownOutcomeCalls::default(),
        event_loop,
        commits,
        error_log: RateLimitedLog::default(),
        memory_held: Arc::clone(&config.memory_held),
        board: Arc::clone(&config.board),
        inboxes: config.inboxes.clone(),
        slots: slots(&config),
        listeners: RefCell::default(),
        connections: Cell::new(0),
        unauthenticated: UnauthenticatedConnections::default(),
        clients: Clients::default(),
        turned_away: Cell::new(0),
        changed: Notify::new(),
        stop: watch::Sender::new(false),
        end: RefCell::default(),
    });
    // Receive messages from the start: the log replay of a shard may have to call a shard of another worker.
    let (_, nobody) = mpsc::channel(1);
    worker.spawn(inbox::receive(Rc::clone(&worker), std::mem::replace(&mut config.inbox, nobody)));
    worker.spawn(inbox::obey(Rc::clone(&worker), config.command.clone()));
    worker.spawn(give_back_memory(Rc::clone(&worker)));
    if worker.metrics.measures() {
        worker.spawn(figures::tend(Rc::clone(&worker)));
    }

    let opening = AssertUnwindSafe(open(&worker, &config)).catch_unwind();
    let opened = tokio::select! {
        opened = opening => opened.unwrap_or_else(|panic| Err(broken(worker.index, panic))),
        ended = worker.ended() => return ended,
    };
    if let Err(reason) = opened {
        if let Err(error) = worker.close_shards().await {
            tracing::warn!("{error}");
        }
        return Err(reason);
    }
    worker.ended().await
}

fn slots(config: &WorkerConfig) -> ShardSlots {
    let ServerShared { settings, shard_map, clock, sessions_return, .. } = &*config.shared;
    let own = |shard| (shard, shard_map.worker(shard) == Some(config.index));
    let owned_since = config.shared.leases_since();
    ShardSlots::new(settings.shards.all().map(own), *sessions_return, owned_since, Arc::clone(clock))
}

/// Starts listening, then opens the shards.
async fn open(worker: &Rc<Worker>, config: &WorkerConfig) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("worker {} cannot listen: {error}", worker.index);
    let listeners = listener::listen(&worker.event_loop, config.unix.as_ref(), config.tcp).map_err(cannot)?;
    let address = listeners.address().map_err(cannot)?;
    worker.listeners.replace(Some(listeners));
    worker.board.ready(worker.index, address);
    let begun = worker.shared.clock.monotonic();
    worker.open_shards().await?;
    tracing::info!(
        "worker {}: all shards are open after {:.2?}",
        worker.index,
        worker.shared.clock.monotonic().since(begun)
    );
    Ok(())
}

/// Makes shards free memory when all shards together, those of other workers included, exceed the cache budgets.
async fn give_back_memory(worker: Rc<Worker>) {
    loop {
        tokio::select! {
            () = worker.tables.cache.exceeded() => {}
            () = worker.tables.names.exceeded() => {}
        }
        for shard in worker.slots.all_open() {
            shard.give_back().await;
        }
        tokio::time::sleep(GIVEN_BACK_EVERY).await;
    }
}

/// Ends sessions whose grace period is over at all workers, until the server stops.
async fn end_sessions(worker: Rc<Worker>) {
    let mut stopping = std::pin::pin!(worker.stopping());
    loop {
        tokio::select! {
            () = &mut stopping => return,
            () = tokio::time::sleep(SESSIONS_LOOKED_AT_EVERY) => {}
        }
        worker.snapshots().forget_idle();
        while let Some(session) = worker.shared.sessions.begin_end() {
            let mut ends = Vec::new();
            for inbox in &worker.inboxes {
                let (done, ended) = oneshot::channel();
                // A closed inbox belongs to a worker that has ended, along with its shards.
                if inbox.send(WorkerMessage::EndSession { session, done }).await.is_ok() {
                    ends.push(ended);
                }
            }
            futures::future::join_all(ends).await;
            worker.shared.sessions.end(session);
            tracing::info!("session {:016x} ended", session.0);
        }
    }
}
