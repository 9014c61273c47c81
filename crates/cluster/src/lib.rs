//! The servers of a volume: its members, the owner of each shard, and the detection of dead members.
//!
//! **Safety** does not depend on this crate: the log and the tables of a shard are fenced, so a shard never has two
//! histories, even if two servers act as its owner. This crate provides **liveness**: clients ask one server at a time
//! for a shard, and the shards of a dead server get another owner.
//!
//! - [`map`]: the shard map, a chain of versions. A change is version n + 1, made from version n.
//! - [`registry`]: the trait by which servers share the map and prove that they are alive. [`store_registry`] keeps both
//!   in the store beneath the volume, [`etcd`] in an etcd cluster. One test suite covers both.
//! - [`address`]: which of them a volume uses.
//! - [`claim`]: keeps all servers away while a command such as `varve fsck` works.
//! - [`lease`]: how long a server may answer for its shards, from its own renewals.
//! - [`detector`]: which other servers have stopped renewing.
//! - [`membership`]: runs all of this for one server.
//! - [`probe`]: proves that a registry gives each number to one server only.

pub mod address;
pub mod claim;
pub mod detector;
pub mod etcd;
pub mod lease;
pub mod map;
pub mod membership;
pub mod probe;
pub mod registry;
pub mod store_registry;
