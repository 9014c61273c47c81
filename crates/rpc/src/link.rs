//! Carriers of messages: a stream of bytes with or without a shared-memory slot ([`stream`]), or a pair of queues
//! within the process ([`in_process`]).

pub mod in_process;
pub mod slot;
pub mod stream;

use crate::wire::{Message, WireError};
use std::io;
use std::os::fd::BorrowedFd;
use std::task::{Context, Poll};
use varve_proto::record::RecordError;

/// The reason why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    #[error("the peer closed it")]
    Closed,
    #[error("the peer closed it in the middle of a message, after {0} bytes")]
    Truncated(usize),
    #[error("{0}")]
    Wire(#[from] WireError),
    #[error("{0}")]
    Record(#[from] RecordError),
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The peer sent a message that does not belong there.
    #[error("the peer {0}")]
    Protocol(&'static str),
    /// See [`crate::Answer::Violation`].
    #[error("{0}")]
    Violation(String),
    #[error("the peer sent nothing for {0:?}, although it had to")]
    Silent(std::time::Duration),
    #[error("this side closed it")]
    ClosedHere,
    /// See [`crate::Handler::may_reply`].
    #[error("this side may not reply any more")]
    MayNotReply,
}

/// One side of a connection. No method waits.
pub trait Link {
    /// Whether [`Link::push`] may be called.
    fn has_room(&self) -> bool;

    /// Takes a message to be sent.
    fn push(&mut self, message: Message);

    /// Sends what was pushed, as far as the peer takes it. Returns whether anything was sent.
    ///
    /// # Errors
    /// If the connection is gone.
    fn flush(&mut self) -> Result<bool, LinkError>;

    /// Whether something that was pushed is not sent.
    fn is_blocked(&self) -> bool;

    /// Bytes that were pushed and are not sent.
    fn unsent_bytes(&self) -> usize;

    /// Receives at most `most` messages, which is not 0. Returns whether anything was received, if only a part of a
    /// message.
    ///
    /// # Errors
    /// If the connection is gone, or the peer does not speak the protocol.
    fn receive(&mut self, most: usize, messages: &mut Vec<Message>) -> Result<bool, LinkError>;

    /// Whether a part of a message has arrived.
    fn is_midway(&self) -> bool;

    /// Ready when there may be something to receive (if `receives`), or to flush.
    fn poll(&mut self, receives: bool, context: &mut Context<'_>) -> Poll<()>;

    /// Whether shared memory has something to receive. The peer uses it from now on.
    fn look(&mut self) -> bool;

    /// The peer is to use the descriptor from now on. `false`: it has put something into the memory before.
    fn sleep(&mut self) -> bool;

    /// Whether there is memory to look into.
    fn has_memory(&self) -> bool;

    /// The socket, if it is one.
    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
