//! The client's half: numbers calls, matches replies, and lets no more calls in than the limits allow.

use super::{Half, Outgoing};
use crate::error::{CallError, Cause};
use crate::limits::Limits;
use crate::link::LinkError;
use crate::wire::Message;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::task::Waker;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;

enum CallState {
    /// Not sent.
    Queued(Option<Waker>),
    Sent(Option<Waker>),
    /// Sent, and nobody waits for the answer.
    Abandoned,
    Ended(Result<Bytes, CallError>),
}

pub struct ClientHalf {
    limits: Limits,
    calls: HashMap<u64, CallState, KeyHashing>,
    made: u64,
    /// Calls of the first three states.
    in_flight: usize,
    outgoing: Outgoing,
    /// Callers that wait until a call may be made, by ticket, the oldest first.
    waiting: VecDeque<(u64, Waker)>,
    tickets: u64,
    woken: Vec<Waker>,
    lost: Option<String>,
}

impl ClientHalf {
    pub fn new(limits: Limits) -> ClientHalf {
        let (calls, outgoing, waiting, woken) = Default::default();
        ClientHalf { limits, calls, made: 0, in_flight: 0, outgoing, waiting, tickets: 0, woken, lost: None }
    }

    /// The reason why the connection is lost.
    pub fn lost(&self) -> Option<&str> {
        self.lost.as_deref()
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn may_begin(&self) -> bool {
        self.in_flight < self.limits.in_flight && self.outgoing.bytes < self.limits.queued_bytes
    }

    /// Whether a call may be made now. If not, the caller waits in line, by its `ticket`.
    ///
    /// # Errors
    /// If the connection is lost, or too many wait.
    pub fn admit(&mut self, ticket: &mut Option<u64>, waker: &Waker) -> Result<bool, Cause> {
        if let Some(why) = &self.lost {
            return Err(Cause::Lost(why.clone()));
        }
        let place = ticket.and_then(|ticket| self.place(ticket));
        if self.may_begin() && place.unwrap_or(self.waiting.len()) == 0 {
            if ticket.take().is_some() {
                self.waiting.pop_front();
            }
            return Ok(true);
        }
        match place {
            Some(place) => self.waiting[place].1.clone_from(waker),
            None if self.waiting.len() >= self.limits.waiting => return Err(Cause::Overload(self.waiting.len())),
            None => {
                self.tickets += 1;
                *ticket = Some(self.tickets);
                self.waiting.push_back((self.tickets, waker.clone()));
            }
        }
        Ok(false)
    }

    fn place(&self, ticket: u64) -> Option<usize> {
        self.waiting.binary_search_by_key(&ticket, |(ticket, _)| *ticket).ok()
    }

    /// A caller leaves the line.
    pub fn leave(&mut self, ticket: u64) {
        if let Some(place) = self.place(ticket) {
            self.waiting.remove(place);
            self.call_next();
        }
    }

    fn call_next(&mut self) {
        if self.may_begin()
            && let Some((_, waker)) = self.waiting.front()
        {
            self.woken.push(waker.clone());
        }
    }

    /// Makes a call, which was [admitted](ClientHalf::admit), and returns its number. `deadline`: how long its caller
    /// waits.
    pub fn begin(&mut self, body: Bytes, deadline: Duration) -> u64 {
        self.made += 1;
        self.in_flight += 1;
        self.calls.insert(self.made, CallState::Queued(None));
        self.outgoing.push(Message::Request { call: self.made, deadline, body });
        self.call_next();
        self.made
    }

    /// The end of a call, if it has ended. It is forgotten then.
    pub fn poll(&mut self, call: u64, waker: &Waker) -> Option<Result<Bytes, CallError>> {
        match self.calls.get_mut(&call) {
            Some(CallState::Queued(waiting) | CallState::Sent(waiting)) => {
                match waiting {
                    Some(waiting) => waiting.clone_from(waker),
                    none => *none = Some(waker.clone()),
                }
                None
            }
            Some(CallState::Ended(_)) => match self.calls.remove(&call) {
                Some(CallState::Ended(ended)) => Some(ended),
                _ => unreachable!("it was there, and had ended"),
            },
            Some(CallState::Abandoned) | None => unreachable!("a call is waited for until it has ended"),
        }
    }

    /// The caller does not wait any more. Returns whether the call was sent.
    pub fn abandon(&mut self, call: u64) -> bool {
        match self.calls.remove(&call) {
            Some(CallState::Sent(_)) => {
                self.calls.insert(call, CallState::Abandoned);
                self.outgoing.push(Message::Cancel { call });
                true
            }
            Some(CallState::Queued(_)) => {
                self.settle();
                false
            }
            Some(CallState::Ended(_) | CallState::Abandoned) | None => true,
        }
    }

    fn settle(&mut self) {
        self.in_flight -= 1;
        self.call_next();
    }

    fn answered(&mut self, call: u64, ended: Result<Bytes, CallError>) -> Result<(), LinkError> {
        match self.calls.remove(&call) {
            Some(CallState::Sent(waker)) => {
                self.woken.extend(waker);
                self.calls.insert(call, CallState::Ended(ended));
            }
            Some(CallState::Abandoned) => {}
            Some(_) | None => return Err(LinkError::Protocol("answered a call that was not made, or did so twice")),
        }
        self.settle();
        Ok(())
    }
}

impl Half for ClientHalf {
    fn next_outgoing(&mut self) -> Option<Message> {
        loop {
            let message = self.outgoing.pop()?;
            if let Message::Request { call, .. } = &message {
                // The caller may have left before the call was sent.
                let Some(state) = self.calls.get_mut(call) else { continue };
                let CallState::Queued(waker) = state else { unreachable!("a call is sent once") };
                *state = CallState::Sent(waker.take());
            }
            self.call_next();
            return Some(message);
        }
    }

    fn capacity(&self) -> usize {
        usize::MAX
    }

    fn received(&mut self, message: Message, _: Instant) -> Result<(), LinkError> {
        match message {
            Message::Reply { call, body } => self.answered(call, Ok(body)),
            Message::NotBegun { call, reason } => self.answered(call, Err(CallError::NotBegun(reason))),
            Message::Pong => Ok(()),
            Message::Request { .. } | Message::Cancel { .. } | Message::Ping => {
                Err(LinkError::Protocol("sent a client what only clients send"))
            }
        }
    }

    fn awaits(&self) -> bool {
        self.in_flight > 0
    }

    fn probe(&mut self) {
        self.outgoing.push(Message::Ping);
    }

    fn is_done(&self) -> bool {
        false
    }

    fn ended(&mut self, error: &LinkError) {
        let why = error.to_string();
        for state in self.calls.values_mut() {
            let (waker, ended) = match state {
                CallState::Queued(waker) => (waker.take(), CallError::NotSent(Cause::Lost(why.clone()))),
                CallState::Sent(waker) => (waker.take(), CallError::Unknown(Cause::Lost(why.clone()))),
                CallState::Abandoned | CallState::Ended(_) => continue,
            };
            self.woken.extend(waker);
            *state = CallState::Ended(Err(ended));
        }
        self.calls.retain(|_, state| !matches!(state, CallState::Abandoned));
        self.woken.extend(self.waiting.drain(..).map(|(_, waker)| waker));
        self.in_flight = 0;
        self.outgoing.clear();
        self.lost = Some(why);
    }

    fn take_woken(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.woken)
    }
}

#[cfg(test)]
mod tests;
