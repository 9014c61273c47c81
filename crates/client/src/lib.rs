//! The file system as a library: what every door calls.
//!
//! One entry: [`FileSystem::connect`]. A call goes through routing (which shard?), a session's slot (which call id?) and a
//! `Transport` to the worker that owns the shard; answers update what is known of inodes and partition
//! maps. Methods are `async` over the transport and need no runtime: every future is ready as soon as it is polled, and
//! doors use [`now`]; but one that is polled as an errand ([`FileSystem::errand`]) and waits for a server.
//!
//! Invariants:
//! - Locks that are held over a call are `futures::lock::Mutex`; all others guard memory only and never span an `await`.
//! - Nothing waits without a deadline ([`ClientConfig::deadline`]).
//! - An errand does nothing at the thread that brings its answer but change memory; before all else it asks for a thread of
//!   its own.
//! - What is kept is bounded: by the kernel's own inodes and handles, or by a named limit.

mod attendance;
mod attributes;
mod background;
mod calls;
mod config;
mod counters;
mod describe;
mod directories;
mod doubts;
mod errand;
mod failure;
mod file_system;
mod files;
mod holds;
mod inodes;
mod known;
mod library;
mod locate;
mod namespace;
mod now;
mod routing;
mod seen;
mod session;
mod set_id;
pub mod transport;
mod volume;

pub use attendance::Shift;
pub use config::ClientConfig;
pub use counters::{Counters, LATENCY_BUCKETS, Operation, OperationCount};
pub use describe::{Description, PartitionDescription, Place};
pub use directories::{DirectoryEntry, DirectoryHandle};
pub use doubts::Doubt;
pub use failure::{Failure, Result};
pub use file_system::{FileSystem, Node, Timeouts};
pub use files::{Handle, Io, OpenFlags, Opened, Unsettled, Whence, WriteFlags};
pub use library::Library;
pub use now::now;
pub use varve_wire::ShardStatus;
pub use varve_wire::handshake::Purpose;
pub use varve_wire::{NewNode, OpenMode, RenameFlags, XattrMode};
pub use volume::VolumeStatistics;
