//! Several real shards on real tables, on one thread: verbs, several-shard changes, splits, and what a new epoch finds.

pub mod cluster;
mod directory_totals;
mod hanging;
mod names;
mod orphans;
mod power;
mod read_only;
mod removal;
mod split;
mod transactions;
mod truncates;
mod watched;
