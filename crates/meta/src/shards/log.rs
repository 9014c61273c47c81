//! A shard's log: append-only files of what was acknowledged and is not in its tables yet (`formats/log.md`).
//!
//! It stands behind SlateDB's `WalWriter`. What holds at every moment:
//!
//! - A batch is in the file, by one `write`, before its append returns: it survives the death of the process. The tables
//!   have it a little later, with others as one batch; only then may its group count as flushed.
//! - Batches between two flushes are a *group*. Its id is one above the last one's, across epochs; it is never empty,
//!   and never grows once it is closed, because SlateDB records ids as points to replay from.
//! - Everything from the synced position on is also in memory, so that after a failed write or fsync, which may have
//!   dropped pages, it can be written again, into a new file that takes up at the synced position.
//! - The records of an epoch form one stream of bytes, of which each file holds a part; a record's position in the
//!   stream is written in it, so that bytes in a wrong place are never taken for a record.
//! - Each group's header says how far the stream was synced before it, and the epoch's mark how far it is now. Damage at
//!   or above the highest of these is what a power cut leaves of unsynced bytes, and ends the log; damage below it would
//!   lose acknowledged work: refused.
//! - An epoch is sealed by its successor, who first publishes a fence, which the old owner looks for after each fsync
//!   and before it reports it, and then reads how long the log is. Nobody replays past a seal, nor any unsealed epoch
//!   except the highest one.

mod blocks;
mod budget;
mod directory;
mod failure;
pub mod format;
mod mark;
mod newest;
mod read_only;
mod reclaim;
mod recovery;
mod replay;
mod salvage;
mod scan;
mod state;
mod sync;
mod torn;
mod writer;

pub use budget::MemtableBudget;
pub use directory::{first_file, is_begun};
pub use failure::LogError;
pub use format::BatchRows;
pub use newest::newest_of_each;
pub use read_only::ReadOnlyLog;
pub use reclaim::LogReclaimer;
pub use recovery::LogInit;
pub use replay::LogReader;
pub use salvage::{DamagedPlace, read_intact};
pub use torn::{TornEnd, torn_end};
pub use writer::Log;

use format::BODY_BYTES_MAX;

use std::sync::Arc;
use std::time::Duration;
use varve_env::disk::Exclusive;
use varve_env::reserve::Reserve;
use varve_env::store_path::StorePath;
use varve_env::volume_dir::PinnedDirectories;
use varve_types::ShardId;

/// What a shard's log is opened with.
#[derive(Clone, Debug)]
pub struct LogConfig {
    pub shard: ShardId,
    /// The directory of the log's files; it must exist.
    pub directory: StorePath,
    pub exclusive: Exclusive,
    /// How long an appended batch may wait for its fsync; zero: until somebody asks for it.
    pub sync_interval: Duration,
    /// Bytes of log after which the memtable is asked to be flushed into a table if all memtables together hold too
    /// much, and those after which it is in any case.
    pub memtable_bytes_share: u64,
    pub memtable_bytes_max: u64,
    pub memtables: Arc<MemtableBudget>,
    /// Given up when the store has no room for an append.
    pub reserve: Option<Arc<Reserve>>,
    /// No file is begun while the volume is not there.
    pub place: Option<Arc<PinnedDirectories>>,
    /// Where syncs are driven and where they block.
    pub background: tokio::runtime::Handle,
}

/// A file is left for a new one once it is this long, so that what is in the tables can be reclaimed.
pub const FILE_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Unsynced bytes after which a sync is started ahead of its time: they are held in memory.
pub const UNSYNCED_BYTES_EARLY: u64 = 4 * 1024 * 1024;
/// Unsynced bytes at which appends wait for a sync: a store that fsyncs more slowly than it takes writes must not
/// fill the memory.
pub const UNSYNCED_BYTES_MAX: u64 = 32 * 1024 * 1024;

#[cfg(test)]
mod tests;
