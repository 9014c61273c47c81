//! The nouns every room shares: ids, names, attributes, partitions, credentials, errno, volume settings.
//!
//! No I/O, no serialization, no clock: a type here says what a thing *is*. How it looks on the wire is `varve-proto`'s
//! business and how it looks in a table is `varve-meta`'s `tables` room's.

mod attributes;
mod credentials;
mod errno;
mod ids;
mod name;
mod partition;
mod volume;

pub use attributes::{Attributes, FileKind, Mode, SetAttributes, SetTime, Timestamp};
pub use credentials::Credentials;
pub use errno::Errno;
pub use ids::{Epoch, InodeId, LayoutGeneration, SessionId, ShardCount, ShardId, VolumeId};
pub use name::{Name, NameError, NameHash};
pub use partition::{HashRange, PartitionIndex, PartitionMap};
pub use volume::{VolumeSettings, VolumeSettingsError};
