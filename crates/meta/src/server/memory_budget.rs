//! What a worker holds of messages, all its connections together: requests under way, and answers that nobody has taken yet.
//! Each connection has limits of its own, but a thousand of them at theirs would be gigabytes. So above one limit of all, a
//! connection has one request at a time.

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

    /// Whether a connection that has something under way or waiting takes no more.
    pub fn is_much(&self) -> bool {
        self.bytes.get() >= self.bytes_max
    }
}

/// What one request or connection holds; given back when it is dropped.
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
