//! The metadata service of Varve.
//!
//! Data flows one way: [`server`] receives, [`shards`] fetches what a verb must see, [`namespace`] decides, [`shards`]
//! commits, [`server`] replies. [`tables`] says what is stored.

pub mod dump;
pub mod format;
pub mod fsck;
pub mod namespace;
pub mod server;
pub mod shards;
pub mod snapshot;
pub mod tables;
