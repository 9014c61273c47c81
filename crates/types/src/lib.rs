//! The types that all crates share: ids, names, attributes, partitions, credentials, errno, volume settings.
//!
//! This crate has no I/O, no serialization and no clock: a type here only defines what a value means. `varve-proto`
//! defines its encoding on the wire, and `varve-meta`'s `tables` module defines its encoding in a table.

mod attributes;
mod cause;
mod credentials;
mod errno;
mod ids;
mod name;
mod partition;
mod shard_map;
mod volume;

pub use attributes::{Attributes, FileKind, Mode, SetAttributes, SetTime, Timestamp};
pub use cause::Cause;
pub use credentials::{Authority, CallerCapabilities, Capability, Credentials, IdRange, MappedIds};
pub use errno::Errno;
pub use ids::{Epoch, InodeId, LayoutGeneration, SessionId, ShardCount, ShardId, VolumeId};
pub use name::{Name, NameError, NameHash};
pub use partition::{HashRange, PartitionIndex, PartitionMap};
pub use shard_map::{InvalidShardMap, MapServer, ShardMap, ShardOwner, WorkerAddress, WorkerPlace};
pub use volume::{AckLevel, VolumeSettings, VolumeSettingsError};
