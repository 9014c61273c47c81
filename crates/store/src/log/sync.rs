//! The task that fsyncs a log when its oldest unsynced batch is old enough or a caller waits for it. It runs on the
//! background runtime and blocks on threads there, never on the worker. While nothing is unsynced it sleeps without a
//! timer.

use super::config::LogConfig;
use super::directory;
use super::failure::LogError;
use super::open_log::Log;
use super::state::{SyncWork, in_place};
use slatedb::wal::{WalError, WalEvent};
use std::io;
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use varve_env::disk;
use varve_env::stop_point::{self, StopPoint};
use varve_env::store_path::StorePath;

/// Limit on parallel fsyncs in one process. Each blocks a thread. A disk gains little from more, and journaling file
/// systems commit waiting ones together.
const FSYNCS_MAX: usize = 8;

fn fsyncs() -> &'static Semaphore {
    static FSYNCS: OnceLock<Semaphore> = OnceLock::new();
    FSYNCS.get_or_init(|| Semaphore::new(FSYNCS_MAX))
}

/// Runs until the log is closed or fails.
pub(super) async fn drive(log: Arc<Log>) {
    while wait_for_work(&log).await {
        let worker = log.clone();
        let permit = fsyncs().acquire().await;
        let done = log.config.background.spawn_blocking(move || sync_now(&worker)).await;
        drop(permit);
        match done {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                let unreachable = matches!(error, LogError::Unreachable { .. });
                log.fail(error.into());
                if unreachable {
                    save_rest(&log).await;
                }
                return;
            }
            Err(join) => return log.fail(WalError::InternalError(Arc::new(join))),
        }
    }
}

/// Returns when a sync is due; `false` when the log is closed.
async fn wait_for_work(log: &Log) -> bool {
    loop {
        {
            let mut demand = log.demand.lock();
            if demand.close {
                return false;
            }
            if std::mem::take(&mut demand.urgent) {
                return true;
            }
        }
        let interval = log.config.sync_interval;
        let due = log.state.lock().unsynced_since().filter(|_| !interval.is_zero()).map(|since| since + interval);
        match due {
            Some(due) if due <= Instant::now() => return true,
            Some(due) => {
                tokio::select! {
                    () = tokio::time::sleep_until(due) => {}
                    () = log.wake.notified() => {}
                }
            }
            None => log.wake.notified().await,
        }
    }
}

/// Fsyncs the appended bytes and reports it. A failed fsync is not repeated: the kernel may have dropped the pages and
/// would report success. The bytes are written again, into a new file.
fn sync_now(log: &Log) -> Result<(), LogError> {
    loop {
        let Some(work) = log.state.lock().begin_sync() else { return Ok(()) };
        let begun = Instant::now();
        match fsync(log, &work) {
            Ok(()) => {
                log.metrics.synced(begun.elapsed());
                stop_point::reach(StopPoint::Fsynced);
                log.state.lock().note_saved(work.target);
                refuse_if_fenced(log)?;
                // After the check for a fence: a successor finds everything that the mark records.
                log.mark.note(work.target);
                report(log, &work);
                return Ok(());
            }
            Err(cause) => log.state.lock().recover(&log.config, cause)?,
        }
    }
}

fn fsync(log: &Log, work: &SyncWork) -> Result<(), LogError> {
    for file in &work.files {
        file.file.sync_data().map_err(LogError::io("fsync", &file.path))?;
    }
    if work.files.iter().any(|file| !file.name_synced) {
        disk::sync_directory(&log.config.directory).map_err(LogError::io("fsync", &log.config.directory))?;
    }
    Ok(())
}

/// Fails if a successor has published a fence. Bytes that a successor may not have counted when it ended the epoch must
/// not be reported as synced. The successor publishes the fence before it reads the log, so if there is no fence after
/// an fsync, it has seen these bytes.
///
/// A successor that needs the epoch no more removes its mark and then the fence, while this owner may have been
/// stopped. So if the mark is missing too, a later epoch proves a successor.
fn refuse_if_fenced(log: &Log) -> Result<(), LogError> {
    if is_there(&log.fence_path())? {
        return Err(LogError::Fenced);
    }
    missing_directory(&log.config)?;
    if is_there(log.mark.path())? {
        return Ok(());
    }
    let newest = directory::list(&log.config.directory)?.into_keys().next_back();
    if newest.is_some_and(|newest| newest > log.epoch) { Err(LogError::Fenced) } else { Ok(()) }
}

fn is_there(path: &StorePath) -> Result<bool, LogError> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(LogError::io("look for", path)(error)),
    }
}

/// Whether this process still owns the shard, by the store: an owner that was stopped learns of its successor only
/// there. If there is one, the log ends. A store that gives no answer counts as a no.
pub async fn is_owner(log: &Arc<Log>) -> bool {
    let worker = log.clone();
    let answer = log.config.background.spawn_blocking(move || refuse_if_fenced(&worker)).await;
    match answer {
        Ok(Ok(())) => true,
        Ok(Err(fenced @ LogError::Fenced)) => {
            log.fail(fenced.into());
            false
        }
        Ok(Err(_)) | Err(_) => false,
    }
}

/// In a directory that is gone, a missing fence proves nothing.
fn missing_directory(config: &LogConfig) -> Result<(), LogError> {
    match in_place(config).and_then(|()| config.directory.metadata()) {
        Ok(_) => Ok(()),
        Err(error) => Err(LogError::Unreachable { directory: config.directory.clone().into(), source: error }),
    }
}

/// Fsyncs the bytes appended before the store became unreachable. They are in the file wherever it is, and are found
/// there when the store is back.
async fn save_rest(log: &Arc<Log>) {
    let worker = log.clone();
    let save = move || {
        let Some(work) = worker.state.lock().begin_sync() else { return };
        match fsync(&worker, &work) {
            Ok(()) => worker.state.lock().note_saved(work.target),
            Err(error) => tracing::warn!("the log of an unreachable store may have lost its end: {error}"),
        }
    };
    let _permit = fsyncs().acquire().await;
    if let Err(error) = log.config.background.spawn_blocking(save).await {
        tracing::warn!("the log of an unreachable store was not fsynced: {error}");
    }
}

fn report(log: &Log, work: &SyncWork) {
    let (flushed, status, synced) = {
        let mut state = log.state.lock();
        let flushed = state.end_sync(work, Instant::now());
        (flushed, state.status(), state.synced())
    };
    // SlateDB first: a caller that waits for the sync may expect that the tables know of it.
    if let (true, Ok(status)) = (flushed, status) {
        log.notify(WalEvent::WalFlushed(status));
    }
    log.progress.send_modify(|progress| progress.synced = progress.synced.max(synced));
}
