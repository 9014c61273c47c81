//! Many calls on one connection: the state machines of its two halves. Sans-I/O: messages and times go in, messages and
//! wake-ups come out.

pub mod client;
pub mod server;

use crate::link::LinkError;
use crate::wire::{HEADER_BYTES, Message};
use std::collections::VecDeque;
use std::task::Waker;
use varve_env::clock::Instant;

/// One half of a connection.
pub trait Half {
    /// The next message to be sent; it counts as sent from here on.
    fn next_outgoing(&mut self) -> Option<Message>;

    /// Messages that may be received now.
    fn capacity(&self) -> usize;

    /// # Errors
    /// If the peer may not send this message.
    fn received(&mut self, message: Message, now: Instant) -> Result<(), LinkError>;

    /// Whether the peer owes a message.
    fn awaits(&self) -> bool;

    /// Asks the peer whether it is there, if it can tell.
    fn probe(&mut self);

    /// Whether this side is done with the connection.
    fn is_done(&self) -> bool;

    /// Whether messages may leave now. It is asked last, right before bytes are handed to the kernel or put into shared
    /// memory; `false` ends the connection.
    fn may_send(&self) -> bool {
        true
    }

    /// `link_bytes` wait at the link, besides the messages that wait here.
    fn unsent(&self, _link_bytes: usize) {}

    /// The connection has ended.
    fn ended(&mut self, error: &LinkError);

    /// The wakers that what happened calls for.
    fn take_woken(&mut self) -> Vec<Waker>;
}

/// Messages that wait to be sent.
#[derive(Default)]
struct Outgoing {
    messages: VecDeque<Message>,
    bytes: usize,
}

impl Outgoing {
    fn push(&mut self, message: Message) {
        self.bytes += HEADER_BYTES + message.body_len();
        self.messages.push_back(message);
    }

    fn pop(&mut self) -> Option<Message> {
        let message = self.messages.pop_front()?;
        self.bytes -= HEADER_BYTES + message.body_len();
        Some(message)
    }

    fn clear(&mut self) {
        *self = Outgoing::default();
    }
}
