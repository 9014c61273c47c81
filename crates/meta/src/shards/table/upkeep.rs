//! What a table does when nobody writes: its memtable becomes a table after a while, so that its log can be reclaimed.

use super::TableConfig;
use crate::shards::log::Log;
use slatedb::Db;
use slatedb::config::{FlushOptions, FlushType};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::AbortHandle;

/// How long rows may be in the log alone. A shard that is written to now and then makes a table this often, each of
/// which costs a few fsyncs; a shorter time would make more, a longer one would replay more at the next opening.
const LOG_AGE_MAX: Duration = Duration::from_secs(300);
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// A log file is left for a new one after a flush if it is at least this long, so that an idle shard holds no more.
const LOG_FILE_BYTES_IDLE: u64 = 256 * 1024;

/// The task that flushes; ends with this.
pub(super) struct Upkeep {
    task: AbortHandle,
}

impl Upkeep {
    pub(super) fn start(config: &TableConfig, db: Db, log: Arc<Log>) -> Upkeep {
        let shard = config.shard;
        let task = config.background.spawn(async move {
            let mut ticks = tokio::time::interval(CHECK_INTERVAL);
            ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                if log.failure().is_some() {
                    return;
                }
                if log.replayable_age().is_some_and(|age| age >= LOG_AGE_MAX)
                    && let Err(error) = flush(&db, &log).await
                {
                    // The next tick tries again; a log that failed ends this task.
                    tracing::warn!(shard = shard.0, %error, "cannot flush an idle shard's memtable");
                }
            }
        });
        Upkeep { task: task.abort_handle() }
    }

    pub(super) fn stop(&self) {
        self.task.abort();
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Makes tables of all that is in memory. The log is synced first: the point to replay from is the last synced group
/// at the moment when the memtable is frozen.
pub(super) async fn flush(db: &Db, log: &Log) -> Result<(), slatedb::Error> {
    let covered = log.appended();
    log.sync().await.map_err(|error| slatedb::Error::unavailable(error.to_string()).with_source(Box::new(error)))?;
    db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await?;
    log.note_flushed(covered);
    log.leave_file(LOG_FILE_BYTES_IDLE);
    Ok(())
}
