//! One shard's table: the only thing the rest of this crate sees of SlateDB.
//!
//! A table lives in two places. Writes to its log and all reads run on the worker that opened it; passing rows on to
//! SlateDB ([`pending`]), flushing memtables, writing manifests, collection and the log's fsyncs run on the `background`
//! runtime, which must be a multi-threaded one; merges have threads of their own ([`Merges`]).

mod checked_store;
mod collection;
mod compaction;
mod consistent_snapshot;
mod cursor;
mod ends;
mod error;
mod merges;
mod pending;
mod presence;
mod reader;
mod salvage;
mod settings;
mod upkeep;

pub use consistent_snapshot::ConsistentSnapshots;
pub use cursor::Cursor;
pub use ends::damaged_ends;
pub use error::TableError;
pub use merges::Merges;
pub use reader::TableReader;
pub use salvage::Salvage;
pub use settings::{MEMTABLE_BYTES_DEFAULT, TableCache, TableConfig};

use super::log::{BatchRows, Log, LogInit};
use bytes::Bytes;
use compaction::{Compaction, TABLES_MAX};
use pending::{Passing, Pending};
use slatedb::Db;
use slatedb::admin::Admin;
use slatedb::config::{CloseOptions, ReadOptions, ScanOptions};
use std::sync::Arc;
use std::time::Duration;
use varve_env::posix_store::PosixStore;
use varve_types::{Epoch, ShardId};

/// Bytes that a scan reads ahead: a few blocks, for most scans end soon.
const SCAN_AHEAD_BYTES: usize = 64 * 1024;

/// How long a sync waits for the store: as long as a request waits for its batch. The fsync itself cannot be called back
/// and goes on.
const SYNC_MAX: Duration = Duration::from_secs(30);

/// How long a table that could not be flushed is given to close: nothing of it is needed any more.
const CLOSE_LEFT_MAX: Duration = Duration::from_secs(1);

/// How often a table that closes looks whether it has come to wait for merges.
const FULL_LOOKED_AT_EVERY: Duration = Duration::from_millis(50);

/// What a close did with the rows in memory.
enum Flushed {
    All,
    /// To the log, which has them synced.
    Left,
}

/// An open table. One writer; reads see every write that has returned.
pub struct Table {
    shard: ShardId,
    db: Db,
    log: Arc<Log>,
    epoch: Epoch,
    sync_interval: Duration,
    pending: Arc<Pending>,
    _passing: Passing,
    upkeep: upkeep::Upkeep,
    snapshots: Arc<ConsistentSnapshots>,
    store: PosixStore,
    found: u64,
}

