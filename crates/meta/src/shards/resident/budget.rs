//! The memory that the caches of one kind, of rows or of names, may take in all shards of a server together.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Every shard may always keep its equal share; what others leave unused is anyone's, so that one busy directory has
/// the whole cache.
#[derive(Debug)]
pub struct CacheBudget {
    held: AtomicUsize,
    bytes_max: usize,
    share: usize,
}

impl CacheBudget {
    pub fn new(bytes_max: usize, shards: usize) -> CacheBudget {
        CacheBudget { held: AtomicUsize::new(0), bytes_max, share: bytes_max / shards.max(1) }
    }

    /// A cache that held `before` bytes now holds `after`.
    pub fn change(&self, before: usize, after: usize) {
        self.held.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// To how many bytes a cache that holds `bytes` must shrink: all caches together then hold no more than they may,
    /// or this one no more than its share.
    pub fn allows(&self, bytes: usize) -> usize {
        let excess = self.held.load(Relaxed).saturating_sub(self.bytes_max);
        bytes.saturating_sub(excess).max(self.share)
    }
}
