//! One fenced table after another: what is stored, fetched, decided and committed.
//!
//! [`shard`] is where to begin: it runs a verb, which [`fast_path`] does without waiting where it can. [`routing`] says
//! which shard holds a row, [`fetch`] makes rows resident, [`readahead`] those that will be asked for next, [`apply`]
//! changes them, [`commit`] appends batches when the [`committer`] is told to, [`transaction`] carries changes over
//! several shards, in each of which [`participant`] does its part under [`locks`], and [`removal`] those that only take
//! a directory away; [`split`] moves half a partition, [`effects`] changes backing files, [`truncates`] cuts them,
//! [`garbage`] removes them, [`directory_totals`] sees a directory over all its shards, [`open`] begins and ends. The
//! bytes of batches and of the log lie in [`blocks`]. Only this room knows SlateDB, and of it only [`table`] and
//! [`log`].

mod apply;
mod batch;
mod buckets;
mod commit;
mod committer;
mod directory_totals;
mod effects;
mod fast_path;
mod fetch;
mod foreign;
mod garbage;
mod incoming;
mod inodes;
mod listing;
mod locks;
pub mod log;
mod names;
mod open;
mod open_files;
mod participant;
mod partitions;
mod peers;
mod readahead;
mod refusal;
mod removal;
mod replies;
mod resident;
mod routing;
mod rows;
mod serve_peer;
mod shard;
mod split;
pub mod table;
mod transaction;
mod truncates;

pub use effects::SESSIONS_RETURN;
pub use fast_path::{FastPathRun, Placed};
pub use listing::Page;
pub use log::{DamagedPlace, TornEnd, torn_end};
#[cfg(test)]
pub use names::NAME_BYTES;
pub use open::{ShardError, ShardFigures};
pub use open_files::{MeasuredBy, OpenFiles, OtherWriters};
pub use peers::{PeerCall, PeerFuture, PeerReply, Peers};
pub use refusal::{Cause, ShardRefusal, errno_of_store};
pub use removal::PREPARED_VALID;
pub use replies::Replied;
pub use resident::{BatchNumber, CacheBudget};
pub use shard::{Execution, Makes, ReplyRecorder, RequestAddress, Shard, ShardConfig};
pub use table::{Table, TableBatch, TableConfig, TableError, TableReader};

#[cfg(test)]
mod tests;
