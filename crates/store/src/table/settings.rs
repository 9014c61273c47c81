//! SlateDB's settings: many tables in one process, most of them idle (rfcs/0001-shard-count.md has the figures).

use super::checked_store::CheckedStore;
use super::consistent_snapshot::ConsistentSnapshots;
use super::merges::Merges;
use crate::log::{LogConfig, LogReclaimer, MemtableBudget, UNSYNCED_BYTES_MAX};
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, GarbageCollectorDirectoryOptions, GarbageCollectorOptions, Settings,
    SizeTieredCompactionSchedulerOptions,
};
use slatedb::db_cache::DbCache;
use slatedb::db_cache::moka::{MokaCache, MokaCacheOptions};
use slatedb::object_store::ObjectStore;
use slatedb::{CompactorBuilder, GarbageCollectorBuilder};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;
use tokio::runtime::Handle;
use varve_env::posix_store::PosixStore;
use varve_env::volume_dir::VolumeDir;
use varve_types::ShardId;

/// Bytes of log that a shard may always have in its memtable, unless memory is short. Together with
/// [`MEMTABLES_BYTES_DEFAULT`] it allows 64 shards under load at once to have memtables of this size.
pub const MEMTABLE_BYTES_DEFAULT: u64 = 4 * 1024 * 1024;

/// A memtable becomes a table at this size even when others need little. Larger ones would make fewer tables to merge,
/// but they are slower to write to, and an open replays more.
pub const MEMTABLE_BYTES_MAX: u64 = 32 * 1024 * 1024;
/// Bytes in the memtables of a process above which memtables larger than their part become tables, unless the process
/// sets its own limit. The same amount of log is replayed after a crash.
pub const MEMTABLES_BYTES_DEFAULT: u64 = 256 * 1024 * 1024;
/// One memtable holds at most this fraction of the limit for all.
const MEMTABLES_PART_MAX: u64 = 4;
/// Unflushed memtables of a shard that may queue behind a slow store before writes wait.
const MEMTABLES_UNFLUSHED_MAX: u64 = 2;
/// How often an idle table checks whether another owner has taken it over. A table applies the changes of its own
/// compaction without this poll, and a table with writes learns of a new owner at its next fsync.
const MANIFEST_POLL: Duration = Duration::from_secs(30);
/// How often a running compactor checks for work and for its end. Three polls pass from the need for a merge to its
/// result, while one of the few permits for merges is taken ([`Merges`]).
const COMPACTION_POLL: Duration = Duration::from_millis(250);
/// How long files replaced by compaction are kept for cursors that still read them, and the minimum age of a collected
/// file. At full write speed, twice this time's writes are present as garbage.
pub(super) const COLLECTION_AGE_MIN: Duration = Duration::from_secs(300);
/// Unmerged tables at which the compactor starts: the minimum that its scheduler merges.
pub(super) const TABLES_MIN: usize = 4;
/// Unmerged tables at which no further one is made until some are merged: a read checks all of them.
pub(super) const TABLES_MAX: usize = 24;
/// Retries of an object store operation after the first try, over about 2.5 s; then the caller gets the error. Without
/// a limit a failing disk would hang every call instead of failing it.
pub(super) const STORE_RETRIES_MAX: u32 = 5;
/// Tables with fewer rows have no filter: reading them is as cheap.
const FILTER_ROWS_MIN: u32 = 100;
const COMPACTED_BYTES_MAX: usize = 64 * 1024 * 1024;
const COMPACTION_FETCH_BYTES: usize = 1024 * 1024;

