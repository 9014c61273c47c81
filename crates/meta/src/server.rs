//! The process side of the metadata service: a server of one volume.
//!
//! ```text
//! receive → fetch → decide → commit → reply
//! ```
//!
//! [`connection`] receives and replies, [`dispatch`] turns calls into verbs and outcomes into replies, and the shards
//! do the rest. A server has N [`worker`]s, threads that share nothing an ordinary call touches: a client talks straight
//! to the worker that owns the shard. What they do share is in [`shared`].

mod background;
mod busy_poll;
mod clients;
mod connection;
mod dispatch;
mod handshake;
mod inbox;
mod keys;
mod leases;
mod limits;
mod listener;
mod local_session;
mod local_stream;
mod memory;
mod memory_budget;
mod metrics;
mod opening;
mod rate_limited_log;
mod remote_stream;
mod request_queue;
mod sessions;
mod shared;
mod shm_slots;
mod turned_away;
mod unauthenticated;
mod worker;
mod worker_board;

pub use leases::LEASE;
pub use limits::Limits;
pub use local_session::{LocalSession, ReplyCallback};
pub use memory::MemoryShares;
pub use sessions::SESSION_GRACE;

use crate::shards::table::{Merges, TableCache};
use crate::shards::{CacheBudget, OpenFiles, SESSIONS_RETURN, TableConfig};
use background::BackgroundRuntimes;
use inbox::{INBOX_MAX, ServerCommand, WorkerMessage};
use keys::Keys;
use leases::Leases;
use parking_lot::Mutex;
use sessions::{Admission, Sessions};
use shared::ServerShared;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use varve_env::clock::{Clock, RealClock};
use varve_env::posix_store::PosixStore;
use varve_env::reserve::Reserve;
use varve_env::runtime_dir::{self, RuntimeDirError};
use varve_env::volume_dir::{
    LockError, ServerRecord, ShutdownState, VolumeDir, VolumeFileError, VolumeLock, WorkerRecord,
};
use varve_proto::handshake::{VolumeKey, WorkerAddress};
use varve_types::{ShardId, VolumeSettings};
use worker_board::{Unreached, WorkerBoard, WorkerStage};
use xxhash_rust::xxh3::xxh3_64;

/// Threads of a server: as many as the largest machines have processors that one service may take.
pub const WORKERS_MAX: usize = 256;

/// How often the room kept back for removals is looked at: what is written in that time at full speed is above it.
const RESERVE_TENDED_EVERY: Duration = Duration::from_secs(1);

/// What a path of a Unix socket may have (`sun_path` has 108 bytes, the last a NUL).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// How a server is to be.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub volume: VolumeDir,
    /// Threads; no more than the volume's shards are used.
    pub workers: usize,
    /// Worker `i` listens on this port plus `i`; each on a port of its own where it is 0.
    pub listen: Option<SocketAddr>,
    /// A directory for the workers' Unix sockets, made if need be; see [`runtime_dir`].
    pub unix_directory: Option<PathBuf>,
    /// Inside a mount: one session of this very process works on the volume, all others only observe.
    pub embedded: bool,
    /// Memory that the server may take, about: its caches and memtables follow from it ([`MemoryShares`]).
    pub memory_bytes: u64,
    /// A recorder of `metrics` is installed: count and time calls.
    pub measure: bool,
    /// How much of the server one peer may take.
    pub limits: Limits,
}

/// One for two processors: what flushes and merges tables needs some as well, and so do clients on the same host. Workers
/// that look for requests where others want the processor cost more than they do
/// (`docs/internals/performance-findings.md`, "Waiting and waking").
fn workers_default() -> usize {
    std::thread::available_parallelism().map_or(1, |processors| processors.get().div_ceil(2))
}

