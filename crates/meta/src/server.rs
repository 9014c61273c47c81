//! The metadata service as a process: a server of one volume.
//!
//! ```text
//! receive → fetch → decide → commit → reply
//! ```
//!
//! [`connection`] receives requests and sends replies, [`dispatch`] turns calls into verbs and outcomes into replies,
//! and the shards do the rest. A server has N [`worker`] threads, which share no state on the path of an ordinary call:
//! a client connects directly to the worker that owns the shard. [`shared`] holds the state that all workers share.

mod background;
mod calls;
mod clients;
mod connection;
mod dispatch;
mod figures;
mod handshake;
mod inbox;
mod keys;
mod limits;
mod listener;
mod local_session;
mod membership;
mod memory;
mod memory_budget;
mod metrics;
mod opening;
mod peer_network;
mod released_shards;
mod sessions;
mod shared;
mod shared_shard_map;
mod sockets;
mod store_preparation;
mod unauthenticated;
mod worker;
mod worker_board;

pub use crate::shards::LEASE;
pub use limits::Limits;
pub use local_session::{LocalSession, ReplyCallback};
pub use membership::{JoinSettings, LEASE_DEFAULT};
pub use memory::MemoryShares;
pub use metrics::describe as describe_metrics;
pub use sessions::SESSION_GRACE;

use crate::shards::CacheBudget;
use background::BackgroundRuntimes;
use inbox::{INBOX_MAX, ServerCommand, WorkerMessage};
use membership::MembershipThread;
use memory_budget::MemoryBudget;
use parking_lot::Mutex;
use peer_network::{PeerNetwork, PeerNetworkConfig};
use shared::ServerShared;
use sockets::Sockets;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::thread::JoinHandle;
use std::time::Duration;
use store_preparation::PreparedStore;
use tokio::sync::{mpsc, watch};
use varve_cluster::membership::MembershipError;
use varve_env::disk::CLOCK_SKEW_S_MAX;
use varve_env::posix_store::PosixStore;
use varve_env::reserve::Reserve;
use varve_env::runtime_dir::{self, RuntimeDirError};
use varve_env::volume_dir::{
    LockError, ServerRecord, ShutdownState, VolumeDir, VolumeFileError, VolumeLock, WorkerRecord,
};
use varve_store::{Merges, TableCache, TableConfig};
use varve_types::{AckLevel, InvalidShardMap, ShardId, ShardMap, VolumeSettings, WorkerAddress};
use worker_board::{Unreached, WorkerBoard, WorkerStage};

/// Maximum number of worker threads: the processor count of the largest machines that one service may occupy.
pub const WORKERS_MAX: usize = 256;

/// Interval between checks of the reserve. In that time the server cannot write more than the margin above the reserve,
/// even at full speed.
const RESERVE_TENDED_EVERY: Duration = Duration::from_secs(1);

/// Configuration of a server.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub volume: VolumeDir,
    /// Worker threads. The server starts no more workers than the volume has shards.
    pub workers: usize,
    /// Worker `i` listens on this port plus `i`. With port 0, each worker gets a port of its own.
    pub listen: Option<SocketAddr>,
    /// The directory for the workers' Unix sockets, created if missing; see [`runtime_dir`].
    pub unix_directory: Option<PathBuf>,
    /// The server runs inside a mount: one session of this process may change the volume, all others only observe.
    pub embedded: bool,
    /// For the server record: where an embedded server's process mounts the volume, if the source of the mount is not
    /// the store.
    pub mount_point: Option<PathBuf>,
    /// Approximate memory limit. The sizes of caches and memtables follow from it ([`MemoryShares`]).
    pub memory_bytes: u64,
    /// A `metrics` recorder is installed: count and time calls.
    pub measure: bool,
    /// Resource limits for each peer.
    pub limits: Limits,
    /// The server is one of several. `None`: it is alone.
    pub join: Option<JoinSettings>,
}

/// One worker per two processors: flushes and merges of tables and clients on the same host need processors too.
/// Workers that busy-poll on a processor that others want cost more than they gain
/// (`docs/internals/performance-findings.md`, "Waiting and waking").
fn workers_default() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2))
}