/// Configuration of a table.
#[derive(Clone)]
pub struct TableConfig {
    pub shard: ShardId,
    pub volume: VolumeDir,
    /// The store in [`VolumeDir::shards`], one for all shards of the process.
    pub store: PosixStore,
    /// How long an appended batch may wait for its fsync; zero: every write is fsynced before it returns.
    pub sync_interval: Duration,
    /// Shared by all shards of the process: whether every write is fsynced before it returns, whatever the interval.
    pub sync_writes: SyncWrites,
    /// Shared by all shards of the process.
    pub cache: TableCache,
    /// A multi-threaded runtime with timers, for everything except reads, the writer and merges.
    pub background: Handle,
    /// Shared by all shards of the process.
    pub merges: Merges,
    /// Bytes of log that this shard may always have in its memtable; [`MEMTABLE_BYTES_DEFAULT`].
    pub memtable_bytes: u64,
    /// Asked after the last owner's epoch was read and before the next one is claimed. If the process owns the shard then,
    /// the claim fails if another one claims the epoch later. `None`: no other process can own it.
    pub may_claim: Option<MayClaim>,
}

/// A switch for writes that are fsynced before they return. Concurrent writers of a table share an fsync.
#[derive(Clone, Debug, Default)]
pub struct SyncWrites(Arc<AtomicBool>);

impl SyncWrites {
    pub fn new(synced: bool) -> SyncWrites {
        SyncWrites(Arc::new(AtomicBool::new(synced)))
    }

    /// From here on. Earlier writes may be unsynced until their table's next sync.
    pub fn turn_on(&self) {
        self.0.store(true, SeqCst);
    }

    pub fn is_on(&self) -> bool {
        self.0.load(SeqCst)
    }
}

/// Whether this process may still take a shard over.
type MayClaim = Arc<dyn Fn() -> bool + Send + Sync>;

/// The memory that all tables of a process share: a cache of decoded blocks, indexes and filters with a limit in bytes,
/// the budget of their memtables, and consistent snapshots of all of them.
#[derive(Clone)]
pub struct TableCache {
    shared: Arc<MokaCache>,
    memtables: Arc<MemtableBudget>,
    snapshots: Arc<ConsistentSnapshots>,
}

impl TableCache {
    pub fn new(bytes_max: u64) -> TableCache {
        TableCache::with_memtables(bytes_max, MEMTABLES_BYTES_DEFAULT)
    }

    /// `memtables_bytes_max`: bytes of log in the memtables of all tables together.
    pub fn with_memtables(bytes_max: u64, memtables_bytes_max: u64) -> TableCache {
        let options = MokaCacheOptions { max_capacity: bytes_max, ..MokaCacheOptions::default() };
        TableCache {
            shared: Arc::new(MokaCache::new_with_opts(options)),
            memtables: Arc::new(MemtableBudget::new(memtables_bytes_max)),
            snapshots: Arc::default(),
        }
    }

    /// Snapshots of all tables that were opened with this cache.
    pub fn snapshots(&self) -> Arc<ConsistentSnapshots> {
        self.snapshots.clone()
    }

    /// Bytes of log in the memtables of all tables together, and their limit.
    pub fn memtables(&self) -> (u64, u64) {
        (self.memtables.held(), self.memtables.bytes_max())
    }

    pub(super) fn shared(&self) -> Arc<dyn DbCache> {
        self.shared.clone()
    }
}

impl fmt::Debug for TableCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TableCache")
    }
}

impl TableConfig {
    /// The database's path in the store.
    pub(super) fn path(&self) -> String {
        VolumeDir::shard_name(self.shard)
    }

    pub(super) fn object_store(&self) -> Arc<dyn ObjectStore> {
        Arc::new(CheckedStore(self.store.clone()))
    }

    pub(super) fn log(&self) -> LogConfig {
        LogConfig {
            shard: self.shard,
            directory: self.volume.shard_log(self.shard),
            exclusive: self.store.exclusive(),
            sync_interval: self.sync_interval,
            memtable_bytes_share: self.memtable_bytes,
            memtable_bytes_max: self.memtable_bytes_max(),
            memtables: self.cache.memtables.clone(),
            reserve: self.store.reserve().cloned(),
            place: self.volume.place().cloned(),
            background: self.background.clone(),
        }
    }