impl ServerConfig {
    /// A server of `volume` on Unix sockets alone.
    pub fn new(volume: VolumeDir) -> ServerConfig {
        ServerConfig {
            volume,
            workers: workers_default(),
            listen: None,
            unix_directory: Some(runtime_dir::default_directory()),
            embedded: false,
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
        "{} is not there, which holds the tables of the volume: bring it back, or restore it from a copy of the store, or go on \
         with what there is of the content of large files by `varve fsck --repair`", directory.display()
    )]
    NoTables { directory: PathBuf },
    #[error("{0}")]
    Config(String),
    #[error(transparent)]
    SocketDirectory(#[from] RuntimeDirError),
    #[error("{doing}: {source}")]
    Io { doing: String, source: io::Error },
    /// A worker could not begin, or has ended before its time. What was acknowledged is in the log.
    #[error("{0}")]
    Failed(String),
    #[error(
        "{workers} workers were not done {} s after they were asked to stop; what was acknowledged is in the log and the \
         next server will find it", waited.as_secs()
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

/// What a stop takes apart. The lock is let go last.
struct RunningServer {
    threads: Vec<JoinHandle<()>>,
    background: BackgroundRuntimes,
    lock: VolumeLock,
}

/// How long a server that is dropped without a stop waits for its workers.
const DROP_DEADLINE: Duration = Duration::from_secs(10);

impl Server {
    /// Takes the volume's lock and listens; the server is announced as soon as its workers do. They open their shards
    /// meanwhile, and calls wait for those that they need. Where no shard at all can be opened the server ends, which
    /// [`Server::wait`] tells.
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
        let leftovers = "cannot clear the volume's directory of leftovers";
        let room = "cannot tell how much room the store has";
        let reserve = Reserve::of(volume.reserve()).map_err(doing(room))?.while_starting();
        reserve.release_if_full().map_err(doing(room))?;
        volume.remove_leftovers(&lock).map_err(doing(leftovers))?;
        volume.raise_format(&lock, &settings).map_err(doing("cannot raise the volume to this format"))?;
        let left = volume.left_by_server(&lock).map_err(doing("cannot tell what the last server left"))?;
        volume.close_to_others().map_err(doing("cannot close the volume's directories to others"))?;
        let store = PosixStore::open(volume.shards()).map_err(doing("cannot use the volume's directory of tables"))?;
        let reserve = Arc::new(reserve);
        let store = store.with_reserve(Arc::clone(&reserve)).with_place(volume.place().cloned());
        store.remove_leftovers().map_err(doing(leftovers))?;
        let key = VolumeKey(volume.read_key().map_err(doing("cannot serve the volume"))?);
        let admission = Admission {
            owner_uid: settings.owner_uid,
            server_uid: uid,
            server_pid: std::process::id() as i32,
            embedded: config.embedded,
        };
        let workers = config.workers.min(usize::from(settings.shards.get()));
        let shared = Arc::new(ServerShared {
            sessions: Arc::new(Sessions::new(admission, Arc::clone(&clock), config.limits.clone())),
            leases: Arc::new(Leases::new(Arc::clone(&clock), owned_since)),
            open_files: OpenFiles::default(),
            // Also of a mount's own server: clients of the one before come to the next, and what they have open has to be there.
            sessions_known_from: match left {
                ShutdownState::OpenFiles => owned_since.after(SESSIONS_RETURN),
                ShutdownState::Nothing => owned_since,
            },
            number: varve_env::random::number(),
            reserve,
            keys: Arc::new(Keys::new(volume.clone(), key)),
            limits: config.limits.clone(),
            volume,
            clock,
            workers,
            embedded: config.embedded,
            found: left,
            tried: AtomicUsize::new(0),
            any_opened: AtomicBool::new(false),
            addresses: OnceLock::new(),
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
        match server.open_listeners() {
            Ok(()) => {
                server.shared.reserve.has_started();
                Ok(server)
            }
            Err(error) => {
                // The first error is the one to tell; the stop's own would only say that the server has failed.
                let _ = server.stop(DROP_DEADLINE);
                Err(error)
            }
        }
    }

    fn open_listeners(&self) -> Result<(), ServerError> {
        self.board.wait_for(WorkerStage::Ready, None).map_err(ServerError::from)?;
        let addresses = self.board.addresses();
        let record_of = |address: &WorkerAddress| WorkerRecord { unix: address.unix.clone(), tcp: address.tcp.clone() };
        let workers = addresses.iter().map(record_of).collect();
        // Set once, here; workers read it only after they have been told to accept.
        self.shared.addresses.get_or_init(|| addresses);
        self.command.send_replace(ServerCommand::Accept);
        let record = ServerRecord::of_this_process(&self.shared.volume, self.shared.embedded, workers)
            .map_err(doing("cannot tell this host and boot"))?;
        let record = ServerRecord { after_open_files: self.leaves_as_found(), ..record };
        let running = self.running.lock();
        let lock = &running.as_ref().expect("a server that starts is not stopped").lock;
        self.shared.volume.write_server_record(lock, &record).map_err(doing("cannot announce the server"))
    }

    pub fn settings(&self) -> &VolumeSettings {
        &self.shared.settings
    }

    /// Where each worker listens.
    pub fn addresses(&self) -> Vec<WorkerAddress> {
        self.board.addresses()
    }

    /// Sessions that are connected or in their grace.
    pub fn sessions(&self) -> usize {
        self.shared.sessions.count()
    }

    /// Waits until the server is stopped, or has failed.
    pub fn wait(&self) -> Result<(), ServerError> {
        self.board.wait_for_stop(None).unwrap_or(Ok(())).map_err(ServerError::Failed)
    }

    /// [`Server::wait`] for at most `timeout`; `None`: it still runs.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<(), ServerError>> {
        let deadline = self.shared.clock.monotonic().after(timeout);
        self.board.wait_for_stop(Some(deadline)).map(|end| end.map_err(ServerError::Failed))
    }

    /// Stops: nothing more is accepted, what is under way is answered, the shards are synced and closed, the
    /// announcement withdrawn, the lock let go. After `deadline` what is not done is left as a crash would leave it. A
    /// second stop does nothing.
    pub fn stop(&self, deadline: Duration) -> Result<(), ServerError> {
        let Some(RunningServer { threads, background, lock }) = self.running.lock().take() else {
            return Ok(());
        };
        let clock = &self.shared.clock;
        let begin = clock.monotonic();
        let end = begin.after(deadline);
        self.command.send_replace(ServerCommand::Drain);
        // Half of the time is for requests under way: a client that does not take its answers must not keep the shards
        // from being closed.
        let drained = self.board.wait_for(WorkerStage::Drained, Some(begin.after(deadline / 2)));
        if let Err(Unreached::Deadline { workers }) = drained {
            tracing::warn!("{workers} workers still have requests under way; their shards are closed nevertheless");
        }
        let left = self.leaves();
        self.command.send_replace(ServerCommand::Close);
        let workers = self.board.wait_for_ends(end);
        if workers > 0 {
            // A thread that still runs may still write: nobody else may have the volume while this process lives.
            std::mem::forget(lock);
            background.abandon();
            let error = ServerError::StopDeadline { workers, waited: deadline };
            self.board.fail(error.to_string());
            return Err(error);
        }
        for thread in threads {
            // A worker's panic was caught and posted by the worker itself; what is left of the thread is its return.
            let _ = thread.join();
        }
        background.stop(&**clock, end);
        let withdrawn = self.shared.volume.withdraw_server_record(&lock, left);
        drop(lock);
        if let Some(reason) = self.board.failure() {
            return Err(ServerError::Failed(reason));
        }
        self.board.stop();
        withdrawn.map_err(doing("cannot withdraw the server's announcement"))
    }
}

impl Server {
    /// What clients have of it, once nothing is asked any more.
    fn leaves(&self) -> ShutdownState {
        let ServerShared { open_files, sessions_known_from, clock, .. } = &*self.shared;
        // A client of the server before may not have come yet.
        let all_known = clock.monotonic() >= *sessions_known_from && !self.leaves_as_found();
        match open_files.is_quiet() && all_known {
            true => ShutdownState::Nothing,
            false => ShutdownState::OpenFiles,
        }
    }

    /// Whether clients of the server before may have files open of which this one does not hear, for it has one client alone:
    /// they come back to the next server that serves others.
    fn leaves_as_found(&self) -> bool {
        self.shared.embedded && self.shared.found == ShutdownState::OpenFiles
    }
}

/// Keeps room back in the store, as long as the server runs.
async fn tend(reserve: Arc<Reserve>) {
    let mut failing = false;
    loop {
        let tended = Arc::clone(&reserve);
        let result = tokio::task::spawn_blocking(move || tended.tend()).await.unwrap_or_else(|end| Err(end.into()));
        if let Err(error) = &result
            && !failing
        {
            tracing::warn!("cannot keep room back for removals from a full store: {error}");
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
            "a server needs {min} MiB of memory at least, and is to have {asked} bytes: give it more with --memory"
        )));
    }
    if config.listen.is_none() && config.unix_directory.is_none() {
        return Err(ServerError::Config("nowhere to listen: give a TCP address or a directory for sockets".into()));
    }
    if let Some(address) = config.listen
        && address.port() != 0
        && usize::from(u16::MAX - address.port()) < config.workers - 1
    {
        return Err(ServerError::Config(format!("{address}: no {} ports from there on", config.workers)));
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
            memory_held_max: memory.messages / inboxes.len(),
        };
        let thread = std::thread::Builder::new().name(format!("varve-worker-{index}"));
        let thread = thread.spawn(move || worker::run(worker)).map_err(doing("cannot start a worker's thread"))?;
        threads.push(thread);
    }
    Ok(threads)
}

