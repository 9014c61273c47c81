//! Shards: each shard keeps its rows in one fenced table and runs verbs in three steps, fetch, decide, commit.
//!
//! Start reading at [`shard`], which runs a verb, and [`decide`], which applies its decision. [`routing`] says which
//! shard holds a row. [`fetch`] makes rows resident, and [`readahead`] those that a listing reads next. [`apply`]
//! changes rows, [`commit`] appends batches, and the [`committer`] schedules that. [`open_files`] has the files that
//! sessions have open, by the shard in their numbers, and [`opens_elsewhere`] asks that shard. [`transaction`]
//! coordinates changes over several shards, each of which acts as a [`participant`] under [`locks`]; [`removal`]
//! handles those that only remove a directory. [`peers`] calls other shards, and [`serve_peer`] serves their calls,
//! each once ([`received_ids`]). [`split`] moves half a partition. [`effects`] changes backing files, [`truncates`]
//! truncates them and [`garbage`] removes them. [`directory_totals`] sums the counts of a directory over all its
//! shards. [`open`] opens and closes a shard, and [`handover`] closes it for its next owner in this server. The rows
//! are in a table of `varve_store`.

mod apply;
mod batch;
mod buckets;
mod carry_out;
mod commit;
mod committer;
mod decide;
mod directory_totals;
mod effects;
mod fetch;
mod foreign;
mod garbage;
mod handover;
mod incoming;
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
mod readahead;
mod received_ids;
mod refusal;
mod removal;
mod replies;
mod resident;
mod routing;
mod rows;
mod serve_peer;
mod shard;
mod split;
mod transaction;
mod truncates;

pub use committer::CommitRound;
pub use effects::SESSIONS_RETURN;
pub use handover::{CallInProgress, CallOrigin};
pub use leases::{LEASE, LeaseKey, LeaseTable, LeaseTicket, Leases};
pub use listing::{Page, PageLimit};
#[cfg(test)]
pub use names::NAME_BYTES;
pub use open::{ShardError, ShardFigures};
pub use open_files::{
    FileUse, MeasureTime, MeasureVerdict, Measurement, MovingOpenFiles, OpenFiles, OpenedFor, OtherWriters, SizeUse,
};
pub use opens_elsewhere::Judging;
pub use peers::{PeerCall, PeerReply, PeerRequest, PeerResponse, Peers, SentRequest};
pub use refusal::{Cause, ShardRefusal};
pub use replies::Replied;
pub use resident::{BatchNumber, CacheBudget};
pub use shard::{Execution, Makes, Registrar, ReplyRecorder, RequestAddress, Shard, ShardConfig};

#[cfg(test)]
mod tests;