impl ServerConfig {
    /// The configuration of a server of `volume` that listens on Unix sockets only.
    pub fn new(volume: VolumeDir) -> ServerConfig {
        ServerConfig {
            volume,
            workers: workers_default(),
            listen: None,
            unix_directory: Some(runtime_dir::default_directory()),
            embedded: false,
            mount_point: None,
            memory_bytes: MemoryShares::BYTES_DEFAULT,
            measure: false,
            limits: Limits::default(),
            join: None,
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    #[error(transparent)]
    Volume(#[from] VolumeFileError),
    #[error(transparent)]
    Locked(#[from] LockError),
    #[error(
        "the volume {} belongs to user {owner}, and this is user {uid}: only its owner or root may serve or mount it",
        directory.display()
    )]
    NotYours { directory: PathBuf, owner: u32, uid: u32 },
    #[error(
        "{} is missing, the directory with the tables of the volume: bring it back, restore it from a copy of the \
         store, or recover the content of large files with `varve fsck --repair`", directory.display()
    )]
    NoTables { directory: PathBuf },
    #[error("{0}")]
    Config(String),
    #[error("cannot join the servers of the volume: {0}")]
    Join(#[from] MembershipError),
    #[error(
        "the volume {} is of an older format, and only a server that is alone upgrades it: serve it once without --join",
        directory.display()
    )]
    OldFormat { directory: PathBuf },
    #[error(
        "the clock of this host differs by {ahead_s} s from that of the store, and servers of one volume need clocks \
         within {CLOCK_SKEW_S_MAX} s: set both by NTP or PTP"
    )]
    WrongClock { ahead_s: i64 },
    #[error(transparent)]
    SocketDirectory(#[from] RuntimeDirError),
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
    /// A worker could not start, or ended early. All acknowledged changes are in the log.
    #[error("{0}")]
    Failed(String),
    #[error(
        "{workers} workers did not stop within {} s; acknowledged changes are in the log, and the next server replays \
         them", waited.as_secs()
    )]
    StopDeadline { workers: usize, waited: Duration },
}

/// A running server.
pub struct Server {
    shared: Arc<ServerShared>,
    board: Arc<WorkerBoard>,
    command: watch::Sender<ServerCommand>,
    inboxes: Vec<mpsc::Sender<WorkerMessage>>,
    running: Mutex<Option<RunningServer>>,
}

/// The parts of a running server that a stop takes apart. The lock is released last.
struct RunningServer {
    threads: Vec<JoinHandle<()>>,
    background: BackgroundRuntimes,
    /// With other servers.
    joined: Option<Joined>,
    lock: VolumeLock,
}

/// The threads of a server that has joined others.
struct Joined {
    membership: MembershipThread,
    peers: PeerNetwork,
}

/// How long dropping a server that was not stopped waits for its workers.
const DROP_DEADLINE: Duration = Duration::from_secs(10);

impl Server {
    /// Takes the volume's lock, starts the workers, and publishes the server record as soon as all workers listen. The
    /// workers then open their shards; a call waits until its shard is open. If no shard can be opened the server ends,
    /// and [`Server::wait`] returns the error.
    pub fn start(config: ServerConfig) -> Result<Server, ServerError> {
        check(&config)?;
        if config.measure {
            ::metrics::gauge!("varve_memory_limit_bytes").set(config.memory_bytes as f64);
        }
        let PreparedStore { lock, store, state } = store_preparation::prepare(&config)?;
        let shared = Arc::new(ServerShared::new(&config, state)?);
        let workers = shared.shard_map.workers();
        let board = Arc::new(WorkerBoard::new(workers, Arc::clone(&shared.clock)));
        let command = watch::Sender::new(ServerCommand::Open);
        let background = BackgroundRuntimes::start().map_err(doing("cannot start the threads for tables"))?;
        background.tables.spawn(tend(Arc::clone(&shared.reserve), config.measure));
        let (inboxes, receivers): (Vec<mpsc::Sender<WorkerMessage>>, Vec<_>) =
            (0..workers).map(|_| mpsc::channel(INBOX_MAX)).unzip();
        let both_ends = Inboxes { inboxes: inboxes.clone(), receivers };
        let threads = spawn_workers(&config, &shared, &board, &command, store, &background, both_ends)?;
        let running = Mutex::new(Some(RunningServer { threads, background, joined: None, lock }));
        let server = Server { shared, board, command, inboxes, running };
        match server.open_listeners(&config) {
            Ok(()) => {
                server.shared.reserve.has_started();
                Ok(server)
            }
            Err(error) => {
                // Report the first error; the error of the stop would only say that the server has failed.
                let _ = server.stop(DROP_DEADLINE);
                Err(error)
            }
        }
    }