/// What a store is told by, in the names of sockets.
const STORE_DIGITS: usize = 16;

/// The names of the workers' sockets: `<store>.<process>.<worker>.sock`, so that neither a copy of the volume nor a
/// server that is just going away is in the way. `<store>` is of the volume's id and of the directory: servers of two copies may
/// have the same number in two PID namespaces.
struct Sockets {
    directory: PathBuf,
    prefix: String,
    mode: u32,
}

impl Sockets {
    fn prepare(directory: &Path, volume: &VolumeDir, settings: &VolumeSettings) -> Result<Sockets, ServerError> {
        let directory_mode = if settings.owner_uid == 0 { 0o755 } else { 0o700 };
        // Only mounts come, and they run as the owner or as root.
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

/// Removes the sockets of servers that died, of this volume or another. What cannot be removed is only litter.
fn remove_dead_sockets(directory: &Path) {
    let Ok(entries) = std::fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(parts) = name.to_str().map(|name| name.split('.').collect::<Vec<_>>()) else { continue };
        let [store, pid, _, "sock"] = parts[..] else { continue };
        let ours = store.len() == STORE_DIGITS && store.bytes().all(|digit| digit.is_ascii_hexdigit());
        let dead = pid.parse::<u32>().is_ok_and(|pid| !Path::new(&format!("/proc/{pid}")).exists());
        // A server in another namespace of processes is not seen, but answers.
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
