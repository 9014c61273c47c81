//! The log of an owner. The table appends to it, the sync task fsyncs it, and SlateDB's writer task closes it.

use super::config::{LogConfig, UNSYNCED_BYTES_EARLY, UNSYNCED_BYTES_MAX};
use super::directory;
use super::failure::LogError;
use super::format::{BatchRows, FileHeader};
use super::mark::Mark;
use super::metrics::LogMetrics;
use super::state::LogState;
use bytes::Bytes;
use parking_lot::Mutex;
use slatedb::wal::{WalError, WalEvent, WalStatus, WalStatusListener};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use varve_env::disk::File;
use varve_env::stop_point::{self, StopPoint};
use varve_env::store_path::StorePath;

/// One epoch's log, open for appends.
pub struct Log {
    pub(super) config: LogConfig,
    pub(super) epoch: u64,
    pub(super) state: Mutex<LogState>,
    pub(super) mark: Mark,
    pub(super) progress: watch::Sender<SyncProgress>,
    /// Wakes the sync task: there are bytes to sync, a sync is urgent, or the log closes.
    pub(super) wake: Notify,
    pub(super) demand: Mutex<Demand>,
    pub(super) listeners: Mutex<Vec<WalStatusListener>>,
    pub(super) metrics: LogMetrics,
}

/// The synced position of the log, or the failure that ended it.
#[derive(Clone, Debug)]
pub(super) struct SyncProgress {
    pub synced: u64,
    pub failure: Option<WalError>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Demand {
    pub urgent: bool,
    pub close: bool,
}

impl Log {
    /// `replayed`: batches of earlier epochs are in memory and not in tables.
    pub(super) fn begin(
        config: LogConfig,
        header: FileHeader,
        path: StorePath,
        mark: Mark,
        replayed: bool,
    ) -> Result<Log, LogError> {
        let file = File::open_to_write(&path).map_err(LogError::io("open", &path))?;
        let state = LogState::begin(header, file, path, replayed.then(Instant::now));
        let (progress, _) = watch::channel(SyncProgress { synced: state.synced(), failure: None });
        Ok(Log {
            epoch: header.epoch,
            state: Mutex::new(state),
            mark,
            progress,
            wake: Notify::new(),
            demand: Mutex::default(),
            listeners: Mutex::default(),
            metrics: LogMetrics::new(),
            config,
        })
    }

    /// Returns when everything appended before is fsynced. Concurrent callers share one fsync.
    pub async fn sync(&self) -> Result<(), WalError> {
        let target = {
            let state = self.state.lock();
            if let Some(failure) = state.failure() {
                return Err(failure.clone());
            }
            if state.synced() >= state.appended() {
                return Ok(());
            }
            state.appended()
        };
        self.demand_sync();
        self.wait_until_synced(target).await
    }

    /// Position in the stream of the next batch.
    pub fn appended(&self) -> u64 {
        self.state.lock().appended()
    }

    /// Position up to which the tables have everything, at least in memory.
    pub fn applied(&self) -> u64 {
        self.state.lock().applied().0
    }

    /// Waits until a store whose fsyncs are slower than its writes has caught up.
    pub async fn wait_for_room(&self) -> Result<(), WalError> {
        loop {
            let full = {
                let state = self.state.lock();
                if let Some(failure) = state.failure() {
                    return Err(failure.clone());
                }
                if state.unsynced_bytes() < UNSYNCED_BYTES_MAX {
                    return Ok(());
                }
                state.synced() + 1
            };
            self.demand_sync();
            self.wait_until_synced(full).await?;
        }
    }

