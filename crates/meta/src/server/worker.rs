//! A worker: a thread with a runtime of its own, which owns the shards `s` with `s mod workers` equal to its index.
//!
//! Everything in here is single-threaded. What comes from outside are connections and messages of other workers; both
//! become tasks of the worker's local set. A task that panics has broken an invariant: the worker posts the failure and
//! its thread ends without closing its tables, as if it had been killed, for what was appended is safe and what is in
//! memory may not be.

use super::busy_poll::BusyPoll;
use super::clients::Clients;
use super::dispatch::{InFlight, UnknownOutcomeCalls};
use super::inbox::{self, ServerCommand, WorkerMessage, WorkerPeers};
use super::keys;
use super::listener::{self, Listeners};
use super::memory_budget::MemoryBudget;
use super::metrics::Metrics;
use super::opening::ShardOpening;
use super::rate_limited_log::RateLimitedLog;
use super::shared::ServerShared;
use super::unauthenticated::UnauthenticatedConnections;
use super::worker_board::{WorkerBoard, WorkerStage};
use crate::shards::{CacheBudget, PeerCall, PeerReply, Peers, Shard, TableConfig};
use futures::FutureExt;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::LocalOptions;
use tokio::sync::{Notify, mpsc, watch};
use varve_env::key_hash::KeyHashing;
use varve_types::{InodeId, SessionId, ShardId};

/// How often the first worker looks for sessions whose grace is over.
const SESSIONS_LOOKED_AT_EVERY: Duration = Duration::from_secs(5);

/// The pause between two rounds through all shards for memory to be given back. In so short a time little is taken.
const GIVEN_BACK_EVERY: Duration = Duration::from_millis(20);

/// What one worker needs to begin.
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
    /// Bytes of messages that the worker may hold.
    pub memory_held_max: usize,
}

/// What the shards of a worker are opened with.
#[derive(Clone)]
pub struct TableLimits {
    /// That of every shard, but for its number.
    pub table: TableConfig,
    pub cache: Arc<CacheBudget>,
    pub names: Arc<CacheBudget>,
}

pub struct Worker {
    pub index: usize,
    pub shared: Arc<ServerShared>,
    pub metrics: Metrics,
    pub in_flight: InFlight,
    pub unknown_outcomes: UnknownOutcomeCalls,
    pub busy_poll: BusyPoll,
    pub error_log: RateLimitedLog,
    pub memory_held: MemoryBudget,
    board: Arc<WorkerBoard>,
    inboxes: Vec<mpsc::Sender<WorkerMessage>>,
    pub(super) peers: Rc<dyn Peers>,
    pub(super) tables: TableLimits,
    pub(super) opening: ShardOpening,
    pub(super) shards: RefCell<HashMap<ShardId, Rc<Shard>, KeyHashing>>,
    listeners: RefCell<Option<Listeners>>,
    connections: Cell<usize>,
    pub unauthenticated: UnauthenticatedConnections,
    /// Connections whose client is known, by share.
    pub clients: Clients,
    /// Connections that are being told that they are not wanted.
    pub turned_away: Cell<usize>,
    /// A shard was opened or could not be, a connection has ended, or the worker has come to its end.
    pub(super) changed: Notify,
    stop: watch::Sender<bool>,
    end: RefCell<Option<Result<(), String>>>,
}

impl Worker {
    /// The shard, if this worker owns it and it is open.
    pub fn shard(&self, shard: ShardId) -> Option<Rc<Shard>> {
        self.shards.borrow().get(&shard).cloned()
    }

    /// Of all tables of the server.
    pub fn snapshots(&self) -> Arc<crate::shards::table::ConsistentSnapshots> {
        self.tables.table.cache.snapshots()
    }

    /// Whether the shard is this worker's, open or not.
    pub fn owns(&self, shard: ShardId) -> bool {
        shard.0 < self.shared.settings.shards.get() && self.shared.owner(shard) == self.index
    }

    /// Ready when the worker accepts and reads no more.
    pub fn stopping(&self) -> impl Future<Output = ()> + 'static {
        let mut stop = self.stop.subscribe();
        async move {
            // An error means that the worker itself is gone, which is a stop too.
            let _ = stop.wait_for(|stopped| *stopped).await;
        }
    }

    pub fn connections(&self) -> usize {
        self.connections.get()
    }

    /// Connections whose client is known.
    pub fn clients(&self) -> usize {
        self.connections().saturating_sub(self.unauthenticated.count())
    }

    pub fn spawn_connection(self: &Rc<Self>, connection: impl Future<Output = ()> + 'static) {
        let count = ConnectionCount::new(Rc::clone(self));
        self.spawn(async move {
            let _count = count;
            connection.await;
        });
    }

    /// Runs a task on this worker; its panic ends the worker.
    pub fn spawn(self: &Rc<Self>, task: impl Future<Output = ()> + 'static) {
        self.busy_poll.woke();
        let worker = Rc::clone(self);
        tokio::task::spawn_local(async move {
            if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
                worker.end(Err(broken(worker.index, panic)));
            }
        });
    }

    // What the server tells it.

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
            worker.end_removals().await;
            worker.board.reach(worker.index, WorkerStage::Drained);
        });
    }

    /// While the shards that are asked for it are open.
    async fn end_removals(&self) {
        let shards: Vec<_> = self.shards.borrow().values().cloned().collect();
        futures::future::join_all(shards.iter().map(Shard::end_removals)).await;
    }

    pub fn close(self: &Rc<Self>) {
        self.stop.send_replace(true);
        let worker = Rc::clone(self);
        self.spawn(async move {
            let closed = worker.close_shards().await;
            worker.end(closed);
        });
    }

    /// `closed`: what the ended session alone had open.
    pub fn end_session(self: &Rc<Self>, session: SessionId, closed: &[InodeId]) {
        self.opening.forget(session);
        self.unknown_outcomes.end_session(session);
        for shard in self.shards.borrow().values() {
            shard.end_session(session);
            shard.end_orphans(closed);
        }
    }

    /// `session` has closed `inode` for the last time, as it tells `shard`, which need not be open, nor be this worker's.
    pub fn release(self: &Rc<Self>, shard: ShardId, session: SessionId, inode: InodeId) {
        if let Some(shard) = self.shard(shard).filter(|shard| !shard.has_failed()) {
            return shard.release(session, inode);
        }
        let free = self.shared.open_files.release(session, inode);
        let home = inode.shard();
        // An orphan of a shard that is not open is left to its opening.
        if !free || (self.owns(home) && self.shard(home).is_none()) {
            return;
        }
        let worker = Rc::clone(self);
        self.spawn(async move {
            let reply = worker.peers.call(home, PeerCall::Reap(inode)).await;
            if !matches!(reply, PeerReply::Done) {
                tracing::warn!("orphan {inode} stays until the next start of its shard: {reply:?}");
            }
        });
    }

    /// The first end is the one that counts.
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

