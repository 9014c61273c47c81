//! Messages of a connection and their bytes (`formats/rpc.md`). Sans-I/O.
//!
//! ```text
//! at 0   u32 little-endian  length of the body, at most BODY_BYTES_MAX
//!    4   u32 little-endian  low half of XXH3-64 of all bytes from 8 on
//!    8   u8                 kind
//!    9   u8                 reason (NotBegun), else 0
//!   10   u16                0
//!   12   u32 little-endian  milliseconds that the caller waits (Request), else 0
//!   16   u64 little-endian  number of the call; 0 for Ping and Pong
//!   24   body               the request or the reply, else empty
//! ```

use bytes::Bytes;
use std::time::Duration;
use varve_proto::frame::FRAME_BYTES_MAX;
use xxhash_rust::xxh3::xxh3_64;

pub const HEADER_BYTES: usize = 24;

/// The largest request or reply, as of the frames without a header for calls.
pub const BODY_BYTES_MAX: usize = FRAME_BYTES_MAX;

/// A buffer that grew beyond this is freed when it is empty: a server has a thousand connections, with three each.
pub const BUFFER_BYTES_KEPT: usize = 32 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Request {
        call: u64,
        deadline: Duration,
        body: Bytes,
    },
    Reply {
        call: u64,
        body: Bytes,
    },
    /// The caller does not wait any more. The server still answers the call.
    Cancel {
        call: u64,
    },
    /// The server has not begun the call, and will not.
    NotBegun {
        call: u64,
        reason: NotBegun,
    },
    /// Asks for a `Pong`, to learn whether the server is there.
    Ping,
    Pong,
}

/// The reason why a server has not begun a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotBegun {
    #[error("it was cancelled before")]
    Cancelled,
    #[error("its deadline had passed")]
    Expired,
    #[error("the server is stopping")]
    Stopping,
}

/// A peer that does not speak this protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    #[error("a message of {0} bytes is above the limit of {BODY_BYTES_MAX}; the peer does not speak Varve's protocol")]
    TooLong(usize),
    #[error("the checksum of a message does not match its {0} bytes")]
    Checksum(usize),
    #[error("a message has an impossible header: kind {kind}, {len} bytes")]
    Header { kind: u8, len: usize },
    #[error("a shared-memory slot has an incomplete message")]
    Cut,
}

impl Message {
    pub fn body_len(&self) -> usize {
        match self {
            Message::Request { body, .. } | Message::Reply { body, .. } => body.len(),
            _ => 0,
        }
    }

    /// Appends the bytes of this message, whose body has at most [`BODY_BYTES_MAX`] bytes.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let empty = Bytes::new();
        let (kind, reason, wait, call, body) = match self {
            Message::Request { call, deadline, body } => {
                // Rounded up, so that a short time is not none. The largest number is 49 days.
                (1, 0, deadline.as_micros().div_ceil(1000).try_into().unwrap_or(u32::MAX), *call, body)
            }
            Message::Reply { call, body } => (2, 0, 0, *call, body),
            Message::Cancel { call } => (3, 0, 0, *call, &empty),
            Message::NotBegun { call, reason } => (4, *reason as u8, 0, *call, &empty),
            Message::Ping => (5, 0, 0, 0, &empty),
            Message::Pong => (6, 0, 0, 0, &empty),
        };
        assert!(body.len() <= BODY_BYTES_MAX, "a body of {} bytes was let in", body.len());
        let start = out.len();
        out.reserve(HEADER_BYTES + body.len());
        out.extend_from_slice(&(body.len() as u32).to_le_bytes());
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&[kind, reason, 0, 0]);
        out.extend_from_slice(&wait.to_le_bytes());
        out.extend_from_slice(&call.to_le_bytes());
        out.extend_from_slice(body);
        let checksum = xxh3_64(&out[start + 8..]) as u32;
        out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// Whether `bytes` begin with a complete message.
///
/// # Errors
/// If the message is too long.
pub fn is_complete(bytes: &[u8]) -> Result<bool, WireError> {
    Ok(length(bytes)?.is_some_and(|length| length <= bytes.len()))
}

/// The length of the first message with its header, if the header is there.
fn length(bytes: &[u8]) -> Result<Option<usize>, WireError> {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return Ok(None) };
    let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if len > BODY_BYTES_MAX { Err(WireError::TooLong(len)) } else { Ok(Some(HEADER_BYTES + len)) }
}

/// Takes messages out of a stream of bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    bytes: Vec<u8>,
    taken: usize,
}

impl Decoder {
    /// Where to append bytes that have arrived.
    pub fn input(&mut self) -> &mut Vec<u8> {
        if self.taken > 0 {
            self.bytes.drain(..self.taken);
            self.taken = 0;
        }
        &mut self.bytes
    }

    /// Bytes that belong to messages which were not taken yet.
    pub fn len(&self) -> usize {
        self.bytes.len() - self.taken
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The next complete message.
    pub fn take(&mut self) -> Result<Option<Message>, WireError> {
        let rest = &self.bytes[self.taken..];
        let Some(length) = length(rest)? else { return Ok(None) };
        let Some(whole) = rest.get(..length) else { return Ok(None) };
        let header = whole.first_chunk::<HEADER_BYTES>().expect("a whole message has a header");
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if xxh3_64(&whole[8..]) as u32 != word(4) {
            return Err(WireError::Checksum(length - HEADER_BYTES));
        }
        let call = u64::from(word(16)) | u64::from(word(20)) << 32;
        let message = message(header, word(12), call, &whole[HEADER_BYTES..])?;
        self.taken += length;
        if self.is_empty() && self.bytes.capacity() > BUFFER_BYTES_KEPT {
            *self = Decoder::default();
        }
        Ok(Some(message))
    }
}

fn message(header: &[u8; HEADER_BYTES], wait: u32, call: u64, body: &[u8]) -> Result<Message, WireError> {
    let [kind, reason, zero @ ..] = [header[8], header[9], header[10], header[11]];
    let impossible = WireError::Header { kind, len: body.len() };
    let has_body = matches!(kind, 1 | 2);
    let sound = zero == [0, 0]
        && (wait == 0 || kind == 1)
        && (reason == 0 || kind == 4)
        && (call == 0) == matches!(kind, 5 | 6)
        && (has_body || body.is_empty());
    if !sound {
        return Err(impossible);
    }
    let copied = || Bytes::copy_from_slice(body);
    Ok(match kind {
        1 => Message::Request { call, deadline: Duration::from_millis(wait.into()), body: copied() },
        2 => Message::Reply { call, body: copied() },
        3 => Message::Cancel { call },
        4 => {
            let reason = match reason {
                0 => NotBegun::Cancelled,
                1 => NotBegun::Expired,
                2 => NotBegun::Stopping,
                _ => return Err(impossible),
            };
            Message::NotBegun { call, reason }
        }
        5 => Message::Ping,
        6 => Message::Pong,
        _ => return Err(impossible),
    })
}

#[cfg(test)]
mod tests;
