//! The ways in which a call ends without a reply.

use crate::wire::{BODY_BYTES_MAX, NotBegun};

/// A call without a reply. The kind says whether the server may have carried the call out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing of the call was sent, so that it may be sent again, here or elsewhere.
    #[error("the call was not sent: {0}")]
    NotSent(Cause),
    /// The server has the call and says that it did not begin it.
    #[error("the server did not begin the call: {0}")]
    NotBegun(NotBegun),
    /// The call was sent. Whether the server has carried it out, or will, is unknown.
    #[error("the outcome of the call is unknown: {0}")]
    Unknown(Cause),
}

impl CallError {
    /// Whether the server may have carried the call out.
    pub fn outcome_unknown(&self) -> bool {
        matches!(self, CallError::Unknown(_))
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Cause {
    #[error("no reply in time")]
    Deadline,
    #[error("the connection is lost: {0}")]
    Lost(String),
    /// There is no connection yet; the reason is that of the last try.
    #[error("no connection in time: {0}")]
    Unreachable(String),
    /// The server does not accept this client, or is not the expected one.
    #[error("refused: {0}")]
    Refused(String),
    #[error("a request of {0} bytes is above the limit of {BODY_BYTES_MAX}")]
    TooLong(usize),
    #[error("{0} calls wait already")]
    Overload(usize),
}
