//! An open table of its owner.

use super::compaction::Compaction;
use super::consistent_snapshot::ConsistentSnapshots;
use super::cursor::{Cursor, SCAN_AHEAD_BYTES};
use super::error::TableError;
use super::pending::{Passing, Pending};
use super::settings::{SyncWrites, TABLES_MAX, TableConfig};
use super::{presence, upkeep};
use crate::log::{BatchRows, Log, LogInit};
use bytes::Bytes;
use slatedb::admin::Admin;
use slatedb::config::{CloseOptions, ReadOptions, ScanOptions};
use slatedb::wal::WalError;
use slatedb::{CloseReason, Db};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use varve_env::posix_store::PosixStore;
use varve_env::stop_point::{self, StopPoint};
use varve_types::{Epoch, ShardId};

/// How long a sync waits for the store: as long as a request waits for its batch. The fsync itself cannot be cancelled
/// and continues.
const SYNC_MAX: Duration = Duration::from_secs(30);

/// Time limit for the close of a table that could not be flushed: nothing of it is needed any more.
const CLOSE_LEFT_MAX: Duration = Duration::from_secs(1);

/// How often a closing table checks whether it waits for merges.
const FULL_LOOKED_AT_EVERY: Duration = Duration::from_millis(50);

/// The result of a close for the rows in memory.
enum Flushed {
    All,
    /// The rows stay in the log, which is synced.
    Left,
}

/// An open table. It has one writer. Reads see every write that has returned.
pub struct Table {
    shard: ShardId,
    pub(super) db: Db,
    pub(super) log: Arc<Log>,
    epoch: Epoch,
    sync_interval: Duration,
    sync_writes: SyncWrites,
    pub(super) pending: Arc<Pending>,
    _passing: Passing,
    upkeep: upkeep::Upkeep,
    snapshots: Arc<ConsistentSnapshots>,
    store: PosixStore,
    found: u64,
}

impl Table {
    /// Takes the shard over: claims the epoch after the stored one, ends the log of the last owner and replays the part
    /// of it that is not in the tables. A shard that was never opened begins empty; see [`presence`].
    pub async fn open(config: TableConfig) -> Result<Table, TableError> {
        let (shard, sync_interval) = (config.shard, config.sync_interval);
        let background = config.background.clone();
        // Built on the background runtime, so that SlateDB's tasks run there.
        let built = background.spawn(async move { build(&config).await.map(|built| (built, config)) }).await;
        let ((db, log, epoch), config) = match built {
            Ok(result) => result?,
            Err(join) => return Err(TableError::internal(shard, format!("opening it was interrupted: {join}"))),
        };
        let replayed = db.snapshot().map_err(|error| TableError::new(shard, "open", error, log.failure()))?.seq();
        let (pending, passing) = Pending::start(shard, db.clone(), log.clone(), replayed, &config.background);
        let upkeep = upkeep::Upkeep::start(&config, Arc::clone(&pending));
        let snapshots = config.cache.snapshots();
        snapshots.add(shard, epoch, Arc::clone(&pending));
        Ok(Table {
            shard,
            db,
            log,
            epoch,
            sync_interval,
            sync_writes: config.sync_writes,
            pending,
            _passing: passing,
            upkeep,
            snapshots,
            store: config.store,
            found: replayed,
        })
    }

