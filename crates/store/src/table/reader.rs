//! Read-only access to a shard's table without ownership: it claims nothing and writes nothing.

use super::cursor::{Cursor, SCAN_AHEAD_BYTES};
use super::settings::STORE_RETRIES_MAX;
use super::{TableConfig, TableError, presence};
use crate::log::ReadOnlyLog;
use bytes::Bytes;
use slatedb::admin::Admin;
use slatedb::config::{DbReaderOptions, ScanOptions};
use slatedb::wal::WalError;
use slatedb::{DbReader, DbReaderMode};
use std::sync::Arc;
use std::time::Duration;
use varve_types::{Epoch, ShardId};

/// A table without an owner does not change, so there is nothing to poll for; SlateDB requires a value.
const POLL: Duration = Duration::from_secs(24 * 60 * 60);

/// The tables, and the log's content beyond them. That content is kept in memory, at most as much as the shard's
/// memtable held.
pub struct TableReader {
    shard: ShardId,
    /// The epoch of the last owner.
    epoch: Epoch,
    /// `None`: the shard was never opened, and is empty.
    db: Option<DbReader>,
}

impl TableReader {
    /// Opens the reader. The shard must have no owner: the caller must hold the volume's lock.
    pub async fn open(config: &TableConfig) -> Result<TableReader, TableError> {
        let shard = config.shard;
        let config = config.clone();
        let opened = config.background.clone().spawn(async move { open(&config).await }).await;
        let (epoch, db) =
            opened.map_err(|join| TableError::internal(shard, format!("opening it was interrupted: {join}")))??;
        Ok(TableReader { shard, epoch, db })
    }

    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    pub async fn get(&self, key: &[u8]) -> Result<Option<Bytes>, TableError> {
        let Some(db) = &self.db else { return Ok(None) };
        db.get(key).await.map_err(|error| TableError::new(self.shard, "read", error, None))
    }

    pub fn shard(&self) -> ShardId {
        self.shard
    }

    /// The rows whose keys are in `from..end`.
    pub async fn scan(&self, from: Bytes, end: Bytes) -> Result<Cursor, TableError> {
        let Some(db) = self.db.as_ref().filter(|_| from < end) else { return Ok(Cursor::empty(self.shard)) };
        let options = ScanOptions::default().with_read_ahead_bytes(SCAN_AHEAD_BYTES);
        let rows = db.scan_with_options(from..end, &options).await;
        Ok(Cursor::new(self.shard, rows.map_err(|error| TableError::new(self.shard, "scan", error, None))?))
    }

    pub async fn close(&self) -> Result<(), TableError> {
        match &self.db {
            Some(db) => db.close().await.map_err(|error| TableError::new(self.shard, "close", error, None)),
            None => Ok(()),
        }
    }
}

async fn open(config: &TableConfig) -> Result<(Epoch, Option<DbReader>), TableError> {
    let failed = |error| TableError::new(config.shard, "open", error, None);
    presence::ask(config).await?;
    let admin = Admin::builder(config.path(), config.object_store()).build();
    let Some(manifest) = admin.read_manifest(None).await.map_err(failed)? else {
        presence::refuse_unless_new(config).await?;
        return Ok((Epoch(0), None));
    };
    presence::refuse_without_log(config).await?;
    let epoch = Epoch(manifest.writer_epoch());
    let (log, replay_after) = (config.log(), manifest.replay_after_wal_id());
    let flushed = manifest.next_wal_sst_id().saturating_sub(1);
    let log = tokio::task::spawn_blocking(move || ReadOnlyLog::open(&log, replay_after, flushed)).await;
    let log = log.map_err(|join| TableError::internal(config.shard, format!("cannot read its log: {join}")))?;
    let log = log.map_err(|error| TableError::from_log(config.shard, WalError::from(error)))?;
    let options = DbReaderOptions {
        manifest_poll_interval: POLL,
        object_store_max_retries: Some(STORE_RETRIES_MAX),
        ..DbReaderOptions::default()
    };
    let reader = DbReader::builder(config.path(), config.object_store())
        .with_reader_mode(DbReaderMode::FollowLatest)
        .with_wal_reader(Arc::new(log))
        .with_db_cache(config.cache.shared(), u64::from(config.shard.0))
        .with_options(options)
        .build()
        .await;
    Ok((epoch, Some(reader.map_err(failed)?)))
}
