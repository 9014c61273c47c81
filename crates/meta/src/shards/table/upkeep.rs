//! What a table does beside reading and writing: it makes tables of what has been in the log alone for long, has them
//! merged, and has garbage removed. One task a table, which sleeps while nothing changes.

use super::collection::Collection;
use super::compaction::Compaction;
use super::pending::Pending;
use super::{TableConfig, TableError};
use parking_lot::Mutex;
use slatedb::config::{FlushOptions, FlushType};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// How long rows may be in the log alone. A shard that is written to now and then makes a table this often, each of
/// which costs a few fsyncs; a shorter time would make more, a longer one would replay more at the next opening.
const LOG_AGE_MAX: Duration = Duration::from_secs(300);
/// A log file is left for a new one after a flush if it is at least this long, so that an idle shard holds no more.
const LOG_FILE_BYTES_IDLE: u64 = 256 * 1024;
/// A busy shard changes all the time; it is looked after this often.
const PAUSE: Duration = Duration::from_secs(1);
/// After something failed.
const RETRY: Duration = Duration::from_secs(30);

/// The task; it ends when this is dropped.
pub(super) struct Upkeep {
    running: Mutex<Option<(oneshot::Sender<()>, JoinHandle<()>)>>,
}

impl Upkeep {
    pub(super) fn start(config: &TableConfig, pending: Arc<Pending>) -> Upkeep {
        let (stop, stopped) = oneshot::channel();
        let chores = UpkeepTasks {
            shard: config.shard.0,
            compaction: Compaction::new(config.clone()),
            collection: Collection::new(config),
            pending,
        };
        let task = config.background.spawn(chores.run(stopped));
        Upkeep { running: Mutex::new(Some((stop, task))) }
    }

    /// Returns when the task has ended, and with it what it had started.
    pub(super) async fn stop(&self) {
        let running = self.running.lock().take();
        if let Some((stop, task)) = running {
            drop(stop);
            if let Err(error) = task.await {
                tracing::warn!(%error, "a table's upkeep did not end well");
            }
        }
    }
}

struct UpkeepTasks {
    shard: u16,
    pending: Arc<Pending>,
    compaction: Compaction,
    collection: Collection,
}

impl UpkeepTasks {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        tokio::select! {
            // Whether it was said or the table was dropped.
            _ = &mut stopped => {}
            () = self.look_after() => {}
        }
        self.compaction.stop().await;
    }

    /// Returns when the database has ended.
    async fn look_after(&mut self) {
        let mut changes = self.pending.db().subscribe();
        loop {
            // Seen now, so that what changes during the round is seen after it.
            if changes.borrow_and_update().close_reason.is_some() || self.pending.log().failure().is_some() {
                return;
            }
            let next = match self.round(Instant::now()).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(shard = self.shard, %error, "cannot look after a shard's tables");
                    Some(Instant::now() + RETRY)
                }
            };
            tokio::time::sleep(PAUSE).await;
            tokio::select! {
                changed = changes.changed() => if changed.is_err() { return },
                () = sleep_until(next) => {}
            }
        }
    }

    /// Returns when the next round is due, if nothing changes before.
    async fn round(&mut self, now: Instant) -> Result<Option<Instant>, TableError> {
        let flush_due = match self.pending.log().replayable_since() {
            Some(since) if now.duration_since(since) >= LOG_AGE_MAX => {
                flush(&self.pending).await?;
                None
            }
            since => since.map(|since| since + LOG_AGE_MAX),
        };
        let compaction_due = self.compaction.round(self.pending.db(), now).await;
        let compaction_due = compaction_due.map_err(|error| self.pending.failed("merge", error))?;
        let collection_due = self.collection.round(self.pending.db().manifest().id(), now).await;
        Ok([flush_due, compaction_due, collection_due].into_iter().flatten().min())
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Makes tables of all that is in memory. The log is synced first: the point to replay from is the last synced group
/// at the moment when the memtable is frozen.
pub(super) async fn flush(pending: &Pending) -> Result<(), TableError> {
    let (db, log) = (pending.db(), pending.log());
    pending.settle().await?;
    let covered = log.applied();
    log.sync().await.map_err(|error| TableError::from_log(pending.shard(), error))?;
    let flushed = db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await;
    flushed.map_err(|error| pending.failed("flush", error))?;
    log.note_flushed(covered);
    log.leave_file(LOG_FILE_BYTES_IDLE);
    Ok(())
}
