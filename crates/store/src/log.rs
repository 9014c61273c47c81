//! A shard's log: append-only files of acknowledged batches that are not in its tables yet (`formats/log.md`).
//!
//! It implements SlateDB's `WalWriter`. These statements always hold:
//!
//! - A batch is in the file, by one `write`, before its append returns: it survives the death of the process. The
//!   tables get it a little later, together with others as one batch; only then may its group count as flushed.
//! - Batches between two flushes are a *group*. Its id is one above the last one's, across epochs. A group is never
//!   empty, and never grows once it is closed, because SlateDB records ids as points to replay from.
//! - All bytes from the synced position on are also in memory. A failed write or fsync may have dropped pages; the log
//!   then writes these bytes again, into a new file that continues at the synced position.
//! - The records of an epoch form one stream of bytes, and each file holds a part of it. A record contains its position
//!   in the stream, so that bytes in a wrong place are never taken for a record.
//! - Each group's header contains the synced position before the group, and the epoch's mark contains the current one.
//!   Damage at or above the highest of these is what a power failure leaves of unsynced bytes, and ends the log. Damage
//!   below it would lose acknowledged work, so the log is refused.
//! - The successor of an epoch seals it. It first publishes a fence and then reads the length of the log. The old owner
//!   looks for the fence after each fsync and before it reports the fsync, and before it collects garbage. No owner
//!   replays past a seal, or replays any unsealed epoch except the highest one.

mod blocks;
mod budget;
mod config;
mod directory;
mod failure;
pub mod format;
mod mark;
mod metrics;
mod newest;
mod open_log;
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
pub use config::{LogConfig, UNSYNCED_BYTES_MAX};
pub use directory::{first_file, is_begun};
pub use failure::LogError;
pub use format::BatchRows;
pub use newest::newest_of_each;
pub use open_log::Log;
pub use read_only::ReadOnlyLog;
pub use reclaim::LogReclaimer;
pub use recovery::LogInit;
pub use replay::LogReader;
pub use salvage::{DamagedPlace, read_intact};
pub use sync::is_owner;
pub use torn::{TornEnd, torn_end};

#[cfg(test)]
mod tests;
