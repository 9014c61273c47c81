//! Reads the tables of a volume that no server uses, directly from the store.

use super::{RowSource, Unreadable};
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, StreamExt};
use std::io;
use std::ops::Range;
use tokio::runtime::Handle;
use varve_env::disk::Exclusive;
use varve_env::posix_store::PosixStore;
use varve_env::volume_dir::VolumeDir;
use varve_store::{Cursor, MEMTABLE_BYTES_DEFAULT, Merges, TableCache, TableConfig, TableReader};
use varve_types::{ShardCount, ShardId, VolumeSettings};

/// Tables opened concurrently: opening mostly waits for the store.
const OPENING_MAX: usize = 8;
/// Rows are read once and in order, so a large cache is useless.
const CACHE_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum number of rows in a page: a page of rows with inline content of 64 KiB has some MiB.
const PAGE_ROWS: usize = 256;
const PAGE_BYTES: usize = 1024 * 1024;

/// A runtime for reading and repairing tables outside of a server.
pub fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).thread_name("varve-tables").enable_all().build()
}

/// Configuration for opening the tables of `volume` when no server has them; the caller sets the shard.
pub fn table_config(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    store: PosixStore,
    background: Handle,
) -> TableConfig {
    TableConfig {
        shard: ShardId(0),
        volume: volume.clone(),
        store,
        sync_interval: settings.sync_interval,
        cache: TableCache::new(CACHE_BYTES),
        merges: Merges::on(background.clone()),
        background,
        memtable_bytes: MEMTABLE_BYTES_DEFAULT,
        sync_writes: Default::default(),
        may_claim: None,
    }
}

/// A read-only store. Its primitive for exclusive creation is not probed, because that would write.
pub fn store_for_reading(volume: &VolumeDir) -> PosixStore {
    PosixStore::with_exclusive(volume.shards(), Exclusive::default())
}

/// All tables, open for reading.
pub struct OfflineSnapshot {
    shards: ShardCount,
    readers: Vec<TableReader>,
    reading: Option<(ShardId, Cursor)>,
}

impl OfflineSnapshot {
    /// Opens every table; writes nothing. The caller holds the volume's lock. Returns an error for each table that
    /// cannot be opened.
    pub async fn open(config: &TableConfig, shards: ShardCount) -> Result<OfflineSnapshot, Vec<Unreadable>> {
        let open = |shard| {
            let config = TableConfig { shard, ..config.clone() };
            async move { TableReader::open(&config).await.map_err(|error| Unreadable::new(shard, error)) }
        };
        let opened: Vec<_> = stream::iter(shards.all()).map(open).buffered(OPENING_MAX).collect().await;
        let (mut readers, mut unreadable) = (Vec::new(), Vec::new());
        for result in opened {
            match result {
                Ok(reader) => readers.push(reader),
                Err(error) => unreadable.push(error),
            }
        }
        let source = OfflineSnapshot { shards, readers, reading: None };
        if unreadable.is_empty() {
            return Ok(source);
        }
        // The tables were only read; a table that fails to close ends with the runtime.
        if let Err(error) = source.close().await {
            tracing::debug!(%error, "a read-only table was not closed cleanly");
        }
        Err(unreadable)
    }

    pub async fn close(self) -> Result<(), Unreadable> {
        let close = |(shard, reader): (usize, TableReader)| async move {
            reader.close().await.map_err(|error| Unreadable::new(ShardId(shard as u16), error))
        };
        let closing = stream::iter(self.readers.into_iter().enumerate()).map(close).buffer_unordered(OPENING_MAX);
        let closed: Vec<Result<(), Unreadable>> = closing.collect().await;
        closed.into_iter().collect()
    }
}

impl Unreadable {
    pub(crate) fn new(shard: ShardId, error: impl std::fmt::Display) -> Unreadable {
        Unreadable { shard, reason: error.to_string() }
    }
}

#[async_trait(?Send)]
impl RowSource for OfflineSnapshot {
    fn shards(&self) -> ShardCount {
        self.shards
    }

    async fn begin(&mut self, shard: ShardId, range: Range<Vec<u8>>) -> Result<(), Unreadable> {
        let reader = &self.readers[usize::from(shard.0)];
        let cursor = reader.scan(range.start.into(), range.end.into()).await;
        self.reading = Some((shard, cursor.map_err(|error| Unreadable::new(shard, error))?));
        Ok(())
    }

    async fn page(&mut self) -> Result<Vec<(Bytes, Bytes)>, Unreadable> {
        let Some((shard, cursor)) = &mut self.reading else { return Ok(Vec::new()) };
        let (mut rows, mut bytes) = (Vec::new(), 0);
        while rows.len() < PAGE_ROWS && bytes < PAGE_BYTES {
            let next = cursor.next().await.map_err(|error| Unreadable::new(*shard, error))?;
            let Some((key, row)) = next else { break };
            bytes += key.len() + row.len();
            rows.push((key, row));
        }
        Ok(rows)
    }
}
