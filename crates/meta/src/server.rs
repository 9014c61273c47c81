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
mod busy_poll;
mod calls;
mod clients;
mod connection;
mod dispatch;
mod handshake;
mod inbox;
mod keys;
mod limits;
mod listener;
mod local_session;
mod local_stream;
mod memory;
mod memory_budget;
mod metrics;
mod opening;
mod peer_network;
mod remote_stream;
mod request_queue;
mod sessions;
mod shared;
mod shared_shard_map;
mod shm_slots;
mod turned_away;
mod unauthenticated;
mod worker;
mod worker_board;

pub use crate::shards::LEASE;
pub use limits::Limits;
pub use local_session::{LocalSession, ReplyCallback};
pub use memory::MemoryShares;
pub use sessions::SESSION_GRACE;

use crate::shards::{CacheBudget, SESSIONS_RETURN};
use background::BackgroundRuntimes;
use inbox::{INBOX_MAX, ServerCommand, WorkerMessage};
use keys::Keys;
use memory_budget::MemoryBudget;
use parking_lot::Mutex;
use sessions::{Admission, Sessions};
use shared::ServerShared;
use shared_shard_map::SharedShardMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use varve_env::clock::{Clock, RealClock};
use varve_env::disk::{CLOCK_SKEW_S_MAX, store_clock_ahead_s};
use varve_env::posix_store::PosixStore;
use varve_env::reserve::Reserve;
use varve_env::runtime_dir::{self, RuntimeDirError};
use varve_env::volume_dir::{
    LockError, ServerRecord, ShutdownState, VolumeDir, VolumeFileError, VolumeLock, WorkerRecord, boot_id,
};
use varve_proto::handshake::VolumeKey;
use varve_store::{Merges, TableCache, TableConfig};
use varve_types::{InvalidShardMap, ShardId, ShardMap, VolumeSettings, WorkerAddress};
use worker_board::{Unreached, WorkerBoard, WorkerStage};
use xxhash_rust::xxh3::xxh3_64;

/// Maximum number of worker threads: the processor count of the largest machines that one service may occupy.
pub const WORKERS_MAX: usize = 256;

/// Interval between checks of the reserve. In that time the server cannot write more than the margin above the reserve,
/// even at full speed.
const RESERVE_TENDED_EVERY: Duration = Duration::from_secs(1);

/// Maximum length of a Unix socket path (`sun_path` has 108 bytes, the last of which is a NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

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
    lock: VolumeLock,
}

/// How long dropping a server that was not stopped waits for its workers.
const DROP_DEADLINE: Duration = Duration::from_secs(10);

