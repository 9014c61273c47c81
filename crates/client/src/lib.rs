//! The client library, which every frontend calls.
//!
//! The entry is [`FileSystem::connect`]. A call passes through routing (which shard?), a session's slot (which call
//! id?) and a `Transport` to the worker that owns the shard. Replies update the caches of inodes and partition maps.
//! Methods are `async` and need no runtime: a frontend drives them with [`block_on`] on any thread, whose event loop
//! (`varve_rpc::EventLoop`) has the thread's connections to the servers.
//!
//! Invariants:
//! - Locks that are held across a call are `futures::lock::Mutex`; all others guard memory only and never span an
//!   `await`.
//! - Nothing waits without a deadline ([`ClientConfig::deadline`]).
//! - All state is bounded: by the kernel's own inodes and handles, or by a named limit.

mod attribute_cache;
mod attributes;
mod background;
mod by_number;
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
mod metrics_text;
mod namespace;
mod registrations;
mod routing;
mod session;
mod set_id;
mod thread_loop;
pub mod transport;
mod unknown_outcomes;
mod volume;

pub use by_number::Searcher;
pub use config::{ClientConfig, CookieWidth};
pub use counters::{Counters, LATENCY_BUCKETS, Operation, OperationCount, OperationOutcome, RetryCause};
pub use directories::{DirectoryEntry, DirectoryHandle, KernelListing};
pub use failure::{Failure, Result};
pub use file_system::{FileSystem, NodeInfo, Timeouts};
pub use files::{Handle, Io, OpenFlags, OpenedFile, StaleSizes, Whence, WriteFlags};
pub use inode_info::{ContentLocation, InodeInfo, PartitionInfo};
pub use library::Library;
pub use set_id::FILE_CAPABILITIES;
pub use thread_loop::block_on;
pub use unknown_outcomes::UnknownOutcome;
pub use varve_proto::ShardStatus;
pub use varve_proto::handshake::Purpose;
pub use varve_proto::{NewNode, OpenMode, RenameFlags, XattrMode};
pub use volume::VolumeStatistics;
