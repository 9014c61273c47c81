//! Shards: each shard keeps its rows in one fenced table and runs verbs in three steps, fetch, decide, commit.
//!
//! Start reading at [`shard`], which has the state, and [`run`], which runs a verb; [`decide`] applies its decision.
//! [`view`] says which rows a verb sees, and [`routing`] which shard holds a row. [`fetch`] makes rows resident, and
//! [`readahead`] those that a listing reads next. [`apply`] changes rows, [`commit`] appends batches, and the
//! [`committer`] schedules that. [`open_files`] has the files that sessions have open, by the shard in their numbers,
//! and [`ask_home`] asks that shard. [`transaction`] coordinates changes over several shards, each of which acts as a
//! [`participant`]; [`carry_out`] finishes and recovers them, and [`removal`] handles those that only remove a
//! directory. [`peers`] calls other shards, and [`serve_peer`] serves their calls, each once ([`received_ids`]).
//! [`split`] moves half a partition, and [`import`] receives it. [`effects`] changes backing files, [`truncates`]
//! truncates them and [`garbage_collection`] removes them. [`directory_totals`] sums the counts of a directory over all
//! its shards. [`open`] opens and closes a shard, and [`handover`] closes it for its next owner in this server. The
//! rows are in a table of `varve_store`.
//!
//! Imports point one way. Each part of the state is a struct in a file that does not know [`Shard`]: [`batch`],
//! [`calls_in_progress`], [`garbage`], [`incoming`], [`inode_block`], [`leases`], [`locks`], [`names`], [`open_files`],
//! [`opens_elsewhere`], [`partitions`], [`read_order`], [`replies`], [`resident`], [`rows`], [`transaction_state`] and
//! [`truncate_queue`]. [`shard`] puts them together and imports nothing else. The other files add methods to [`Shard`],
//! for work that needs several parts of it.

mod apply;
mod ask_home;
mod batch;
mod buckets;
mod calls_in_progress;
mod carry_out;
mod commit;
mod committer;
mod decide;
mod decision;
mod directory_totals;
mod effects;
mod execution;
mod fetch;
mod foreign;
mod garbage;
mod garbage_collection;
mod handover;
mod import;
mod incoming;
mod inode_block;
mod inodes;
mod leases;
mod listing;
mod locks;
mod names;
mod open;
mod open_files;
mod opens_elsewhere;
mod participant;
mod partitions;
mod peers;
mod read_order;
mod readahead;
mod received_ids;
mod refusal;
mod removal;
mod replies;
mod resident;
mod routing;
mod rows;
mod run;
mod serve_peer;
mod shard;
mod split;
mod transaction;
mod transaction_parts;
mod transaction_state;
mod truncate_queue;
mod truncates;
mod view;

pub use ask_home::Judging;
pub use calls_in_progress::{CallInProgress, CallOrigin};
pub use committer::CommitRound;
pub use effects::SESSIONS_RETURN;
pub use execution::{Execution, Makes, Registrar, ReplyRecorder, RequestAddress};
pub use leases::{LEASE, LeaseKey, LeaseTable, LeaseTicket, Leases};
pub use listing::{Page, PageLimit};
#[cfg(test)]
pub use names::NAME_BYTES;
pub use open::{ShardError, ShardFigures};
pub use open_files::{
    FileUse, MeasureTime, MeasureVerdict, Measurement, MovingOpenFiles, OpenFiles, OpenedFor, OtherWriters, SizeUse,
};
pub use peers::{FileCall, LOST, PeerCall, PeerReply, PeerRequest, PeerResponse, Peers, SentRequest};
pub use refusal::{Cause, ShardRefusal};
pub use replies::Replied;
pub use resident::{BatchNumber, CacheBudget};
pub use shard::{Shard, ShardConfig};

#[cfg(test)]
mod tests;