    fn memtable_bytes_max(&self) -> u64 {
        self.memtable_bytes.max(MEMTABLE_BYTES_MAX.min(self.cache.memtables.bytes_max() / MEMTABLES_PART_MAX))
    }

    pub(super) fn settings(&self) -> Settings {
        let memtable_bytes = self.memtable_bytes_max() as usize;
        Settings {
            // The log has its own timer.
            flush_interval: None,
            manifest_poll_interval: MANIFEST_POLL,
            min_filter_keys: FILTER_ROWS_MIN,
            max_unflushed_bytes: memtable_bytes * MEMTABLES_UNFLUSHED_MAX as usize + UNSYNCED_BYTES_MAX as usize,
            // The log requests the flush at this many bytes of its own, which are somewhat more than the table's.
            l0_sst_size_bytes: memtable_bytes,
            l0_max_ssts: TABLES_MAX,
            l0_max_ssts_per_key: TABLES_MAX,
            l0_flush_parallelism: 1,
            compactor_options: None,
            garbage_collector_options: None,
            object_store_max_retries: Some(STORE_RETRIES_MAX),
            ..Settings::default()
        }
    }

    pub(super) fn compactor(&self) -> CompactorBuilder<String> {
        let scheduler = SizeTieredCompactionSchedulerOptions {
            min_compaction_sources: TABLES_MIN,
            // Reads check every run. Eight is the most runs that a tree has when there is nothing else to do.
            sorted_run_consolidation_threshold: 8,
            ..SizeTieredCompactionSchedulerOptions::default()
        };
        let options = CompactorOptions {
            poll_interval: COMPACTION_POLL,
            commit_compacted_interval: COMPACTION_POLL,
            max_concurrent_compactions: 1,
            scheduler_options: scheduler.into(),
            worker: Some(CompactionWorkerOptions {
                max_concurrent_compactions: 1,
                compactions_poll_interval: COMPACTION_POLL,
                max_sst_size: COMPACTED_BYTES_MAX,
                max_fetch_tasks: 2,
                bytes_to_fetch: COMPACTION_FETCH_BYTES,
                max_subcompactions: 1,
                min_filter_keys: FILTER_ROWS_MIN,
                ..CompactionWorkerOptions::default()
            }),
            checkpoint_lifetime: COLLECTION_AGE_MIN,
            object_store_max_retries: Some(STORE_RETRIES_MAX),
            ..CompactorOptions::default()
        };
        CompactorBuilder::new(self.path(), self.object_store())
            .with_options(options)
            .with_runtime(self.merges.runtime().clone())
    }

    /// The collector of log files.
    pub(super) fn log_collector(&self) -> GarbageCollectorBuilder<String> {
        let options =
            GarbageCollectorOptions { wal_options: Some(collection_of(Duration::ZERO)), ..collecting_nothing() };
        GarbageCollectorBuilder::new(self.path(), self.object_store())
            .with_options(options)
            .with_wal_gc(Arc::new(LogReclaimer::new(self.log())))
    }

    /// The collector of tables, manifests and the compactor's records.
    pub(super) fn file_collector(&self) -> GarbageCollectorBuilder<String> {
        let old = Some(collection_of(COLLECTION_AGE_MIN));
        let options = GarbageCollectorOptions {
            manifest_options: old,
            compacted_options: old,
            compactions_options: old,
            ..collecting_nothing()
        };
        GarbageCollectorBuilder::new(self.path(), self.object_store()).with_options(options)
    }
}

fn collection_of(min_age: Duration) -> GarbageCollectorDirectoryOptions {
    GarbageCollectorDirectoryOptions { interval: None, min_age, dry_run: false }
}

fn collecting_nothing() -> GarbageCollectorOptions {
    GarbageCollectorOptions {
        manifest_options: None,
        wal_options: None,
        wal_fence_options: None,
        compacted_options: None,
        compactions_options: None,
        detach_options: None,
        metric_level: None,
        boundary_files_enabled: true,
        object_store_max_retries: Some(STORE_RETRIES_MAX),
    }
}
