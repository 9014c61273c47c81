//! Frames: the boundaries of messages in a stream of bytes.
//!
//! ```text
//! offset 0  u32 little-endian  length of the body, at most FRAME_BYTES_MAX
//!        4  u32 little-endian  low half of XXH3-64 of the body
//!        8  body               a postcard message
//! ```

use serde::{Serialize, de::DeserializeOwned};
use xxhash_rust::xxh3::xxh3_64;

pub const HEADER_BYTES: usize = 8;

/// Holds the largest inline write (1 MiB) and the largest listing with a margin. A larger length is garbage and ends
/// the connection before anything is allocated.
pub const FRAME_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes is above the limit of {FRAME_BYTES_MAX}; the peer does not speak Varve's protocol")]
    TooLong(usize),
    #[error("a frame's checksum does not match its {0} bytes")]
    Checksum(usize),
    #[error("a frame of {0} bytes is not a message of this version: {1}")]
    Malformed(usize, String),
}

/// Appends `message` as one frame to `out`.
pub fn encode<M: Serialize>(message: &M, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    if let Err(error) = crate::append(message, out) {
        out.truncate(start);
        return Err(FrameError::Malformed(0, error.to_string()));
    }
    let body_len = out.len() - start - HEADER_BYTES;
    if body_len > FRAME_BYTES_MAX {
        out.truncate(start);
        return Err(FrameError::TooLong(body_len));
    }
    let checksum = xxh3_64(&out[start + HEADER_BYTES..]) as u32;
    out[start..start + 4].copy_from_slice(&(body_len as u32).to_le_bytes());
    out[start + 4..start + 8].copy_from_slice(&checksum.to_le_bytes());
    Ok(())
}

/// The bytes of `message`, without a frame.
pub fn body_of<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    let mut body = Vec::new();
    crate::append(message, &mut body).map_err(|error| FrameError::Malformed(0, error.to_string()))?;
    if body.len() > FRAME_BYTES_MAX { Err(FrameError::TooLong(body.len())) } else { Ok(body) }
}

/// Appends a message that is already encoded (for example a recorded reply) as one frame to `out`.
pub fn encode_body(body: &[u8], out: &mut Vec<u8>) -> Result<(), FrameError> {
    if body.len() > FRAME_BYTES_MAX {
        return Err(FrameError::TooLong(body.len()));
    }
    out.extend_from_slice(&(body.len() as u32).to_le_bytes());
    out.extend_from_slice(&(xxh3_64(body) as u32).to_le_bytes());
    out.extend_from_slice(body);
    Ok(())
}

/// The length of the body that follows `header`.
pub fn body_len(header: &[u8; HEADER_BYTES]) -> Result<usize, FrameError> {
    let len = u32::from_le_bytes([header[0], header[1], header[2], header[3]]) as usize;
    if len > FRAME_BYTES_MAX { Err(FrameError::TooLong(len)) } else { Ok(len) }
}

/// Decodes the body of a frame after checking it against its header.
pub fn decode<M: DeserializeOwned>(header: &[u8; HEADER_BYTES], body: &[u8]) -> Result<M, FrameError> {
    let checksum = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
    if body_len(header)? != body.len() || xxh3_64(body) as u32 != checksum {
        return Err(FrameError::Checksum(body.len()));
    }
    decode_body(body)
}

/// Decodes a body whose bytes were checked before.
pub fn decode_body<M: DeserializeOwned>(body: &[u8]) -> Result<M, FrameError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => Err(FrameError::Malformed(body.len(), format!("{} trailing bytes", rest.len()))),
        Err(error) => Err(FrameError::Malformed(body.len(), error.to_string())),
    }
}

/// Decodes the first complete frame of `buffer`, if there is one, and returns its message and its length.
pub fn take<M: DeserializeOwned>(buffer: &[u8]) -> Result<Option<(M, usize)>, FrameError> {
    let Some(header) = buffer.first_chunk::<HEADER_BYTES>() else {
        return Ok(None);
    };
    let end = HEADER_BYTES + body_len(header)?;
    match buffer.get(HEADER_BYTES..end) {
        Some(body) => Ok(Some((decode(header, body)?, end))),
        None => Ok(None),
    }
}