    /// The current ownership of this shard. Each ownership has a higher epoch.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The current row. Fails once the log has ended: another owner may have changed the row.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        if let Some(failure) = self.log.failure() {
            return Err(TableError::from_log(self.shard, failure));
        }
        if let Some(row) = self.pending.find(key) {
            return Ok(row);
        }
        self.db.get_with_options(key, &ReadOptions::default()).await.map_err(|error| self.failed("read", error))
    }

    /// The current rows whose keys are in `from..end`: later writes do not show. Empty if the range is empty. Must be
    /// read within minutes: compaction keeps replaced files that long for cursors.
    pub async fn scan(&self, from: Bytes, end: Bytes) -> Result<Cursor, TableError> {
        if from >= end {
            return Ok(Cursor::empty(self.shard));
        }
        self.pending.settle().await?;
        let options = ScanOptions::default().with_read_ahead_bytes(SCAN_AHEAD_BYTES).with_cache_blocks(true);
        let rows = self.db.scan_with_options(from..end, &options).await.map_err(|error| self.failed("scan", error))?;
        Ok(Cursor::new(self.shard, rows))
    }

    /// Writes all of `batch` or none of it. On return, the batch is in the log and survives the death of the process;
    /// with a sync interval of zero, or with [`SyncWrites`], it is fsynced too. After an error the outcome is unknown: the table must be opened
    /// again, which resolves it.
    pub async fn write(&self, batch: &TableBatch) -> Result<(), TableError> {
        if batch.is_empty() {
            return Ok(());
        }
        {
            let _gate = self.snapshots.writing().await;
            self.pending.append(&batch.rows).await?;
        }
        if self.sync_interval.is_zero() || self.sync_writes.is_on() {
            self.sync().await?;
        }
        Ok(())
    }

    /// Returns when everything written before is fsynced. Concurrent callers share one fsync; if nothing is unsynced
    /// there is none. If the store hangs, this fails after [`SYNC_MAX`]. The outcome of the fsync is then unknown, and
    /// the next sync resolves it.
    pub async fn sync(&self) -> Result<(), TableError> {
        match tokio::time::timeout(SYNC_MAX, self.log.sync()).await {
            Ok(synced) => synced.map_err(|error| TableError::from_log(self.shard, error)),
            Err(_) => Err(TableError::hung(self.shard, SYNC_MAX)),
        }
    }

    /// Whether the log has ended, by a failure or by a close: it accepts no more writes.
    pub fn has_ended(&self) -> bool {
        self.log.failure().is_some()
    }

    /// Whether another owner has taken the shard over.
    pub fn is_fenced(&self) -> bool {
        matches!(self.log.failure(), Some(WalError::Fenced))
            || matches!(self.db.subscribe().borrow().close_reason, Some(CloseReason::Fenced))
    }

    /// Bytes of log that a machine failure would lose.
    pub fn unsynced_bytes(&self) -> u64 {
        self.log.unsynced_bytes()
    }

    /// The number of the last batch written. Numbers rise over all epochs.
    pub fn last_sequence(&self) -> u64 {
        self.pending.sequence()
    }

    /// The number of the last batch found at open.
    pub fn found_sequence(&self) -> u64 {
        self.found
    }

    /// Bytes of log that are not known to be on disk.
    pub fn unsaved_bytes(&self) -> u64 {
        self.log.unsaved_bytes()
    }

    /// Moves everything in memory into tables, so that the log can be reclaimed and the next open replays nothing.
    pub async fn flush(&self) -> Result<(), TableError> {
        upkeep::flush(&self.pending).await
    }

    /// [`Table::flush`]; fails if the store refuses the write of a table, which SlateDB would retry for ever.
    pub async fn flush_or_fail(&self) -> Result<(), TableError> {
        let refused = self.store.refuses_a_write();
        tokio::select! {
            flushed = self.flush() => flushed,
            () = refused => {
                let source = io::Error::other("its store refuses a new table");
                Err(TableError::Unavailable { shard: self.shard, action: "flush", source: Arc::new(source) })
            }
        }
    }

    /// Syncs the log and closes without a flush; the next open replays what is only in the log.
    pub async fn close_unflushed(&self) -> Result<(), TableError> {
        self.upkeep.stop().await;
        self.sync().await?;
        self.close_left().await;
        Ok(())
    }

    /// Closes the database, whose rows in memory are all in the synced log.
    async fn close_left(&self) {
        let closing = self.db.close_with_options(CloseOptions::default().with_flush_type(None));
        // A table write that the store refuses is retried until the runtime ends.
        if let Ok(Err(error)) = tokio::time::timeout(CLOSE_LEFT_MAX, closing).await {
            let shard = self.shard.0;
            tracing::debug!(shard, %error, "a table was not closed cleanly without its rows in memory");
        }
    }

    /// Flushes and closes; every later call fails with `Closed`. A table dropped without a close is recovered from its
    /// log at the next open.
    pub async fn close(&self) -> Result<(), TableError> {
        self.upkeep.stop().await;
        let flushed = match self.log.is_replayable() {
            true => self.flush_or_leave().await,
            false => Ok(Flushed::All),
        };
        if matches!(flushed, Ok(Flushed::Left)) {
            self.close_left().await;
            return Ok(());
        }
        // Flushed above, with the log synced first, so that nothing of the log remains to be replayed.
        let closed = self.db.close_with_options(CloseOptions::default().with_flush_type(None)).await;
        flushed?;
        closed.map_err(|error| self.failed("close", error))
    }

    /// Moves the rows in memory into tables. SlateDB would retry for ever on a store that refuses tables; then this
    /// leaves the rows to the next open, which reads them from the log. Fails if the log cannot be synced either.
    async fn flush_or_leave(&self) -> Result<Flushed, TableError> {
        let refused = self.store.refuses_a_write();
        // Merges have stopped, so a flush that has to wait for one waits for ever.
        let full = async {
            while self.db.manifest().l0().len() < TABLES_MAX {
                tokio::time::sleep(FULL_LOOKED_AT_EVERY).await;
            }
        };
        tokio::select! {
            biased;
            flushed = self.flush() => flushed.map(|()| Flushed::All),
            () = full => {
                self.sync().await?;
                tracing::info!(
                    "shard {}: it has {TABLES_MAX} unmerged tables; changes that are only in its log are synced and \
                     replayed at the next opening",
                    self.shard
                );
                Ok(Flushed::Left)
            }
            () = refused => {
                self.sync().await?;
                tracing::warn!(
                    "shard {}: its store refuses a new table; changes that are only in its log are synced and replayed \
                     at the next opening",
                    self.shard
                );
                Ok(Flushed::Left)
            }
        }
    }

    fn failed(&self, action: &'static str, error: slatedb::Error) -> TableError {
        TableError::new(self.shard, action, error, self.log.failure())
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.snapshots.remove(self.shard, self.epoch);
    }
}

