//! Several real shards on real tables, on one thread: verbs, several-shard changes, splits, and what a new epoch finds.

mod at_rest;
pub mod cluster;
mod hanging;
mod names;
mod orphans;
mod power;
mod removal;
mod split;
mod transactions;
mod truncates;
mod watched;
mod whole;
