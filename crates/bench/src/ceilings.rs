//! What a target cannot be faster than, measured in the same turns: the bare transport, a FUSE file system that does
//! nothing, and the store beneath.

mod null_fuse;
pub mod request_reply;
pub mod store;
#[cfg(test)]
mod tests;

pub use null_fuse::{MountedNull, NullFuseMount, NullMount};

use std::path::PathBuf;

/// The best of all [`request_reply`] variants, whose names begin with this and a slash.
pub const REQUEST_REPLY: &str = "request-reply";
/// A FUSE file system that answers from memory; has phases.
pub const NULL_FUSE: &str = "null-fuse";
/// A plain directory of the store that a measured volume lies in; has phases.
pub const STORE: &str = "store";
/// An empty directory of the same target, beside one that was filled before; has phases.
pub const EMPTY_DIRECTORY: &str = "empty-directory";
/// Appends of 4 KiB, each fsynced, to one file of the store.
pub const STORE_FSYNC: &str = "store-fsync";

/// Which ceilings are measured.
pub struct CeilingsConfig {
    pub request_reply: bool,
    /// Threads that the request-reply server of the worker kind has: as many as the volume's server has workers.
    pub workers: usize,
    /// How to mount a null FUSE file system; the program brings it, for this crate knows no FUSE.
    pub null_fuse: Option<Box<dyn NullMount>>,
    /// The directory for the store's own rates; without one, that of the first library's store.
    pub store: Option<PathBuf>,
    /// Whether the store's own rates are measured at all.
    pub measure_store: bool,
}

impl Default for CeilingsConfig {
    fn default() -> CeilingsConfig {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        CeilingsConfig { request_reply: true, workers, null_fuse: None, store: None, measure_store: true }
    }
}
