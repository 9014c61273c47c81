//! The memory that the caches of one kind, of rows or of names, may take in all shards of a server together.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// Every shard may always keep its equal share; what others leave unused is anyone's, so that one busy directory has
/// the whole cache. Once all together hold too much, the budget tells the workers ([`CacheBudget::exceeded`]), who have every
/// shard give back its part of that, the idle ones too; where they do not keep up, a busy one gives back all that it takes.
#[derive(Debug)]
pub struct CacheBudget {
    held: AtomicUsize,
    bytes_max: usize,
    share: usize,
    exceeded: Notify,
}

impl CacheBudget {
    pub fn new(bytes_max: usize, shards: usize) -> CacheBudget {
        let share = bytes_max / shards.max(1);
        CacheBudget { held: AtomicUsize::new(0), bytes_max, share, exceeded: Notify::new() }
    }

    pub fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    /// A cache that held `before` bytes now holds `after`.
    pub fn change(&self, before: usize, after: usize) {
        self.held.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// To how many bytes a cache that holds `bytes` must shrink at once.
    pub fn allows(&self, bytes: usize) -> usize {
        if self.is_exceeded() {
            self.exceeded.notify_waiters();
        }
        self.less(bytes, self.held.load(Relaxed).saturating_sub(self.bytes_max + self.slack()))
    }

    /// To how many bytes it must shrink when all do: each by its part of what is too much.
    pub fn leaves(&self, bytes: usize) -> usize {
        let held = self.held.load(Relaxed).max(1);
        let excess = held.saturating_sub(self.bytes_max);
        self.less(bytes, (excess as u128 * bytes as u128).div_ceil(held as u128) as usize)
    }

    /// But no less than its share.
    fn less(&self, bytes: usize, gives: usize) -> usize {
        bytes.saturating_sub(gives).max(self.share)
    }

    /// What may be too much for a moment.
    fn slack(&self) -> usize {
        self.bytes_max / 16
    }

    pub fn is_exceeded(&self) -> bool {
        self.held.load(Relaxed) > self.bytes_max
    }

    /// Caches that are not in use have not given back what those that are have taken.
    pub fn is_far_exceeded(&self) -> bool {
        self.held.load(Relaxed) > self.bytes_max + self.slack()
    }

    /// Ready when a cache finds that all together hold too much.
    pub async fn exceeded(&self) {
        self.exceeded.notified().await;
    }
}
