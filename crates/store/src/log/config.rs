//! Configuration and limits of a log.

use super::budget::MemtableBudget;
use std::sync::Arc;
use std::time::Duration;
use varve_env::disk::Exclusive;
use varve_env::reserve::Reserve;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::PinnedDirectories;
use varve_types::ShardId;

/// Configuration of a shard's log.
#[derive(Clone, Debug)]
pub struct LogConfig {
    pub shard: ShardId,
    /// The directory of the log's files; it must exist.
    pub directory: StorePath,
    pub exclusive: Exclusive,
    /// How long an appended batch may wait for its fsync; zero: until a caller requests it.
    pub sync_interval: Duration,
    /// Bytes of log after which the log requests a flush of the memtable into a table: the first value applies if all
    /// memtables together exceed their budget, the second always.
    pub memtable_bytes_share: u64,
    pub memtable_bytes_max: u64,
    pub memtables: Arc<MemtableBudget>,
    /// Freed when the store has no room for an append.
    pub reserve: Option<Arc<Reserve>>,
    /// The log begins no file while the volume is not present.
    pub place: Option<Arc<PinnedDirectories>>,
    /// Runs the sync task and its blocking fsyncs.
    pub background: tokio::runtime::Handle,
}

/// The log switches to a new file at this length, so that files whose content is in tables can be reclaimed.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Unsynced bytes after which a sync starts early: they are kept in memory.
pub const UNSYNCED_BYTES_EARLY: u64 = 4 * 1024 * 1024;
/// Unsynced bytes at which appends wait for a sync, so that a store whose fsyncs are slower than its writes does not
/// fill the memory.
pub const UNSYNCED_BYTES_MAX: u64 = 32 * 1024 * 1024;