    fn open_listeners(&self, config: &ServerConfig) -> Result<(), ServerError> {
        self.board.wait_for(WorkerStage::Ready, None).map_err(ServerError::from)?;
        let addresses = self.board.addresses();
        let record_of = |address: &WorkerAddress| WorkerRecord { unix: address.unix.clone(), tcp: address.tcp.clone() };
        let workers = addresses.iter().map(record_of).collect();
        // Before `ServerCommand::Accept`: no client has the map yet.
        let set = self.shared.shard_map.set_addresses(addresses);
        set.map_err(|error| ServerError::Config(error.to_string()))?;
        let record = ServerRecord::of_this_process(&self.shared.volume, self.shared.embedded, workers)
            .map_err(doing("cannot identify this host and boot"))?;
        let mount_point = config.mount_point.as_ref().map(|path| path.to_string_lossy().into_owned());
        let ack = if self.shared.sync_writes.is_on() { AckLevel::Synced } else { AckLevel::Appended };
        let ack = Some(ack.name().to_owned());
        let record = ServerRecord { mount_point, after_open_files: self.leaves_as_found(), ack, ..record };
        let mut running = self.running.lock();
        let running = running.as_mut().expect("a server that starts is not stopped");
        if let Some(settings) = &config.join {
            running.joined = Some(self.join(config, settings, &record)?);
        }
        self.command.send_replace(ServerCommand::Accept);
        let (volume, lock) = (&self.shared.volume, &running.lock);
        let written = match running.joined {
            None => volume.write_server_record(lock, &record),
            Some(_) => {
                let written = volume.write_joined_record(lock, self.shared.number, &record).and_then(|()| lock.share());
                *self.shared.record.lock() = Some(record);
                written
            }
        };
        written.map_err(doing("cannot write the server record"))
    }

    fn join(
        &self,
        config: &ServerConfig,
        settings: &JoinSettings,
        record: &ServerRecord,
    ) -> Result<Joined, ServerError> {
        let shared = &self.shared;
        let sockets = config.unix_directory.as_deref();
        let sockets =
            sockets.map(|directory| Sockets::prepare(directory, &shared.volume, &shared.settings)).transpose()?;
        // Any port: other servers find it in the map.
        let tcp = config.listen.map(|address| SocketAddr::new(address.ip(), 0));
        let (inboxes, board) = (self.inboxes.clone(), Arc::clone(&self.board));
        let failed = Box::new(move |reason| board.fail(reason));
        let places = (sockets.map(|sockets| sockets.of_peers()), tcp);
        let peers = PeerNetworkConfig::of_server(shared, inboxes.clone(), Arc::clone(&shared.lease), places, failed)
            .and_then(PeerNetwork::start)
            .map_err(doing("cannot listen for other servers"))?;
        shared.peer_network.get_or_init(|| peers.handle().clone());
        let member = membership::member(record, peers.address(), shared.sync_writes.is_on());
        let membership = MembershipThread::join(settings, shared, member, inboxes, self.command.clone())?;
        Ok(Joined { membership, peers })
    }

    pub fn settings(&self) -> &VolumeSettings {
        &self.shared.settings
    }

    /// The listen addresses of each worker.
    pub fn addresses(&self) -> Vec<WorkerAddress> {
        self.board.addresses()
    }

    /// The present shard map.
    pub fn map(&self) -> Arc<ShardMap> {
        self.shared.shard_map.current()
    }

    /// Replaces the shard map by a newer version, which may name other servers. `false`: it is not newer.
    pub fn follow(&self, map: ShardMap) -> Result<bool, InvalidShardMap> {
        self.shared.shard_map.replace(map)
    }

    /// Number of sessions that are connected or within their grace period.
    pub fn sessions(&self) -> usize {
        self.shared.sessions.count()
    }

    /// Whether the server can serve the whole volume. The error is the reason why not, or why not yet.
    pub fn readiness(&self) -> Result<(), String> {
        if let Some(reason) = self.board.failure() {
            return Err(reason);
        }
        if !self.shared.lease.is_valid() {
            return Err("the lease of this server has not been renewed in time".to_owned());
        }
        let (tried, shards) = (self.shared.tried.load(SeqCst), usize::from(self.shared.settings.shards.get()));
        match self.shared.joined || tried >= shards {
            true => Ok(()),
            false => Err(format!("{tried} of {shards} shards have been opened so far")),
        }
    }

