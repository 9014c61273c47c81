//! What detectors and the service say to each other over TCP; byte by byte in `formats/detector-stream.md`. Heads are
//! coded here without I/O; [`message`] and [`link`] put them on a stream of bytes. [`ranges`] says which frames are
//! acknowledged.
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

/// The oldest version of `formats/detector-stream.md` that is spoken here.
pub const VERSION: u16 = 1;
/// The newest one.
pub const NEWEST_VERSION: u16 = 2;
/// Scalars may be of other kinds than floats from this version on.
pub const KINDS_VERSION: u16 = 2;
/// Frames and chunks are below this by a run's description; no service takes longer bodies.
pub const BODY_BYTES_MAX: u64 = 4 << 30;

/// Why bytes are no message.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadMessage(pub String);

fn bad<T>(text: impl Into<String>) -> Result<T, BadMessage> {
    Err(BadMessage(text.into()))
}

/// A level's bit in messages.
pub fn level_bit(level: AckLevel) -> u8 {
    match level {
        AckLevel::Memory => 1,
        AckLevel::Written => 2,
        AckLevel::Durable => 4,
    }
}

/// The heads that a client sends.
#[derive(Clone, Debug, PartialEq)]
pub enum ToService {
    Hello(StreamHello),
    /// `again`: sent before, on a connection that broke.
    Frame {
        head: FrameHead,
        again: bool,
    },
    Scalars(ScalarsHead),
    /// `complete`: the client brings nothing more on any connection. `lost`: frames that it had to drop itself.
    End {
        complete: bool,
        lost: u64,
    },
    /// `flush`: all that was sent is waited for, so that frames which share chunks are to wait for no others.
    Ping {
        flush: bool,
    },
    /// A writer wants an extent of at least so many bytes.
    Extent {
        bytes: u64,
    },
    /// A writer has written and synced what the body says. `again`: it may have said so before.
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
/// Of FRAME and REPORT: sent before. Of END: complete. Of SCALARS: it says of which kind each is. Of PING: flush.
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
    /// If a service cannot take it; says why.
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
            kind => return bad(format!("no client sends messages of kind {kind}")),
        };
        let bodied = matches!(message, ToService::Frame { .. } | ToService::Scalars(_) | ToService::Report { .. });
        if header.body_bytes > 0 && !bodied {
            return bad(format!("a message of kind {} has no body, and this one has", header.kind));
        }
        Ok(message)
    }
}

#[cfg(test)]
mod tests;
