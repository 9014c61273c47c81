//! The file system as a library: what every frontend calls.
//!
//! One entry: [`FileSystem::connect`]. A call goes through routing (which shard?), a session's slot (which call id?) and a
//! `Transport` to the worker that owns the shard; answers update what is known of inodes and partition
//! maps. Methods are `async` over the transport and need no runtime: every future is ready as soon as it is polled, and
//! frontends use [`block_on`]; but one that is polled as an asynchronous operation ([`FileSystem::async_op`]) and waits
//! for a server.
//!
//! Invariants:
//! - Locks that are held over a call are `futures::lock::Mutex`; all others guard memory only and never span an `await`.
//! - Nothing waits without a deadline ([`ClientConfig::deadline`]).
//! - An asynchronous operation does nothing at the thread that brings its answer but change memory; before all else it
//!   asks for a thread of its own.
//! - What is kept is bounded: by the kernel's own inodes and handles, or by a named limit.

mod async_ops;
mod attribute_cache;
mod attributes;
mod background;
mod block_on;
mod calls;
mod config;
mod counters;
mod directories;
mod directory_cache;
mod failure;
mod file_system;
mod files;
mod inode_info;
mod inodes;
mod library;
mod locate;
mod lookup_pins;
mod namespace;
mod reactor;
mod routing;
mod session;
mod set_id;
pub mod transport;
mod unknown_outcomes;
mod volume;

pub use block_on::block_on;
pub use config::ClientConfig;
pub use counters::{Counters, LATENCY_BUCKETS, Operation, OperationCount};
pub use directories::{DirectoryEntry, DirectoryHandle};
pub use failure::{Failure, Result};
pub use file_system::{FileSystem, NodeInfo, Timeouts};
pub use files::{Handle, Io, OpenFlags, OpenedFile, StaleSizes, Whence, WriteFlags};
pub use inode_info::{ContentLocation, InodeInfo, PartitionInfo};
pub use library::Library;
pub use reactor::ReactorTurn;
pub use unknown_outcomes::UnknownOutcome;
pub use varve_proto::ShardStatus;
pub use varve_proto::handshake::Purpose;
pub use varve_proto::{NewNode, OpenMode, RenameFlags, XattrMode};
pub use volume::VolumeStatistics;
