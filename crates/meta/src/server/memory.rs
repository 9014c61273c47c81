//! How a server divides its memory limit.

use varve_store::MEMTABLE_BYTES_DEFAULT;

/// The parts of one memory limit. They count the memory that grows with the volume and its use. Five sixteenths are
/// left for uncounted memory: the overhead of a row in a memtable beyond its bytes in the log (several times as much:
/// versions, pointers, allocations), the program itself, buffers of merges and of input, and log that is not fsynced
/// yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryShares {
    /// Cached rows, all shards together.
    pub rows: usize,
    /// Blocks, indexes and filters of tables, all together. Smaller than `rows`, because repeatedly used data is best
    /// cached as rows.
    pub blocks: u64,
    /// Hashes of the names in directories in use, all shards together. Without them a create reads tables.
    pub names: usize,
    /// Bytes of log in memtables, all together.
    pub memtables: u64,
    /// Requests in progress and replies that wait for their clients, all connections together. Above it each connection
    /// has one request.
    pub messages: usize,
    /// Bytes of log that each shard may always hold in its memtable.
    pub memtable_of_each: u64,
}

impl MemoryShares {
    pub const BYTES_DEFAULT: u64 = 1536 * 1024 * 1024;
    /// With less, the server would spend its time on dropping and rereading data.
    pub const BYTES_MIN: u64 = 128 * 1024 * 1024;

    /// Divides `bytes` for a server with this number of shards.
    pub fn divide(bytes: u64, shards: usize) -> MemoryShares {
        let shards = shards.max(1) as u64;
        let memory = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let memtables = bytes / 8;
        MemoryShares {
            rows: memory(bytes / 4),
            blocks: bytes / 12,
            names: memory(bytes / 6),
            memtables,
            messages: memory(bytes / 16),
            memtable_of_each: (memtables / shards).min(MEMTABLE_BYTES_DEFAULT),
        }
    }
}
