//! What a worker holds of messages, all its connections together: requests under way, and answers that nobody has taken yet.
//! Each connection has limits of its own, but a thousand of them at theirs would be gigabytes. So above one limit of all, a
//! connection has one request at a time.

use super::worker::Worker;
use std::cell::Cell;
use std::rc::Rc;

pub struct Held {
    bytes: Cell<usize>,
    bytes_max: usize,
}

impl Held {
    pub fn new(bytes_max: usize) -> Held {
        Held { bytes: Cell::new(0), bytes_max }
    }

    /// Whether a connection that has something under way or waiting takes no more.
    pub fn is_much(&self) -> bool {
        self.bytes.get() >= self.bytes_max
    }
}

/// What one request or connection holds; given back when it is dropped.
pub struct Share {
    worker: Rc<Worker>,
    bytes: usize,
}

impl Share {
    pub fn of(worker: &Rc<Worker>, bytes: usize) -> Share {
        let mut share = Share { worker: Rc::clone(worker), bytes: 0 };
        share.set(bytes);
        share
    }

    pub fn set(&mut self, bytes: usize) {
        let held = &self.worker.held.bytes;
        held.set(held.get() - self.bytes + bytes);
        self.bytes = bytes;
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.set(0);
    }
}
