//! The metadata service of Varve.
//!
//! Data flows in one direction. [`server`] receives a request. [`shards`] fetches the rows that a verb needs. The verb
//! in `varve_posix` decides. [`shards`] commits the changes, and [`server`] replies. `varve_schema` defines the stored
//! rows, and `varve_admin` works on all of them.

pub mod server;
pub mod shards;