impl Server {
    /// Takes the volume's lock, starts the workers, and publishes the server record as soon as all workers listen. The
    /// workers then open their shards; a call waits until its shard is open. If no shard can be opened the server ends,
    /// and [`Server::wait`] returns the error.
    pub fn start(config: ServerConfig) -> Result<Server, ServerError> {
        let volume = config.volume.clone();
        let settings = volume.read_settings()?;
        let uid = rustix::process::geteuid().as_raw();
        if uid != settings.owner_uid && uid != 0 {
            let (directory, owner) = (volume.root().to_owned(), settings.owner_uid);
            return Err(ServerError::NotYours { directory, owner, uid });
        }
        check(&config)?;
        let volume = volume.held().map_err(doing("cannot serve the volume"))?;
        let lock = volume.lock()?;
        if !volume.shards().is_dir() {
            return Err(ServerError::NoTables { directory: volume.shards().into() });
        }
        let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
        let owned_since = clock.monotonic();
        let leftovers = "cannot remove leftovers from the volume's directory";
        let room = "cannot read the free space of the store";
        let reserve = Reserve::of(volume.reserve()).map_err(doing(room))?.while_starting();
        reserve.release_if_full().map_err(doing(room))?;
        let living = volume.remove_leftovers(&lock).map_err(doing(leftovers))?;
        volume.raise_format(&lock, &settings).map_err(doing("cannot upgrade the volume to this format"))?;
        let left = volume.left_by_server(&lock).map_err(doing("cannot read the state that the last server left"))?;
        volume.close_to_others().map_err(doing("cannot restrict access to the volume's directories"))?;
        let store = PosixStore::of_volume(&volume).map_err(doing("cannot open the volume's table directory"))?;
        let reserve = Arc::new(reserve);
        let store = store.with_reserve(Arc::clone(&reserve)).with_place(volume.place().cloned());
        store.remove_leftovers(&living).map_err(doing(leftovers))?;
        warn_of_wrong_clock(&volume, &*clock);
        let key = VolumeKey(volume.read_key().map_err(doing("cannot serve the volume"))?);
        let admission = Admission {
            owner_uid: settings.owner_uid,
            server_uid: uid,
            server_pid: std::process::id() as i32,
            embedded: config.embedded,
        };
        let workers = config.workers.min(usize::from(settings.shards.get()));
        let number = varve_env::random::number();
        let boot = boot_id().map_err(doing("cannot identify this boot"))?;
        let shard_map = SharedShardMap::alone(number, boot, workers, settings.shards.get());
        let shard_map = shard_map.map_err(|error| ServerError::Config(error.to_string()))?;
        let shared = Arc::new(ServerShared {
            sessions: Arc::new(Sessions::new(admission, Arc::clone(&clock), config.limits.clone())),
            owned_since,
            // The wait applies to a mount's own server too: clients of the previous server come to the next one, and
            // the files that they have open must still exist then.
            sessions_return: match left {
                ShutdownState::OpenFiles => SESSIONS_RETURN,
                ShutdownState::Nothing => Duration::ZERO,
            },
            quiet_workers: AtomicUsize::new(0),
            number,
            reserve,
            freed_ms: AtomicU64::new(0),
            keys: Arc::new(Keys::new(volume.clone(), key)),
            limits: config.limits.clone(),
            volume,
            clock,
            shard_map,
            peer_network: OnceLock::new(),
            moving: tokio::sync::Mutex::new(()),
            embedded: config.embedded,
            found: left,
            tried: AtomicUsize::new(0),
            any_opened: AtomicBool::new(false),
            settings,
        });
        let board = Arc::new(WorkerBoard::new(workers, Arc::clone(&shared.clock)));
        let command = watch::Sender::new(ServerCommand::Open);
        let background = BackgroundRuntimes::start().map_err(doing("cannot start the threads for tables"))?;
        background.tables.spawn(tend(Arc::clone(&shared.reserve)));
        let (inboxes, receivers): (Vec<mpsc::Sender<WorkerMessage>>, Vec<_>) =
            (0..workers).map(|_| mpsc::channel(INBOX_MAX)).unzip();
        let shm_slots = ShmSlots { inboxes: inboxes.clone(), receivers };
        let threads = spawn_workers(&config, &shared, &board, &command, store, &background, shm_slots)?;
        let running = Mutex::new(Some(RunningServer { threads, background, lock }));
        let server = Server { shared, board, command, inboxes, running };
        match server.open_listeners(config.mount_point.as_deref()) {
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

    fn open_listeners(&self, mount_point: Option<&Path>) -> Result<(), ServerError> {
        self.board.wait_for(WorkerStage::Ready, None).map_err(ServerError::from)?;
        let addresses = self.board.addresses();
        let record_of = |address: &WorkerAddress| WorkerRecord { unix: address.unix.clone(), tcp: address.tcp.clone() };
        let workers = addresses.iter().map(record_of).collect();
        // Before `ServerCommand::Accept`: no client has the map yet.
        let set = self.shared.shard_map.set_addresses(addresses);
        set.map_err(|error| ServerError::Config(error.to_string()))?;
        self.command.send_replace(ServerCommand::Accept);
        let record = ServerRecord::of_this_process(&self.shared.volume, self.shared.embedded, workers)
            .map_err(doing("cannot identify this host and boot"))?;
        let mount_point = mount_point.map(|path| path.to_string_lossy().into_owned());
        let record = ServerRecord { mount_point, after_open_files: self.leaves_as_found(), ..record };
        let running = self.running.lock();
        let lock = &running.as_ref().expect("a server that starts is not stopped").lock;
        self.shared.volume.write_server_record(lock, &record).map_err(doing("cannot write the server record"))
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
        let Some(RunningServer { threads, background, lock }) = self.running.lock().take() else {
            return Ok(());
        };
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
        let left = self.leaves(drained.is_ok());
        let withdrawn = self.shared.volume.withdraw_server_record(&lock, left);
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

/// Garbage collection compares times of files with this host's wall clock, and several servers compare each other's.
fn warn_of_wrong_clock(volume: &VolumeDir, clock: &dyn Clock) {
    match store_clock_ahead_s(&volume.shards(), clock) {
        Ok(ahead) if ahead.unsigned_abs() > CLOCK_SKEW_S_MAX => tracing::warn!(
            "the clock of this host differs by {ahead} s from that of the store: set both by NTP or PTP and start \
             again; several servers of a volume need clocks within {CLOCK_SKEW_S_MAX} s"
        ),
        Ok(_) => {}
        // A full or read-only store: the volume still serves reads.
        Err(error) => tracing::debug!(%error, "cannot compare the clocks of this host and of the store"),
    }
}

/// Maintains the reserve in the store for as long as the server runs.
async fn tend(reserve: Arc<Reserve>) {
    let mut failing = false;
    loop {
        let tended = Arc::clone(&reserve);
        let result = tokio::task::spawn_blocking(move || tended.tend()).await.unwrap_or_else(|end| Err(end.into()));
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
struct ShmSlots {
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
    ShmSlots { inboxes, receivers }: ShmSlots,
) -> Result<Vec<JoinHandle<()>>, ServerError> {
    let sockets =
        config.unix_directory.as_deref().map(|directory| Sockets::prepare(directory, &config.volume, &shared.settings));
    let sockets = sockets.transpose()?;
    let shards = usize::from(shared.settings.shards.get());
    let memory = MemoryShares::divide(config.memory_bytes, shards);
    let table = TableConfig {
        shard: ShardId(0),
        volume: shared.volume.clone(),
        store,
        sync_interval: shared.settings.sync_interval,
        cache: TableCache::with_memtables(memory.blocks, memory.memtables),
        background: background.tables.handle().clone(),
        merges: Merges::on(background.merges.handle().clone()),
        memtable_bytes: memory.memtable_of_each,
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

/// Hexadecimal digits that identify a store in the names of sockets.
const STORE_DIGITS: usize = 16;

/// The names of the workers' sockets: `<store>.<process>.<worker>.sock`. Neither a copy of the volume nor a server that
/// is just ending gets in the way. `<store>` is a hash of the volume's id and of the directory: servers of two copies
/// in two PID namespaces may have the same process number.
struct Sockets {
    directory: PathBuf,
    prefix: String,
    mode: u32,
}

impl Sockets {
    fn prepare(directory: &Path, volume: &VolumeDir, settings: &VolumeSettings) -> Result<Sockets, ServerError> {
        let directory_mode = if settings.owner_uid == 0 { 0o755 } else { 0o700 };
        // Only mounts connect, and they run as the owner or as root.
        let mode = 0o600;
        runtime_dir::prepare(directory, directory_mode)?;
        remove_dead_sockets(directory);
        let store_id = volume.store_id().map_err(doing(format!("cannot look at {}", volume.root().display())))?;
        let store = xxh3_64(format!("{} {store_id}", settings.id).as_bytes());
        let prefix = format!("{store:0STORE_DIGITS$x}.{}", std::process::id());
        let sockets = Sockets { directory: directory.to_owned(), prefix, mode };
        let longest = sockets.path(WORKERS_MAX - 1);
        if longest.as_os_str().len() > SOCKET_PATH_BYTES_MAX {
            return Err(ServerError::Config(format!(
                "{} is too long for a socket's path, which has at most {SOCKET_PATH_BYTES_MAX} bytes: choose a shorter \
                 directory for the sockets",
                longest.display()
            )));
        }
        Ok(sockets)
    }

    fn path(&self, worker: usize) -> PathBuf {
        self.directory.join(format!("{}.{worker}.sock", self.prefix))
    }
}

/// Removes the sockets of dead servers, of this volume or another. A socket that cannot be removed does no harm.
fn remove_dead_sockets(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(parts) = name.to_str().map(|name| name.split('.').collect::<Vec<_>>()) else { continue };
        let [store, pid, _, "sock"] = parts[..] else { continue };
        let ours = store.len() == STORE_DIGITS && store.bytes().all(|digit| digit.is_ascii_hexdigit());
        let dead = pid.parse::<u32>().is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        // A server in another PID namespace has no entry in `/proc` here, but accepts connections.
        if ours && dead && listener::nobody_listens(&entry.path()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
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
