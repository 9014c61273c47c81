//! The metadata service of Varve.
//!
//! Data flows in one direction. [`server`] receives a request. [`shards`] fetches the rows that a verb needs.
//! [`namespace`] decides. [`shards`] commits the changes, and [`server`] replies. [`tables`] defines the stored rows.

pub mod dump;
pub mod format;
pub mod fsck;
pub mod namespace;
pub mod server;
pub mod shards;
pub mod snapshot;
pub mod tables;
