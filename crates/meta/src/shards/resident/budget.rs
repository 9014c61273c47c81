//! The memory that the caches of one kind, rows or names, may use in all shards of a server together.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// Every shard may always keep its equal part. Any shard may use memory that the others leave unused, so that one busy
/// directory can use the whole cache. When all caches together exceed the budget, it notifies the workers
/// ([`CacheBudget::exceeded`]), which make every shard, including idle ones, give back its part of the excess. If they
/// do not keep up, a busy shard gives back as much as it takes.
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

    /// Bytes of all caches together.
    pub fn held(&self) -> usize {
        self.held.load(Relaxed)
    }

    /// Records that a cache that held `before` bytes now holds `after`.
    pub fn change(&self, before: usize, after: usize) {
        self.held.fetch_add(after.wrapping_sub(before), Relaxed);
    }

    /// The size in bytes to which a cache that holds `bytes` must shrink immediately.
    pub fn allows(&self, bytes: usize) -> usize {
        if self.is_exceeded() {
            self.exceeded.notify_waiters();
        }
        self.less(bytes, self.held.load(Relaxed).saturating_sub(self.bytes_max + self.slack()))
    }

    /// The size to which a cache must shrink when all caches shrink: each gives back its part of the excess.
    pub fn leaves(&self, bytes: usize) -> usize {
        let held = self.held.load(Relaxed).max(1);
        let excess = held.saturating_sub(self.bytes_max);
        self.less(bytes, (excess as u128 * bytes as u128).div_ceil(held as u128) as usize)
    }

    /// Subtracts `gives`, but keeps at least the shard's part.
    fn less(&self, bytes: usize, gives: usize) -> usize {
        bytes.saturating_sub(gives).max(self.share)
    }

    /// The excess allowed for a short time.
    fn slack(&self) -> usize {
        self.bytes_max / 16
    }

    pub fn is_exceeded(&self) -> bool {
        self.held.load(Relaxed) > self.bytes_max
    }

    /// Whether unused caches have not yet given back the memory that busy caches took.
    pub fn is_far_exceeded(&self) -> bool {
        self.held.load(Relaxed) > self.bytes_max + self.slack()
    }

    /// Ready when a cache finds that all caches together exceed the budget.
    pub async fn exceeded(&self) {
        self.exceeded.notified().await;
    }
}
