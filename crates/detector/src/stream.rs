//! The TCP protocol between detectors and the service. `formats/detector-stream.md` has the bytes. Heads are encoded
//! and decoded here without I/O; [`message`] and [`link`] transfer them over a byte stream. [`ranges`] represents
//! acknowledged frames.
//!
//! Entry: [`ToService`], [`FromService`].

pub mod answers;
pub mod frames;
pub mod hello;
pub mod link;
pub mod message;
pub mod ranges;
mod read;
pub mod scalars;
mod socket;

pub use answers::{Ack, ErrorCode, FinishedHead, FromService, Notice, NoticeCode, ShareHead, StreamRefusal};
pub use frames::FrameHead;
pub use hello::{StreamHello, StreamRole, StreamWelcome};
pub use message::{BodyChecksum, HEAD_BYTES_MAX, HEADER_BYTES, Header};
pub use ranges::Ranges;
pub use scalars::ScalarsHead;
pub use socket::Socket;

use crate::frame::AckLevel;
use read::MessageReader;

/// The oldest supported version of `formats/detector-stream.md`.
pub const VERSION: u16 = 1;
/// The newest supported version.
pub const NEWEST_VERSION: u16 = 2;
/// First version in which scalars may be of other kinds than floats.
pub const KINDS_VERSION: u16 = 2;
/// Upper limit for bodies. The limits of dataset specs keep frames and chunks below it.
pub const BODY_BYTES_MAX: u64 = 4 << 30;

/// Why bytes are not a valid message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMessage(pub String);

fn bad<T>(text: impl Into<String>) -> Result<T, BadMessage> {
    Err(BadMessage(text.into()))
}

/// The bit of a level in messages.
pub fn level_bit(level: AckLevel) -> u8 {
    match level {
        AckLevel::Memory => 1,
        AckLevel::Written => 2,
        AckLevel::Durable => 4,
    }
}

/// Heads of messages from clients.
#[derive(Clone, Debug, PartialEq)]
pub enum ToService {
    Hello(StreamHello),
    /// `again`: sent before, on a connection that broke.
    Frame {
        head: FrameHead,
        again: bool,
    },
    Scalars(ScalarsHead),
    /// `complete`: the client sends nothing more on any connection. `lost`: number of frames that it had to drop.
    End {
        complete: bool,
        lost: u64,
    },
    /// `flush`: the client waits for everything that it sent, so frames that share chunks must not wait for others.
    Ping {
        flush: bool,
    },
    /// A writer requests an extent of at least this size.
    Extent {
        bytes: u64,
    },
    /// A writer has written and synced the chunks in the body. `again`: it may have reported them before.
    Report {
        sequence: u64,
        again: bool,
    },
}

const HELLO: u8 = 1;
const FRAME: u8 = 2;
const SCALARS: u8 = 3;
const END: u8 = 4;
const PING: u8 = 5;
const EXTENT: u8 = 6;
const REPORT: u8 = 7;
/// Meaning by message: FRAME and REPORT: sent before. END: complete. SCALARS: kinds of values follow. PING: flush.
const FLAG: u8 = 1;

impl ToService {
    /// Kind, flags and head.
    pub fn encode(&self) -> (u8, u8, Vec<u8>) {
        match self {
            ToService::Hello(hello) => (HELLO, 0, hello.encode()),
            ToService::Frame { head, again } => (FRAME, u8::from(*again) * FLAG, head.encode()),
            ToService::Scalars(head) => (SCALARS, u8::from(!head.is_plain()) * FLAG, head.encode()),
            ToService::End { complete, lost } => (END, u8::from(*complete) * FLAG, lost.to_le_bytes().to_vec()),
            ToService::Ping { flush } => (PING, u8::from(*flush) * FLAG, Vec::new()),
            ToService::Extent { bytes } => (EXTENT, 0, bytes.to_le_bytes().to_vec()),
            ToService::Report { sequence, again } => (REPORT, u8::from(*again) * FLAG, sequence.to_le_bytes().to_vec()),
        }
    }

    /// # Errors
    /// If the service cannot accept the message. The error says why.
    pub fn decode(header: &Header, head: &[u8]) -> Result<ToService, BadMessage> {
        let flag = header.flags & FLAG != 0;
        let mut reader = MessageReader(head);
        let message = match header.kind {
            HELLO => ToService::Hello(StreamHello::decode(&mut reader)?),
            FRAME => ToService::Frame { head: FrameHead::decode(&mut reader)?, again: flag },
            SCALARS => ToService::Scalars(ScalarsHead::decode(&mut reader, flag)?),
            END => ToService::End { complete: flag, lost: reader.u64()? },
            PING => ToService::Ping { flush: flag },
            EXTENT => ToService::Extent { bytes: reader.u64()? },
            REPORT => ToService::Report { sequence: reader.u64()?, again: flag },
            kind => return bad(format!("a client cannot send messages of kind {kind}")),
        };
        let bodied = matches!(message, ToService::Frame { .. } | ToService::Scalars(_) | ToService::Report { .. });
        if header.body_bytes > 0 && !bodied {
            return bad(format!("a message of kind {} has a body, which this kind does not allow", header.kind));
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests;