async fn build(config: &TableConfig) -> Result<(Db, Arc<Log>, Epoch), TableError> {
    let failed = |error| TableError::new(config.shard, "open", error, None);
    let path = config.path();
    presence::ask(config).await?;
    let admin = Admin::builder(path.clone(), config.object_store()).build();
    let stored = admin.read_manifest(None).await.map_err(failed)?;
    match stored {
        None => presence::refuse_unless_new(config).await?,
        Some(_) => presence::refuse_without_log(config).await?,
    }
    let epoch = stored.as_ref().map_or(0, |manifest| manifest.writer_epoch());
    let tables = stored.map_or(0, |manifest| manifest.l0().len());
    if !config.may_claim.as_ref().is_none_or(|may_claim| may_claim()) {
        return Err(TableError::NotOwned { shard: config.shard });
    }
    stop_point::reach(StopPoint::ClaimAllowed);
    let (log_init, log) = LogInit::new(config.log());
    let building = Db::builder(path, config.object_store())
        .with_settings(config.settings())
        .with_expected_epoch(epoch)
        .with_wal_writer(Box::new(log_init))
        .with_db_cache(config.cache.shared(), u64::from(config.shard.0))
        .build();
    let db = Compaction::beside(config, tables, building).await.map_err(failed)?;
    let Some(log) = log.get().cloned() else {
        return Err(TableError::internal(config.shard, "it was opened without its log".to_owned()));
    };
    presence::note_opened(config).await;
    Ok((db, log, Epoch(epoch + 1)))
}

/// Changes that are made atomically. A later change of a key replaces an earlier one.
#[derive(Default)]
pub struct TableBatch {
    rows: BatchRows,
}

impl TableBatch {
    /// Sets the row of `key` to `row`.
    pub fn put(&mut self, key: impl AsRef<[u8]>, row: impl AsRef<[u8]>) {
        self.rows.put(|out| out.extend_from_slice(key.as_ref()), |out| out.extend_from_slice(row.as_ref()));
    }

    /// Deletes the row of `key`.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.rows.delete(|out| out.extend_from_slice(key.as_ref()));
    }

    /// Sets the row that `key` and `row` append, or deletes it.
    pub fn write(&mut self, key: impl FnOnce(&mut Vec<u8>), row: Option<impl FnOnce(&mut Vec<u8>)>) {
        match row {
            Some(row) => self.rows.put(key, row),
            None => self.rows.delete(key),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.count() == 0
    }

    /// Returns an empty batch that reuses this one's memory, if that is at most `bytes_max`.
    pub fn cleared(self, bytes_max: usize) -> TableBatch {
        TableBatch { rows: self.rows.cleared(bytes_max) }
    }
}
