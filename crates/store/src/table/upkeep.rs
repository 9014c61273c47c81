//! Background maintenance of a table: flushes rows that have been only in the log for long, and starts merges and
//! garbage collection. One task per table, which sleeps while nothing changes.

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

/// How long rows may be only in the log. A shard with occasional writes makes a table this often, each of which costs a
/// few fsyncs. A shorter time would make more tables; a longer one would replay more at the next open.
const LOG_AGE_MAX: Duration = Duration::from_secs(300);
/// After a flush, the log switches to a new file if the current one is at least this long, so that an idle shard keeps
/// no more.
const LOG_FILE_BYTES_IDLE: u64 = 256 * 1024;
/// Pause between rounds of a busy shard, which changes all the time.
const PAUSE: Duration = Duration::from_secs(1);
/// Pause after a failure.
const RETRY: Duration = Duration::from_secs(30);

/// The maintenance task. It ends when this is dropped.
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

    /// Returns when the task, and everything that it started, has ended.
    pub(super) async fn stop(&self) {
        let running = self.running.lock().take();
        if let Some((stop, task)) = running {
            drop(stop);
            if let Err(error) = task.await {
                tracing::warn!(%error, "a table's maintenance failed");
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
            // Either stop was requested or the table was dropped.
            _ = &mut stopped => {}
            () = self.look_after() => {}
        }
        self.compaction.stop().await;
    }

    /// Returns when the database has ended.
    async fn look_after(&mut self) {
        let mut changes = self.pending.db().subscribe();
        loop {
            // Marked as seen now, so that a change during the round is noticed after it.
            if changes.borrow_and_update().close_reason.is_some() || self.pending.log().failure().is_some() {
                return;
            }
            let next = match self.round(Instant::now()).await {
                Ok(next) => next,
                Err(error) => {
                    tracing::warn!(shard = self.shard, %error, "cannot maintain a shard's tables");
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

    /// Runs a round. Returns when the next one is due if nothing changes before.
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
        let (manifest, log) = (self.pending.db().manifest().id(), self.pending.log());
        let collection_due = self.collection.round(log, manifest, now).await;
        Ok([flush_due, compaction_due, collection_due].into_iter().flatten().min())
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Makes tables of everything in memory. The log is synced first, because the point to replay from is the last group
/// synced when the memtable is frozen.
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
