//! The memory budget for messages of all connections of a server: requests in progress and replies that clients have not
//! read yet. Each connection has limits of its own, but a thousand connections at their limits would hold gigabytes. So
//! above one limit for all, each connection has one request at a time. The workers share the budget, because the one with
//! the busy shards needs most of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub struct MemoryBudget {
    bytes: AtomicUsize,
    bytes_max: usize,
}

impl MemoryBudget {
    pub fn new(bytes_max: usize) -> MemoryBudget {
        MemoryBudget { bytes: AtomicUsize::new(0), bytes_max }
    }

    /// Whether a connection with a request in progress or a waiting reply must not take another request.
    pub fn is_much(&self) -> bool {
        self.bytes.load(Relaxed) >= self.bytes_max
    }
}

/// The bytes that one request or connection holds; released on drop.
pub struct MemoryCharge {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl MemoryCharge {
    pub fn of(budget: &Arc<MemoryBudget>, bytes: usize) -> MemoryCharge {
        let mut share = MemoryCharge { budget: Arc::clone(budget), bytes: 0 };
        share.set(bytes);
        share
    }

    pub fn set(&mut self, bytes: usize) {
        let held = &self.budget.bytes;
        // Most connections hold nothing most of the time, and need not touch what all workers share.
        if bytes > self.bytes {
            held.fetch_add(bytes - self.bytes, Relaxed);
        } else if bytes < self.bytes {
            held.fetch_sub(self.bytes - bytes, Relaxed);
        }
        self.bytes = bytes;
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}
