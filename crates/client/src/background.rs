//! Background work. One thread sends releases within a second, drops lookup pins, writes small files back within the
//! volume's sync interval, and keeps in touch with the server. Syncing large files has a thread of its own, because the
//! store is slow. Registering open files late has its own thread as well, because a shard that is still opening is
//! slow, and so has the search for newer shard maps, because a server may hang. Each has the event loop of its thread.

use crate::{Failure, FileSystem, Result, block_on};
use parking_lot::{Condvar, Mutex};
use std::collections::HashSet;
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
    stopped: Mutex<bool>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct BackgroundThreads {
    rest: Arc<Rest>,
    /// The number of requests at the last check, and the time since when it has been the same; with several servers,
    /// the time of the last check.
    asked: Mutex<Option<(u64, Instant)>>,
    /// When servers were last asked for a newer map, and how often.
    maps_asked: Mutex<(Option<Instant>, u64)>,
}

impl BackgroundThreads {
    /// Starts the threads for `file_system`; they do not keep it alive.
    pub fn start(file_system: &Arc<FileSystem>) -> Result<()> {
        let spawn = |name, work| BackgroundThreads::spawn(name, file_system, work);
        spawn("varve-background", |file_system| block_on(file_system.tick()))?;
        spawn("varve-servers", |file_system| block_on(file_system.watch_servers()))?;
        spawn("varve-register", |file_system| block_on(file_system.register_late()))?;
        spawn("varve-settle", |file_system| block_on(file_system.record_closed_sizes()))
    }

    /// Does `work` in each interval.
    fn spawn(name: &str, file_system: &Arc<FileSystem>, work: fn(&FileSystem)) -> Result<()> {
        let (rest, weak) = (Arc::clone(&file_system.background.rest), Arc::downgrade(file_system));
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || tick(&rest, &weak, work));
        let failed = |error| Failure::new(Errno::EAGAIN, format!("cannot start the client's thread: {error}"));
        spawned.map(drop).map_err(failed)
    }

    pub fn is_stopped(&self) -> bool {
        *self.rest.stopped.lock()
    }

    pub fn stop(&self) {
        *self.rest.stopped.lock() = true;
        self.rest.changed.notify_all();
    }
}

impl Rest {
    /// Waits for an interval. Returns `false` when the thread must stop.
    fn take(&self) -> bool {
        let mut stopped = self.stopped.lock();
        self.changed.wait_while_for(&mut stopped, |stopped| !*stopped, TICK);
        !*stopped
    }
}

fn tick(rest: &Rest, file_system: &Weak<FileSystem>, work: fn(&FileSystem)) {
    while rest.take() {
        let Some(file_system) = file_system.upgrade() else { return };
        work(&file_system);
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
