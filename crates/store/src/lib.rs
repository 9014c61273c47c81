//! The storage of a shard: its rows in one fenced table, behind an append-only log of acknowledged batches.
//!
//! A [`Table`] is the interface for owners, a [`TableReader`] the one for readers without ownership, and [`Salvage`]
//! reads what is left of a damaged shard. [`log`] has the files of the log. This is the only crate that uses SlateDB.

pub mod log;
mod table;

pub use log::{DamagedPlace, TornEnd, torn_end};
pub use table::{
    ConsistentSnapshots, Cursor, MEMTABLE_BYTES_DEFAULT, Merges, Salvage, SyncWrites, Table, TableBatch, TableCache,
    TableConfig, TableError, TableReader, damaged_ends, errno_of_store,
};
