//! Background work. One thread sends releases within a second, drops lookup pins, writes small files back within the
//! volume's sync interval, and keeps in touch with the server. Syncing large files has a thread of its own, because the
//! store is slow. Registering open files late has its own thread as well, because a shard that is still opening is
//! slow, and so has the search for newer shard maps, because a server may hang. A further thread drives asynchronous
//! operations and never blocks.

use crate::{Failure, FileSystem, Result, block_on};
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_types::Errno;

/// A client that has files open and has sent no request for this long checks whether the server is alive. A restarted
/// server waits for clients that had files open, and treats the files of clients that do not return as closed.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// How long a server may take to send its map. It does so from memory.
const MAP_MAX: Duration = Duration::from_secs(1);

/// Interval of the background threads: the server learns of a closed file within a second.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// The wait of a background thread between two rounds.
#[derive(Default)]
struct Rest {
    state: Mutex<Resting>,
    changed: Condvar,
}

#[derive(Default)]
struct Resting {
    called: bool,
    stopped: bool,
}

#[derive(Default)]
pub(crate) struct BackgroundThreads {
    rest: Arc<Rest>,
    /// Of the thread that drives asynchronous operations, which can be woken.
    async_ops_rest: Arc<Rest>,
    /// The number of requests at the last check, and the time since when it has been the same; with several servers,
    /// the time of the last check.
    asked: Mutex<Option<(u64, Instant)>>,
    /// When servers were last asked for a newer map, and how often.
    maps_asked: Mutex<(Option<Instant>, u64)>,
}

impl BackgroundThreads {
    /// Starts the threads for `file_system`; they do not keep it alive.
    pub fn start(file_system: &Arc<FileSystem>) -> Result<()> {
        let BackgroundThreads { rest, async_ops_rest, .. } = &file_system.background;
        fn ticking(work: impl Future<Output = ()>) -> Duration {
            block_on(work);
            TICK
        }
        let spawn = |name, rest, look| BackgroundThreads::spawn(name, file_system, rest, look);
        spawn("varve-background", rest, |file_system| ticking(file_system.tick()))?;
        spawn("varve-async-ops", async_ops_rest, FileSystem::drive_async_ops)?;
        spawn("varve-servers", rest, |file_system| ticking(file_system.watch_servers()))?;
        spawn("varve-register", rest, |file_system| ticking(file_system.register_late()))?;
        spawn("varve-settle", rest, |file_system| ticking(file_system.record_closed_sizes()))
    }

    /// `look` does one round and returns the time to wait after it.
    fn spawn(
        name: &str,
        file_system: &Arc<FileSystem>,
        rest: &Arc<Rest>,
        look: fn(&FileSystem) -> Duration,
    ) -> Result<()> {
        let (rest, weak) = (Arc::clone(rest), Arc::downgrade(file_system));
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || work(&rest, &weak, look));
        let failed = |error| Failure::new(Errno::EAGAIN, format!("cannot start the client's thread: {error}"));
        spawned.map(drop).map_err(failed)
    }

    pub fn is_stopped(&self) -> bool {
        self.rest.state.lock().stopped
    }

    pub fn stop(&self) {
        for rest in [&self.rest, &self.async_ops_rest] {
            rest.state.lock().stopped = true;
            rest.changed.notify_all();
        }
    }

    /// Wakes the thread that drives asynchronous operations.
    pub fn wake_async_op_driver(&self) {
        self.async_ops_rest.state.lock().called = true;
        self.async_ops_rest.changed.notify_all();
    }
}

impl Rest {
    /// Waits at most `length`. Returns `false` when the thread must stop.
    fn take(&self, length: Duration) -> bool {
        let mut state = self.state.lock();
        self.changed.wait_while_for(&mut state, |state| !state.called && !state.stopped, length);
        state.called = false;
        !state.stopped
    }
}

fn work(rest: &Rest, file_system: &Weak<FileSystem>, look: fn(&FileSystem) -> Duration) {
    let mut length = TICK;
    while rest.take(length) {
        let Some(file_system) = file_system.upgrade() else { return };
        length = look(&file_system);
    }
}

impl FileSystem {
    async fn tick(&self) {
        self.write_back_old().await;
        self.let_go_old();
        self.send_releases().await;
        self.keep_in_touch().await;
    }

    /// Detects a restarted server even if no call is made, for example while files are written directly in the store. Of
    /// several servers, one may be silent while others are asked, and a shard with open files may move.
    async fn keep_in_touch(&self) {
        let (requests, now) = (self.core.counters.requests.load(Relaxed), self.core.clock.monotonic());
        let several = self.core.map().servers().len() > 1;
        {
            let mut asked = self.background.asked.lock();
            let last = asked.filter(|(before, _)| several || *before == requests).unwrap_or((requests, now));
            let due = now.since(last.1) >= SILENT_MAX;
            *asked = (!due).then_some(last);
            if !due || self.embedded() {
                return;
            }
        }
        for shard in self.core.shards_of_open_files() {
            if let Err(failure) = self.core.ask_shard(shard, varve_proto::Call::Release).await {
                tracing::warn!("cannot check whether the server is alive: {failure}");
            }
        }
    }

    /// Asks the servers for a newer map, in turn: seldom, because a shard with open files may move unnoticed,
    /// and at each tick while a call waits, because its server may hang while others take its shards over.
    async fn watch_servers(&self) {
        let now = self.core.clock.monotonic();
        let waited = self.core.transport.any_waited();
        let turn = {
            let mut asked = self.background.maps_asked.lock();
            if !waited && asked.0.is_some_and(|last| now.since(last) < SILENT_MAX) {
                return;
            }
            *asked = (Some(now), asked.1 + 1);
            asked.1
        };
        self.core.refresh_map(turn, now.after(MAP_MAX)).await;
    }

    /// Notifies the servers of closed files.
    pub(crate) async fn send_releases(&self) {
        self.core.session.release_due(self.core.clock.monotonic());
        let mut silent = HashSet::new();
        for shard in self.core.session.untold() {
            let server = self.core.place_of(shard).server;
            if silent.contains(&server) {
                continue;
            }
            // Every request carries the pending releases.
            if let Err(failure) = self.core.ask_shard(shard, varve_proto::Call::Release).await {
                tracing::warn!(%shard, "cannot notify the server of closed files: {failure}");
                silent.insert(server);
            }
        }
    }
}
