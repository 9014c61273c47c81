//! What is done without being asked: releases are told within a second, holds let go, small files written back within
//! the volume's sync interval, and large ones synced, by a thread of its own because a store takes its time for that. So does a
//! shard that is being opened, and files that it has not taken yet have a thread, too. Asynchronous operations have one
//! that waits for nobody.

use crate::{Failure, FileSystem, Result, block_on};
use parking_lot::{Condvar, Mutex};
use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_types::Errno;

/// A client that has files open and has asked nothing for so long asks whether the server is there: one that was started anew
/// waits for those who had files open, and takes what nobody comes for as closed.
const SILENT_MAX: Duration = Duration::from_secs(5);

/// How often the background looks: a file that was closed is known to be closed within a second.
pub(crate) const TICK: Duration = Duration::from_millis(500);

/// Where a thread of the background rests between two looks.
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
    /// Of the thread that tends asynchronous operations, which can be called.
    async_ops_rest: Arc<Rest>,
    /// How many requests there had been when they were counted last, and since when.
    asked: Mutex<Option<(u64, Instant)>>,
}

impl BackgroundThreads {
    /// Begins to work for `file_system`, which it does not keep alive.
    pub fn start(file_system: &Arc<FileSystem>) -> Result<()> {
        let BackgroundThreads { rest, async_ops_rest, .. } = &file_system.background;
        fn ticking(work: impl Future<Output = ()>) -> Duration {
            block_on(work);
            TICK
        }
        let spawn = |name, rest, look| BackgroundThreads::spawn(name, file_system, rest, look);
        spawn("varve-background", rest, |file_system| ticking(file_system.tick()))?;
        spawn("varve-errands", async_ops_rest, FileSystem::drive_async_ops)?;
        spawn("varve-register", rest, |file_system| ticking(file_system.register_late()))?;
        spawn("varve-settle", rest, |file_system| ticking(file_system.record_closed_sizes()))
    }

    /// `look`: how long it rests then.
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

    /// Has asynchronous operations tended now.
    pub fn wake_async_op_driver(&self) {
        self.async_ops_rest.state.lock().called = true;
        self.async_ops_rest.changed.notify_all();
    }
}

impl Rest {
    /// Rests for so long at most; `false`: there is nothing to be done any more.
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

    /// Finds a server that was started anew although nobody calls, as where files are written past it.
    async fn keep_in_touch(&self) {
        let (requests, now) = (self.core.counters.requests.load(Relaxed), self.core.clock.monotonic());
        let silent_since = {
            let mut asked = self.background.asked.lock();
            let last = asked.filter(|(before, _)| *before == requests).unwrap_or((requests, now));
            *asked = Some(last);
            last.1
        };
        if now.since(silent_since) < SILENT_MAX {
            return;
        }
        let Some(shard) = self.core.shard_of_an_open_file().filter(|_| !self.embedded()) else { return };
        if let Err(failure) = self.core.ask_shard(shard, varve_proto::Call::Release).await {
            tracing::warn!("the server could not be asked whether it is there: {failure}");
        }
    }

    /// Tells the servers which files are closed.
    pub(crate) async fn send_releases(&self) {
        self.core.session.release_due(self.core.clock.monotonic());
        for shard in self.core.session.untold() {
            // The request carries the releases by itself.
            if let Err(failure) = self.core.ask_shard(shard, varve_proto::Call::Release).await {
                tracing::warn!(%shard, "the server could not be told of closed files: {failure}");
                return;
            }
        }
    }
}
