//! The server's half: which calls were received and are not answered.

use super::{Half, Outgoing};
use crate::limits::Limits;
use crate::link::LinkError;
use crate::wire::{BODY_BYTES_MAX, Message, NotBegun, WireError};
use bytes::Bytes;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;

/// Whether the caller still waits. A call that has begun may go on; its reply goes nowhere if the connection is gone.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Rc<TokenState>);

#[derive(Debug, Default)]
struct TokenState {
    cancelled: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
}

impl CancelToken {
    pub fn is_cancelled(&self) -> bool {
        self.0.cancelled.get()
    }

    /// Ready when the caller does not wait any more.
    pub async fn cancelled(&self) {
        poll_fn(|context| {
            if self.is_cancelled() {
                return Poll::Ready(());
            }
            let mut waiting = self.0.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn cancel(&self) -> Vec<Waker> {
        self.0.cancelled.set(true);
        self.0.waiting.take()
    }
}

/// A call that was received.
pub struct ReceivedCall {
    pub number: u64,
    pub body: Bytes,
    /// The caller waits until then, on this side's clock.
    pub deadline: Instant,
    pub cancel: CancelToken,
}

pub struct ServerHalf {
    limits: Limits,
    running: HashMap<u64, CancelToken, KeyHashing>,
    outgoing: Outgoing,
    received: Vec<ReceivedCall>,
    pong_queued: bool,
    stopping: bool,
    ended: bool,
    woken: Vec<Waker>,
}

impl ServerHalf {
    pub fn new(limits: Limits) -> ServerHalf {
        let (running, outgoing, received, woken) = Default::default();
        let (pong_queued, stopping, ended) = (false, false, false);
        ServerHalf { limits, running, outgoing, received, pong_queued, stopping, ended, woken }
    }

    /// The calls that were received, to be begun now.
    pub fn take_received(&mut self) -> Vec<ReceivedCall> {
        std::mem::take(&mut self.received)
    }

    /// Begins no further call, and is done when those that run are answered.
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Whether no call is in progress and no reply waits to be sent.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty() && self.outgoing.messages.is_empty()
    }

    /// Bytes of messages that wait to be sent.
    pub fn queued_bytes(&self) -> usize {
        self.outgoing.bytes
    }

    /// # Errors
    /// If the reply is longer than a message may be.
    pub fn answer(&mut self, call: u64, body: Bytes) -> Result<(), LinkError> {
        if self.ended {
            return Ok(());
        }
        if body.len() > BODY_BYTES_MAX {
            return Err(WireError::TooLong(body.len()).into());
        }
        let running = self.running.remove(&call);
        assert!(running.is_some(), "call {call} is answered twice");
        self.outgoing.push(Message::Reply { call, body });
        Ok(())
    }

    fn begin(&mut self, number: u64, body: Bytes, deadline: Instant, now: Instant) -> Result<(), LinkError> {
        if self.running.contains_key(&number) {
            return Err(LinkError::Protocol("used the number of a call that is not answered yet"));
        }
        let refused = match () {
            () if self.stopping => Some(NotBegun::Stopping),
            () if deadline <= now => Some(NotBegun::Expired),
            () => None,
        };
        if let Some(reason) = refused {
            self.outgoing.push(Message::NotBegun { call: number, reason });
            return Ok(());
        }
        let cancel = CancelToken::default();
        self.running.insert(number, cancel.clone());
        self.received.push(ReceivedCall { number, body, deadline, cancel });
        Ok(())
    }

    fn cancel(&mut self, number: u64) {
        // The answer may have crossed the cancellation.
        let Some(token) = self.running.get(&number) else { return };
        self.woken.extend(token.cancel());
        // A call that came with its cancellation is not begun.
        if let Some(at) = self.received.iter().position(|call| call.number == number) {
            self.received.remove(at);
            self.running.remove(&number);
            self.outgoing.push(Message::NotBegun { call: number, reason: NotBegun::Cancelled });
        }
    }
}

impl Half for ServerHalf {
    fn next_outgoing(&mut self) -> Option<Message> {
        let message = self.outgoing.pop()?;
        self.pong_queued &= message != Message::Pong;
        Some(message)
    }

    /// One more than calls may be in flight: a client that keeps to the limit can still cancel and ask.
    fn capacity(&self) -> usize {
        if self.outgoing.bytes >= self.limits.queued_bytes {
            return 0;
        }
        (self.limits.in_flight + 1).saturating_sub(self.running.len())
    }

    fn received(&mut self, message: Message, now: Instant) -> Result<(), LinkError> {
        match message {
            Message::Request { call, deadline, body } => self.begin(call, body, now.after(deadline), now)?,
            Message::Cancel { call } => self.cancel(call),
            Message::Ping if self.pong_queued => {}
            Message::Ping => {
                self.pong_queued = true;
                self.outgoing.push(Message::Pong);
            }
            Message::Reply { .. } | Message::NotBegun { .. } | Message::Pong => {
                return Err(LinkError::Protocol("sent a server what only servers send"));
            }
        }
        Ok(())
    }

    fn awaits(&self) -> bool {
        false
    }

    fn probe(&mut self) {}

    fn is_done(&self) -> bool {
        self.stopping && self.is_idle()
    }

    fn ended(&mut self, _: &LinkError) {
        self.ended = true;
        for (_, token) in self.running.drain() {
            self.woken.extend(token.cancel());
        }
        self.received.clear();
        self.outgoing.clear();
    }

    fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }
}

#[cfg(test)]
mod tests;
