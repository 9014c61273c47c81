//! One shard's table: the rows of a shard in SlateDB, behind its [`log`](crate::log).
//!
//! The work of a table is split between runtimes. Writes to its log and all reads run on the worker that opened it. The
//! transfer of rows to SlateDB ([`pending`]), memtable flushes, manifest writes, garbage collection and the log's
//! fsyncs run on the `background` runtime, which must be a multi-threaded one. Merges have threads of their own
//! ([`Merges`]).

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
mod writer;

pub use consistent_snapshot::ConsistentSnapshots;
pub use cursor::Cursor;
pub use ends::damaged_ends;
pub use error::{TableError, errno_of_store};
pub use merges::Merges;
pub use reader::TableReader;
pub use salvage::Salvage;
pub use settings::{MEMTABLE_BYTES_DEFAULT, SyncWrites, TableCache, TableConfig};
pub use writer::{Table, TableBatch};

#[cfg(test)]
mod tests;
