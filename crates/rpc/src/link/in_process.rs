//! A connection within the process: two queues of messages, which pass as they are. Its sides may be on loops of
//! different threads.

use super::{Link, LinkError};
use crate::wire::Message;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::task::{Context, Poll};

/// Messages of one direction that the other side has not taken, and bytes of their bodies. Beyond either the sender
/// waits, as it does for a socket's buffer.
const QUEUE_MAX: usize = 256;
const QUEUE_BYTES_MAX: usize = 256 * 1024;

#[derive(Default)]
struct Queue {
    messages: VecDeque<Message>,
    bytes: usize,
}

impl Queue {
    fn has_room(&self) -> bool {
        self.messages.len() < QUEUE_MAX && self.bytes < QUEUE_BYTES_MAX
    }
}

#[derive(Default)]
struct Direction {
    queue: Mutex<Queue>,
    closed: AtomicBool,
    receiver: AtomicWaker,
    sender: AtomicWaker,
}

/// One side of a connection within the process.
pub struct InProcessLink {
    out: Arc<Direction>,
    input: Arc<Direction>,
    /// Messages that did not fit.
    unsent: VecDeque<Message>,
}

impl InProcessLink {
    /// The two sides of a connection, each for any thread.
    pub fn pair() -> (InProcessLink, InProcessLink) {
        let (one, other) = (Arc::<Direction>::default(), Arc::<Direction>::default());
        let near = InProcessLink { out: Arc::clone(&one), input: Arc::clone(&other), unsent: VecDeque::new() };
        (near, InProcessLink { out: other, input: one, unsent: VecDeque::new() })
    }
}

impl Link for InProcessLink {
    fn has_room(&self) -> bool {
        self.unsent.is_empty()
    }

    fn push(&mut self, message: Message) {
        self.unsent.push_back(message);
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        if self.unsent.is_empty() {
            return Ok(false);
        }
        if self.out.closed.load(Acquire) {
            return Err(LinkError::Closed);
        }
        let mut queue = self.out.queue.lock();
        let mut sent = false;
        while queue.has_room()
            && let Some(message) = self.unsent.pop_front()
        {
            queue.bytes += message.body_len();
            queue.messages.push_back(message);
            sent = true;
        }
        drop(queue);
        if sent {
            self.out.receiver.wake();
        }
        Ok(sent)
    }

    fn is_blocked(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn unsent_bytes(&self) -> usize {
        self.unsent.iter().map(Message::body_len).sum()
    }

    fn receive(&mut self, most: usize, messages: &mut Vec<Message>) -> Result<bool, LinkError> {
        // Read before the queue: what was sent before the end is in the queue by then.
        let closed = self.input.closed.load(Acquire);
        let mut queue = self.input.queue.lock();
        let mut count = 0;
        while count < most
            && let Some(message) = queue.messages.pop_front()
        {
            queue.bytes -= message.body_len();
            messages.push(message);
            count += 1;
        }
        drop(queue);
        match count {
            0 if closed => Err(LinkError::Closed),
            0 => Ok(false),
            _ => {
                self.input.sender.wake();
                Ok(true)
            }
        }
    }

    fn is_midway(&self) -> bool {
        false
    }

    fn poll(&mut self, receives: bool, context: &mut Context<'_>) -> Poll<()> {
        let mut ready = false;
        if receives {
            self.input.receiver.register(context.waker());
            ready |= self.input.closed.load(Acquire) || !self.input.queue.lock().messages.is_empty();
        }
        if self.is_blocked() {
            self.out.sender.register(context.waker());
            ready |= self.out.closed.load(Acquire) || self.out.queue.lock().has_room();
        }
        if ready { Poll::Ready(()) } else { Poll::Pending }
    }

    /// The wake-up of the other side tells of what has come.
    fn look(&mut self) -> bool {
        false
    }

    fn sleep(&mut self) -> bool {
        true
    }

    fn has_memory(&self) -> bool {
        false
    }
}

impl Drop for InProcessLink {
    fn drop(&mut self) {
        for direction in [&self.out, &self.input] {
            direction.closed.store(true, Release);
            direction.receiver.wake();
            direction.sender.wake();
        }
    }
}
