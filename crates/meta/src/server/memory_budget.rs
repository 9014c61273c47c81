//! The memory budget for a worker's messages over all its connections: requests in progress and replies that clients
//! have not read yet. Each connection has limits of its own, but a thousand connections at their limits would hold
//! gigabytes. So above one limit for all, each connection has one request at a time.

use super::worker::Worker;
use std::cell::Cell;
use std::rc::Rc;

pub struct MemoryBudget {
    bytes: Cell<usize>,
    bytes_max: usize,
}

impl MemoryBudget {
    pub fn new(bytes_max: usize) -> MemoryBudget {
        MemoryBudget { bytes: Cell::new(0), bytes_max }
    }

    /// Whether a connection with a request in progress or a waiting reply must not take another request.
    pub fn is_much(&self) -> bool {
        self.bytes.get() >= self.bytes_max
    }
}

/// The bytes that one request or connection holds; released on drop.
pub struct MemoryCharge {
    worker: Rc<Worker>,
    bytes: usize,
}

impl MemoryCharge {
    pub fn of(worker: &Rc<Worker>, bytes: usize) -> MemoryCharge {
        let mut share = MemoryCharge { worker: Rc::clone(worker), bytes: 0 };
        share.set(bytes);
        share
    }

    pub fn set(&mut self, bytes: usize) {
        let memory_held = &self.worker.memory_held.bytes;
        memory_held.set(memory_held.get() - self.bytes + bytes);
        self.bytes = bytes;
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}