    /// Waits until the server has stopped or failed.
    pub fn wait(&self) -> Result<(), ServerError> {
        self.board.wait_for_stop(None).unwrap_or(Ok(())).map_err(ServerError::Failed)
    }

    /// [`Server::wait`] for at most `timeout`. `None`: the server still runs.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<(), ServerError>> {
        let deadline = self.shared.clock.monotonic().after(timeout);
        self.board.wait_for_stop(Some(deadline)).map(|end| end.map_err(ServerError::Failed))
    }

    /// Stops the server: it accepts nothing more, answers the requests in progress, syncs and closes the shards,
    /// withdraws the server record and releases the lock. Work that is not done by `deadline` is left as after a crash.
    /// A second stop does nothing.
    pub fn stop(&self, deadline: Duration) -> Result<(), ServerError> {
        let Some(RunningServer { threads, background, joined, lock }) = self.running.lock().take() else {
            return Ok(());
        };
        if let Some(joined) = joined.as_ref().filter(|_| self.board.failure().is_none()) {
            joined.membership.drain();
        }
        let clock = &self.shared.clock;
        let begin = clock.monotonic();
        let end = begin.after(deadline);
        self.command.send_replace(ServerCommand::Drain);
        // Half of the time is for requests in progress: a client that does not read its replies must not keep the
        // shards from being closed.
        let drained = self.board.wait_for(WorkerStage::Drained, Some(begin.after(deadline / 2)));
        if let Err(Unreached::Deadline { workers }) = &drained {
            tracing::warn!("{workers} workers still have requests in progress; closing their shards anyway");
        }
        self.command.send_replace(ServerCommand::Close);
        let workers = self.board.wait_for_ends(end);
        if workers > 0 {
            // A thread that still runs may still write, so no other server may take the volume while this process
            // lives.
            std::mem::forget(lock);
            background.abandon();
            let error = ServerError::StopDeadline { workers, waited: deadline };
            self.board.fail(error.to_string());
            return Err(error);
        }
        for thread in threads {
            // A worker catches and posts its own panic, so only the thread's return is left.
            let _ = thread.join();
        }
        background.stop(&**clock, end);
        let withdrawn = match joined {
            Some(Joined { membership, peers }) => {
                // The workers have ended, and with them the transactions over other servers.
                drop(peers);
                membership.leave();
                self.shared.remove_record()
            }
            None => self.shared.volume.withdraw_server_record(&lock, self.leaves(drained.is_ok())),
        };
        drop(lock);
        if let Some(reason) = self.board.failure() {
            return Err(ServerError::Failed(reason));
        }
        self.board.stop();
        withdrawn.map_err(doing("cannot remove the server record"))
    }
}

impl Server {
    /// Which state the server leaves for the next one. All workers have ended. `drained`: no call was in progress when
    /// they began to.
    fn leaves(&self, drained: bool) -> ShutdownState {
        let quiet = drained && self.shared.quiet_workers.load(SeqCst) == self.shared.shard_map.workers();
        match quiet && !self.leaves_as_found() {
            true => ShutdownState::Nothing,
            false => ShutdownState::OpenFiles,
        }
    }

    /// Whether clients of the previous server may have files open that this server never learns about. An embedded
    /// server has one client only; the others reconnect to the next server that serves them.
    fn leaves_as_found(&self) -> bool {
        self.shared.embedded && self.shared.found == ShutdownState::OpenFiles
    }
}

/// Maintains the reserve in the store for as long as the server runs.
async fn tend(reserve: Arc<Reserve>, measure: bool) {
    let mut failing = false;
    loop {
        let tended = Arc::clone(&reserve);
        let work = move || {
            let result = tended.tend();
            if measure {
                figures::report_store(&tended);
            }
            result
        };
        let result = tokio::task::spawn_blocking(work).await.unwrap_or_else(|end| Err(end.into()));
        if let Err(error) = &result
            && !failing
        {
            tracing::warn!("cannot reserve space for removals from a full store: {error}");
        }
        failing = result.is_err();
        tokio::time::sleep(RESERVE_TENDED_EVERY).await;
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.stop(DROP_DEADLINE) {
            tracing::error!("the server did not stop well: {error}");
        }
    }
}