impl Table {
    /// Takes the shard over: claims the epoch after the stored one, ends the log of the last owner and replays what of
    /// it is not in the tables. A shard that was never opened begins empty; see [`presence`].
    pub async fn open(config: TableConfig) -> Result<Table, TableError> {
        let (shard, sync_interval) = (config.shard, config.sync_interval);
        let background = config.background.clone();
        // Built in the background, so that SlateDB's tasks run there.
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
            pending,
            _passing: passing,
            upkeep,
            snapshots,
            store: config.store,
            found: replayed,
        })
    }

    /// Counts the ownerships of this shard; this is the current one.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The row as it is now. Refused once the log has ended: another owner may have changed it.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        if let Some(failure) = self.log.failure() {
            return Err(TableError::from_log(self.shard, failure));
        }
        if let Some(row) = self.pending.find(key) {
            return Ok(row);
        }
        self.db.get_with_options(key, &ReadOptions::default()).await.map_err(|error| self.failed("read", error))
    }

    /// The rows whose keys are in `from..end`, as they are now: later writes do not show. Nothing if the range is
    /// empty. To be read within minutes: compaction keeps replaced files that long for cursors.
    pub async fn scan(&self, from: Bytes, end: Bytes) -> Result<Cursor, TableError> {
        if from >= end {
            return Ok(Cursor::empty(self.shard));
        }
        self.pending.settle().await?;
        let options = ScanOptions::default().with_read_ahead_bytes(SCAN_AHEAD_BYTES).with_cache_blocks(true);
        let rows = self.db.scan_with_options(from..end, &options).await.map_err(|error| self.failed("scan", error))?;
        Ok(Cursor::new(self.shard, rows))
    }

    /// Writes all of `batch` or none of it. When it has returned the batch is in the log and survives the death of
    /// the process; with a sync interval of zero it is fsynced too. After an error nobody knows whether it was
    /// written: the table must be opened again, which answers that.
    pub async fn write(&self, batch: &TableBatch) -> Result<(), TableError> {
        if batch.is_empty() {
            return Ok(());
        }
        {
            let _gate = self.snapshots.writing().await;
            self.pending.append(&batch.rows).await?;
        }
        if self.sync_interval.is_zero() {
            self.sync().await?;
        }
        Ok(())
    }

    /// Returns when everything written before is fsynced. Callers at the same time share one fsync; if nothing is
    /// unsynced there is none. A store that hangs is an error after [`SYNC_MAX`]; whether the rows were fsynced is then
    /// not known, and the next sync answers it.
    pub async fn sync(&self) -> Result<(), TableError> {
        match tokio::time::timeout(SYNC_MAX, self.log.sync()).await {
            Ok(synced) => synced.map_err(|error| TableError::from_log(self.shard, error)),
            Err(_) => Err(TableError::hung(self.shard, SYNC_MAX)),
        }
    }

    /// Whether the log has ended, by a failure or because the table was closed: it takes nothing more.
    pub fn has_ended(&self) -> bool {
        self.log.failure().is_some()
    }

    /// Bytes of log that would be lost with the machine.
    pub fn unsynced_bytes(&self) -> u64 {
        self.log.unsynced_bytes()
    }

    /// Batches have rising numbers over all epochs: that of the last one written.
    pub fn last_sequence(&self) -> u64 {
        self.pending.sequence()
    }

    /// That of the last one which was there when the table was opened.
    pub fn found_sequence(&self) -> u64 {
        self.found
    }

    /// Bytes of log of which it is not known whether they are on disk.
    pub fn unsaved_bytes(&self) -> u64 {
        self.log.unsaved_bytes()
    }

    /// Moves everything that is in memory into tables, so that the log can be reclaimed and the next opening replays
    /// nothing.
    pub async fn flush(&self) -> Result<(), TableError> {
        upkeep::flush(&self.pending).await
    }

    /// Flushes and lets go; every later call answers `Closed`. A table that is dropped without it is opened again by
    /// way of its log.
    pub async fn close(&self) -> Result<(), TableError> {
        self.upkeep.stop().await;
        let flushed = match self.log.is_replayable() {
            true => self.flush_or_leave().await,
            false => Ok(Flushed::All),
        };
        // Flushed above, with the log synced first, so that nothing of the log remains to be replayed.
        let closing = self.db.close_with_options(CloseOptions::default().with_flush_type(None));
        if matches!(flushed, Ok(Flushed::Left)) {
            // What is at a table that the store refuses goes on trying, and ends with the runtime; all is in the log.
            if let Ok(Err(error)) = tokio::time::timeout(CLOSE_LEFT_MAX, closing).await {
                tracing::debug!(shard = self.shard.0, %error, "a table was not closed well on a store that refuses tables");
            }
            return Ok(());
        }
        let closed = closing.await;
        flushed?;
        closed.map_err(|error| self.failed("close", error))
    }

    /// Moves into tables what is in memory. Where the store refuses them, which SlateDB would try for ever, that is left to
    /// the next opening, which reads it from the log; an error if the log cannot be synced either.
    async fn flush_or_leave(&self) -> Result<Flushed, TableError> {
        let refused = self.store.refuses_a_write();
        // Nobody merges any more, and so one that has to wait for that waits for ever.
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
                    "shard {}: it has {TABLES_MAX} tables that are not merged; what its log alone has is there, synced, for the \
                     next opening",
                    self.shard
                );
                Ok(Flushed::Left)
            }
            () = refused => {
                self.sync().await?;
                tracing::warn!(
                    "shard {}: its store refuses a new table; what its log alone has is there, synced, for the next opening",
                    self.shard
                );
                Ok(Flushed::Left)
            }
        }
    }

    /// Of all tables that share its cache.
    #[cfg(test)]
    pub fn snapshots(&self) -> Arc<ConsistentSnapshots> {
        Arc::clone(&self.snapshots)
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

/// Changes that are made together or not at all. A later change of a key replaces an earlier one.
#[derive(Default)]
pub struct TableBatch {
    rows: BatchRows,
}

impl TableBatch {
    /// The row of `key` is `row` from now on.
    pub fn put(&mut self, key: impl AsRef<[u8]>, row: impl AsRef<[u8]>) {
        self.rows.put(|out| out.extend_from_slice(key.as_ref()), |out| out.extend_from_slice(row.as_ref()));
    }

    /// The row of `key` is deleted.
    pub fn delete(&mut self, key: impl AsRef<[u8]>) {
        self.rows.delete(|out| out.extend_from_slice(key.as_ref()));
    }

    /// The row that `key` and `row` append, or its deletion.
    pub fn write(&mut self, key: impl FnOnce(&mut Vec<u8>), row: Option<impl FnOnce(&mut Vec<u8>)>) {
        match row {
            Some(row) => self.rows.put(key, row),
            None => self.rows.delete(key),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.count() == 0
    }

    /// An empty batch in the memory of this one, if that is not more than `bytes_max`.
    pub fn cleared(self, bytes_max: usize) -> TableBatch {
        TableBatch { rows: self.rows.cleared(bytes_max) }
    }
}

#[cfg(test)]
mod tests;
