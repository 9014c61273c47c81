//! Several real shards on real tables, on one thread: verbs, cross-shard changes, splits, and recovery in a new epoch.

mod carry_out;
pub mod cluster;
mod directory_totals;
mod first_poll;
mod handover;
mod hanging;
mod leases;
mod names;
mod opens_elsewhere;
mod orphans;
mod peers;
mod power;
mod read_only;
mod removal;
mod removal_recovery;
mod simulation;
mod split;
mod transactions;
mod truncates;
mod watched;
