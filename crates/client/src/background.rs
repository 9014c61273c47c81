//! What is done without being asked: releases are told within a second, holds let go, small files written back within
//! the volume's sync interval, and large ones synced, by a thread of its own because a store takes its time for that. Errands
//! have a thread that waits for nobody.

use crate::{Failure, FileSystem, Result, now};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::Duration;
use varve_types::Errno;

/// How often the background looks: a file that was closed is known to be closed within a second.
const TICK: Duration = Duration::from_millis(500);

#[derive(Default)]
struct Stop {
    asked: Mutex<bool>,
    changed: Condvar,
}

#[derive(Default)]
pub(crate) struct Background {
    stop: Arc<Stop>,
}

impl Background {
    /// Begins to work for `file_system`, which it does not keep alive.
    pub fn start(file_system: &Arc<FileSystem>) -> Result<()> {
        Background::spawn("varve-background", file_system, |file_system| now(file_system.tick()))?;
        if file_system.embedded() {
            Background::spawn("varve-errands", file_system, FileSystem::tend_errands)?;
        }
        Background::spawn("varve-settle", file_system, |file_system| now(file_system.settle_closed()))
    }

    fn spawn(name: &str, file_system: &Arc<FileSystem>, tick: fn(&FileSystem)) -> Result<()> {
        let stop = Arc::clone(&file_system.background.stop);
        let weak = Arc::downgrade(file_system);
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || work(&stop, &weak, tick));
        let failed = |error| Failure::new(Errno::EAGAIN, format!("cannot start the client's thread: {error}"));
        spawned.map(drop).map_err(failed)
    }

    pub fn stop(&self) {
        *self.stop.asked.lock() = true;
        self.stop.changed.notify_all();
    }
}

fn work(stop: &Stop, file_system: &Weak<FileSystem>, tick: fn(&FileSystem)) {
    loop {
        {
            let mut asked = stop.asked.lock();
            if !*asked {
                stop.changed.wait_for(&mut asked, TICK);
            }
            if *asked {
                return;
            }
        }
        let Some(file_system) = file_system.upgrade() else { return };
        tick(&file_system);
    }
}

impl FileSystem {
    async fn tick(&self) {
        self.write_back_old().await;
        self.let_go_old();
        self.tell_releases().await;
    }

    /// Tells the servers which files are closed.
    pub(crate) async fn tell_releases(&self) {
        for shard in self.core.session.untold() {
            // The request carries the releases by itself.
            if let Err(failure) = self.core.ask_shard(shard, varve_wire::Call::Release).await {
                tracing::warn!(%shard, "the server could not be told of closed files: {failure}");
                return;
            }
        }
    }
}