    /// Writes a batch, whose sequence number must be above that of the batch before, and returns its body. On return,
    /// the batch survives the death of the process.
    pub fn append(&self, rows: &BatchRows, sequence: u64) -> Result<Bytes, WalError> {
        stop_point::reach(StopPoint::AppendDue);
        let (body, first, unsynced) = {
            let mut state = self.state.lock();
            if let Some(failure) = state.failure() {
                return Err(failure.clone());
            }
            let (first, held, begun) = (state.unsynced_bytes() == 0, state.held(), Instant::now());
            let appended = state.append(&self.config, rows, sequence);
            self.config.memtables.change(held, state.held());
            match appended {
                Ok(body) => {
                    self.metrics.appended(body.len(), begun.elapsed());
                    (body, first, state.unsynced_bytes())
                }
                Err(error) => {
                    drop(state);
                    let failure = WalError::from(error);
                    self.fail(failure.clone());
                    return Err(failure);
                }
            }
        };
        stop_point::reach(StopPoint::Appended);
        if unsynced >= UNSYNCED_BYTES_EARLY {
            self.demand_sync();
        } else if first {
            self.wake.notify_one();
        }
        Ok(body)
    }

    /// Announces that everything appended so far is about to be written to the tables, as one batch with the last one's
    /// sequence number.
    pub fn hand_over(&self) {
        self.state.lock().hand_over();
    }

    /// The failure that ended the log, if it has ended.
    pub fn failure(&self) -> Option<WalError> {
        self.state.lock().failure().cloned()
    }

    /// Whether an open would find batches to replay.
    pub fn is_replayable(&self) -> bool {
        self.state.lock().replayable_since().is_some()
    }

    /// The time since when there have been batches to replay.
    pub fn replayable_since(&self) -> Option<Instant> {
        self.state.lock().replayable_since()
    }

    /// Records that everything below the position `covered` is in tables.
    pub fn note_flushed(&self, covered: u64) {
        self.counted(|state| state.note_flushed(covered, Instant::now()));
    }

    pub fn unsynced_bytes(&self) -> u64 {
        self.state.lock().unsynced_bytes()
    }

    /// Bytes that are not known to be on disk: the log failed over them, or they are still to be synced.
    pub fn unsaved_bytes(&self) -> u64 {
        self.state.lock().unsaved_bytes()
    }

    /// The last fsynced group. Each group was one sync.
    pub fn synced_groups(&self) -> u64 {
        match self.status() {
            Ok(status) | Err(status) => status.last_flushed_wal_id,
        }
    }

    /// Begins a new file if the current one holds at least `bytes_min` bytes and everything is synced, so that the old
    /// one can be reclaimed.
    pub fn leave_file(&self, bytes_min: u64) {
        self.state.lock().leave_file(&self.config, bytes_min);
    }

    /// Changes the state and updates the budget of the process's memtables.
    pub(super) fn counted<T>(&self, change: impl FnOnce(&mut LogState) -> T) -> T {
        let mut state = self.state.lock();
        let before = state.held();
        let result = change(&mut state);
        self.config.memtables.change(before, state.held());
        result
    }

    pub(super) fn fence_path(&self) -> StorePath {
        directory::fence_path(&self.config.directory, self.epoch)
    }

    /// Makes the sync task sync now.
    pub(super) fn demand_sync(&self) {
        self.demand.lock().urgent = true;
        self.wake.notify_one();
    }

    pub(super) async fn wait_until_synced(&self, target: u64) -> Result<(), WalError> {
        let mut progress = self.progress.subscribe();
        let reached = progress.wait_for(|progress| progress.synced >= target || progress.failure.is_some()).await;
        match reached {
            Ok(reached) if reached.synced >= target => Ok(()),
            Ok(reached) => Err(reached.failure.clone().unwrap_or(WalError::Closed)),
            Err(_) => Err(WalError::Closed),
        }
    }

    /// Ends the log for good and notifies SlateDB, which then closes the database.
    pub(super) fn fail(&self, failure: WalError) {
        let status = {
            let mut state = self.state.lock();
            state.fail(failure.clone());
            state.status()
        };
        // SlateDB first: a caller that learns of the failed sync finds the database closed.
        if let Err(status) = status {
            self.notify(WalEvent::WalClosed(status));
        }
        self.progress.send_modify(|progress| {
            progress.failure.get_or_insert(failure);
        });
    }

    pub(super) fn notify(&self, event: WalEvent) {
        let listeners = self.listeners.lock().clone();
        listeners.iter().for_each(|listener| listener(event.clone()));
    }

    pub(super) fn status(&self) -> Result<WalStatus, WalStatus> {
        self.state.lock().status()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.config.memtables.change(self.state.lock().held(), 0);
    }
}
