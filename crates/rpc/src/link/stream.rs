//! A connection over a socket: messages in the clear over a Unix socket, in records over TCP. On one host messages go
//! through a shared-memory slot while both sides poll.

use super::slot::Slot;
use super::{Link, LinkError};
use crate::event_loop::Watched;
use crate::wire::{BUFFER_BYTES_KEPT, Decoder, Message};
use std::os::fd::{AsFd, BorrowedFd};
use std::task::{Context, Poll};
use varve_env::net;
use varve_proto::record::Records;

/// Bytes that wait to be written, above which no further message is taken. One may be longer.
const OUTPUT_BYTES: usize = 64 * 1024;

/// Bytes that one call of the kernel reads: a connection without large messages keeps a buffer of this length.
const READ_BYTES: usize = 16 * 1024;

pub struct StreamLink {
    socket: Watched,
    records: Option<Records>,
    slot: Option<Slot>,
    /// Messages that were pushed since the last flush.
    pushed: Vec<u8>,
    /// Bytes for the socket, of which `written` are sent.
    output: Vec<u8>,
    written: usize,
    /// Bytes of an incomplete record.
    sealed: Vec<u8>,
    input: Decoder,
    /// Messages in shared memory.
    posted: Decoder,
    /// Messages that were posted, and not received because there were too many.
    surplus: Vec<Message>,
    /// The reason why nothing more can be read. The messages before it are received first.
    ended: Option<LinkError>,
}

impl StreamLink {
    /// A connection whose handshake is done. `records`: over TCP.
    pub fn new(socket: Watched, records: Option<Records>, slot: Option<Slot>) -> StreamLink {
        let (pushed, output, sealed, surplus, ended) = Default::default();
        let (input, posted) = Default::default();
        StreamLink { socket, records, slot, pushed, output, written: 0, sealed, input, posted, surplus, ended }
    }

    /// Moves pushed messages to shared memory, or to the bytes for the socket.
    fn route_pushed(&mut self) -> Result<bool, LinkError> {
        if self.pushed.is_empty() {
            return Ok(false);
        }
        // Behind bytes that wait for the socket, the peer sleeps or is slow.
        let posted = self.output.is_empty() && self.slot.as_ref().is_some_and(|slot| slot.post(&self.pushed));
        if !posted {
            match &mut self.records {
                Some(records) => records.seal(&self.pushed, &mut self.output)?,
                None if self.output.is_empty() => std::mem::swap(&mut self.output, &mut self.pushed),
                None => self.output.extend_from_slice(&self.pushed),
            }
        }
        self.pushed.clear();
        self.pushed.shrink_to(BUFFER_BYTES_KEPT);
        Ok(posted)
    }

    fn write(&mut self) -> Result<bool, LinkError> {
        let mut wrote = false;
        while self.written < self.output.len() && self.socket.has_room() {
            match net::send(&self.socket, &self.output[self.written..])? {
                Some(count) => {
                    self.written += count;
                    wrote = true;
                }
                None => self.socket.no_room()?,
            }
        }
        if wrote && self.written == self.output.len() {
            self.output.clear();
            self.output.shrink_to(BUFFER_BYTES_KEPT);
            self.written = 0;
            self.socket.all_written()?;
        }
        Ok(wrote)
    }

    /// Reads once from the socket.
    fn read(&mut self) -> Result<bool, LinkError> {
        if self.ended.is_some() || !self.socket.has_input() {
            return Ok(false);
        }
        let bytes = if self.records.is_some() { &mut self.sealed } else { self.input.input() };
        match net::receive(&self.socket, bytes, READ_BYTES)? {
            None => {
                self.socket.no_input();
                return Ok(false);
            }
            Some(0) => {
                let part = self.sealed.len() + self.input.len();
                self.ended = Some(if part == 0 { LinkError::Closed } else { LinkError::Truncated(part) });
                return Ok(true);
            }
            // Less than asked for: nothing is left, and the kernel reports what comes next.
            Some(count) if count < READ_BYTES && !self.socket.ends() => self.socket.no_input(),
            Some(_) => {}
        }
        if let Some(records) = &mut self.records {
            self.ended = records.open_all(&mut self.sealed, self.input.input()).err().map(LinkError::from);
        }
        Ok(true)
    }

    fn decode(&mut self, most: usize, messages: &mut Vec<Message>) -> Result<(), LinkError> {
        while messages.len() < most
            && let Some(message) = self.input.take()?
        {
            messages.push(message);
        }
        Ok(())
    }
}

impl Link for StreamLink {
    fn has_room(&self) -> bool {
        self.unsent_bytes() < OUTPUT_BYTES
    }

    fn push(&mut self, message: Message) {
        message.encode(&mut self.pushed);
    }

    fn flush(&mut self) -> Result<bool, LinkError> {
        let posted = self.route_pushed()?;
        Ok(self.write()? || posted)
    }

    fn is_blocked(&self) -> bool {
        !self.output.is_empty()
    }

    fn unsent_bytes(&self) -> usize {
        self.pushed.len() + self.output.len() - self.written
    }

    fn receive(&mut self, most: usize, messages: &mut Vec<Message>) -> Result<bool, LinkError> {
        let mut received = false;
        if self.surplus.is_empty()
            && let Some(slot) = &self.slot
        {
            received = slot.take(&mut self.posted, &mut self.surplus)?;
        }
        let count = most.min(self.surplus.len());
        messages.extend(self.surplus.drain(..count));
        self.decode(most, messages)?;
        if messages.len() < most {
            received |= self.read()?;
            self.decode(most, messages)?;
        }
        match self.ended.take_if(|_| messages.is_empty()) {
            Some(ended) => Err(ended),
            None => Ok(received || !messages.is_empty()),
        }
    }

    fn is_midway(&self) -> bool {
        !self.sealed.is_empty() || !self.input.is_empty()
    }

    fn poll(&mut self, receives: bool, context: &mut Context<'_>) -> Poll<()> {
        let input = receives && self.socket.poll_input(context).is_ready();
        let room = self.is_blocked() && self.socket.poll_room(context).is_ready();
        if input || room { Poll::Ready(()) } else { Poll::Pending }
    }

    fn look(&mut self) -> bool {
        self.slot.as_ref().is_some_and(Slot::look)
    }

    fn sleep(&mut self) -> bool {
        self.slot.as_ref().is_none_or(Slot::sleep)
    }

    fn has_memory(&self) -> bool {
        self.slot.is_some()
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
