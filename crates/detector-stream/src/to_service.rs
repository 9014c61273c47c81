//! Heads of messages from clients.

use super::bad_message::{BadMessage, bad};
use super::frames::FrameHead;
use super::hello::StreamHello;
use super::message::Header;
use super::read::MessageReader;
use super::scalars::ScalarsHead;

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