/// One connection in the count.
struct ConnectionCount(Rc<Worker>);

impl ConnectionCount {
    fn new(worker: Rc<Worker>) -> ConnectionCount {
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
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it did not say which");
    format!("worker {worker} broke an invariant and has ended: {text}")
}

/// The life of a worker's thread.
pub fn run(config: WorkerConfig) {
    let (index, board) = (config.index, Arc::clone(&config.board));
    let lived = std::panic::catch_unwind(AssertUnwindSafe(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build_local(LocalOptions::default());
        runtime.map_err(|error| error.to_string())?.block_on(live(config))
    }));
    if let Err(reason) = lived.unwrap_or_else(|panic| Err(broken(index, panic))) {
        tracing::error!("{reason}");
        board.fail(reason);
    }
    board.reach(index, WorkerStage::Ended);
}

async fn live(mut config: WorkerConfig) -> Result<(), String> {
    let worker = Rc::new_cyclic(|own: &Weak<Worker>| Worker {
        peers: Rc::new(WorkerPeers { inboxes: config.inboxes.clone(), worker: own.clone() }),
        tables: config.tables.clone(),
        index: config.index,
        shared: Arc::clone(&config.shared),
        metrics: Metrics::new(config.index, config.measure, Arc::clone(&config.shared.clock)),
        in_flight: InFlight::default(),
        unknown_outcomes: UnknownOutcomeCalls::default(),
        busy_poll: BusyPoll::default(),
        error_log: RateLimitedLog::default(),
        memory_held: MemoryBudget::new(config.memory_held_max),
        board: Arc::clone(&config.board),
        inboxes: config.inboxes.clone(),
        opening: ShardOpening::of(own_shards(&config)),
        shards: RefCell::default(),
        listeners: RefCell::default(),
        connections: Cell::new(0),
        unauthenticated: UnauthenticatedConnections::default(),
        clients: Clients::default(),
        turned_away: Cell::new(0),
        changed: Notify::new(),
        stop: watch::Sender::new(false),
        end: RefCell::default(),
    });
    // Messages are taken from the start: what a shard finds in its log, it may have to ask of another worker's.
    let (_, nobody) = mpsc::channel(1);
    worker.spawn(inbox::receive(Rc::clone(&worker), std::mem::replace(&mut config.inbox, nobody)));
    let watchful = Rc::clone(&worker);
    worker.spawn(async move { watchful.busy_poll.keep().await });
    worker.spawn(inbox::obey(Rc::clone(&worker), config.command.clone()));
    worker.spawn(give_back_memory(Rc::clone(&worker)));

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

fn own_shards(config: &WorkerConfig) -> impl Iterator<Item = ShardId> {
    config.shared.settings.shards.all().filter(|shard| config.shared.owner(*shard) == config.index)
}

/// Listens, and opens the shards.
async fn open(worker: &Rc<Worker>, config: &WorkerConfig) -> Result<(), String> {
    let cannot = |error: std::io::Error| format!("worker {} cannot listen: {error}", worker.index);
    let listeners = listener::listen(config.unix.as_ref(), config.tcp).map_err(cannot)?;
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

/// Has shards give back memory when those in use, here or in other workers, need more than there is.
async fn give_back_memory(worker: Rc<Worker>) {
    loop {
        tokio::select! {
            () = worker.tables.cache.exceeded() => {}
            () = worker.tables.names.exceeded() => {}
        }
        let shards: Vec<_> = worker.shards.borrow().values().cloned().collect();
        for shard in shards {
            shard.give_back().await;
        }
        tokio::time::sleep(GIVEN_BACK_EVERY).await;
    }
}

/// Tells all workers which sessions have ended, until the server stops.
async fn end_sessions(worker: Rc<Worker>) {
    let mut stopping = std::pin::pin!(worker.stopping());
    loop {
        tokio::select! {
            () = &mut stopping => return,
            () = tokio::time::sleep(SESSIONS_LOOKED_AT_EVERY) => {}
        }
        worker.snapshots().forget_idle();
        let ServerShared { sessions, open_files, .. } = &*worker.shared;
        while let Some((session, closed)) = sessions.end_one(|session| open_files.end_session(session)) {
            let closed: Arc<[InodeId]> = closed.into();
            tracing::info!(
                "session {:016x} has ended; {} files that it alone had open are closed",
                session.0,
                closed.len()
            );
            for inbox in &worker.inboxes {
                // An inbox that is closed belongs to a worker that has ended, and its shards with it.
                let _ = inbox.send(WorkerMessage::EndSession { session, closed: Arc::clone(&closed) }).await;
            }
        }
    }
}
