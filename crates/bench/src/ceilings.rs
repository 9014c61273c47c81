//! Ceilings: upper bounds for a target, measured in the same turns as the target. They are the bare transport, a FUSE
//! file system that does nothing, and the store beneath.

mod null_fuse;
pub mod request_reply;
pub mod store;
#[cfg(test)]
mod tests;

pub use null_fuse::{MountedNull, NullFuseMount, NullMount};

use std::path::PathBuf;

/// The best of all [`request_reply`] variants. Their names begin with this and a slash.
pub const REQUEST_REPLY: &str = "request-reply";
/// A FUSE file system that answers from memory; has phases.
pub const NULL_FUSE: &str = "null-fuse";
/// A plain directory of the store that a measured volume lies in; has phases.
pub const STORE: &str = "store";
/// An empty directory of the same target, beside a prefilled one; has phases.
pub const EMPTY_DIRECTORY: &str = "empty-directory";
/// Appends of 4 KiB, each fsynced, to one file of the store.
pub const STORE_FSYNC: &str = "store-fsync";

/// The ceilings to measure.
pub struct CeilingsConfig {
    pub request_reply: bool,
    /// Threads of the request-reply server of the worker kind: as many as the volume's server has workers.
    pub workers: usize,
    /// Mounts a null FUSE file system. The program passes it in because this crate does not depend on FUSE.
    pub null_fuse: Option<Box<dyn NullMount>>,
    /// The directory for the store's own rates. `None`: the directory of the first library's store.
    pub store: Option<PathBuf>,
    /// Whether to measure the store's own rates.
    pub measure_store: bool,
}

impl Default for CeilingsConfig {
    fn default() -> CeilingsConfig {
        let workers = std::thread::available_parallelism().map_or(1, usize::from);
        CeilingsConfig { request_reply: true, workers, null_fuse: None, store: None, measure_store: true }
    }
}