fn check(config: &ServerConfig) -> Result<(), ServerError> {
    if config.workers == 0 || config.workers > WORKERS_MAX {
        return Err(ServerError::Config(format!("{} workers: use 1 to {WORKERS_MAX}", config.workers)));
    }
    if config.memory_bytes < MemoryShares::BYTES_MIN {
        let (asked, min) = (config.memory_bytes, MemoryShares::BYTES_MIN >> 20);
        return Err(ServerError::Config(format!(
            "{asked} bytes of memory are too few for a server: give it at least {min} MiB with --memory"
        )));
    }
    if config.listen.is_none() && config.unix_directory.is_none() {
        let reason = "no address to listen on: give a TCP address or a directory for sockets";
        return Err(ServerError::Config(reason.into()));
    }
    if let Some(address) = config.listen
        && address.port() != 0
        && usize::from(u16::MAX - address.port()) < config.workers - 1
    {
        return Err(ServerError::Config(format!(
            "cannot listen on {address}: {} consecutive ports are needed, one for each worker",
            config.workers
        )));
    }
    Ok(())
}

/// Both ends of every worker's inbox.
struct Inboxes {
    inboxes: Vec<mpsc::Sender<WorkerMessage>>,
    receivers: Vec<mpsc::Receiver<WorkerMessage>>,
}

fn spawn_workers(
    config: &ServerConfig,
    shared: &Arc<ServerShared>,
    board: &Arc<WorkerBoard>,
    command: &watch::Sender<ServerCommand>,
    store: PosixStore,
    background: &BackgroundRuntimes,
    Inboxes { inboxes, receivers }: Inboxes,
) -> Result<Vec<JoinHandle<()>>, ServerError> {
    let sockets =
        config.unix_directory.as_deref().map(|directory| Sockets::prepare(directory, &config.volume, &shared.settings));
    let sockets = sockets.transpose()?;
    let shards = usize::from(shared.settings.shards.get());
    let memory = MemoryShares::divide(config.memory_bytes, shards);
    let lease = Arc::clone(&shared.lease);
    let table = TableConfig {
        shard: ShardId(0),
        volume: shared.volume.clone(),
        store,
        sync_interval: shared.settings.sync_interval,
        cache: TableCache::with_memtables(memory.blocks, memory.memtables),
        background: background.tables.handle().clone(),
        merges: Merges::on(background.merges.handle().clone()),
        memtable_bytes: memory.memtable_of_each,
        sync_writes: shared.sync_writes.clone(),
        may_claim: Some(Arc::new(move || lease.is_valid())),
    };
    let tables = worker::TableLimits {
        table,
        cache: Arc::new(CacheBudget::new(memory.rows, shards)),
        names: Arc::new(CacheBudget::new(memory.names, shards)),
    };
    let memory_held = Arc::new(MemoryBudget::new(memory.messages));
    let mut threads = Vec::new();
    for (index, inbox) in receivers.into_iter().enumerate() {
        let tcp = config.listen.map(|mut address| {
            address.set_port(if address.port() == 0 { 0 } else { address.port() + index as u16 });
            address
        });
        let worker = worker::WorkerConfig {
            index,
            shared: Arc::clone(shared),
            board: Arc::clone(board),
            inbox,
            inboxes: inboxes.clone(),
            command: command.subscribe(),
            unix: sockets.as_ref().map(|sockets| (sockets.path(index), sockets.mode)),
            tcp,
            tables: tables.clone(),
            measure: config.measure,
            memory_held: Arc::clone(&memory_held),
        };
        let thread = std::thread::Builder::new().name(format!("varve-worker-{index}"));
        let thread = thread.spawn(move || worker::run(worker)).map_err(doing("cannot start a worker's thread"))?;
        threads.push(thread);
    }
    Ok(threads)
}

fn doing(doing: impl Into<String>) -> impl FnOnce(io::Error) -> ServerError {
    let doing = doing.into();
    move |source| ServerError::Io { doing, source }
}

impl From<Unreached> for ServerError {
    fn from(unreached: Unreached) -> ServerError {
        match unreached {
            Unreached::Failed(reason) => ServerError::Failed(reason),
            Unreached::Deadline { workers } => ServerError::Failed(format!("{workers} workers were not ready in time")),
        }
    }
}

#[cfg(test)]
mod tests;
