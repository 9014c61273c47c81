//! A message in a byte stream: header, head, body.

use super::bad_message::{BadMessage, bad};
use std::io::{self, IoSlice, Write};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub const HEADER_BYTES: usize = 32;
/// Large enough for a start request with its layout, and small enough to bound what a frame's head makes the service
/// allocate.
pub const HEAD_BYTES_MAX: usize = 1 << 20;

/// Checksum of the bodies on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BodyChecksum {
    /// No checksum besides TCP's.
    None,
    /// CRC-32 as in zlib, gzip and PNG.
    Crc32,
    /// XXH3 without a seed.
    #[default]
    Xxh3,
}

impl BodyChecksum {
    pub fn of(self, body: &[u8]) -> u64 {
        match self {
            _ if body.is_empty() => 0,
            BodyChecksum::None => 0,
            BodyChecksum::Crc32 => crc32fast::hash(body).into(),
            BodyChecksum::Xxh3 => xxh3_64(body),
        }
    }

    /// Starts the checksum of a body that comes in pieces.
    pub fn begin(self) -> BodySum {
        let state = match self {
            BodyChecksum::None => ChecksumState::None,
            BodyChecksum::Crc32 => ChecksumState::Crc32(crc32fast::Hasher::new()),
            BodyChecksum::Xxh3 => ChecksumState::Xxh3(Box::new(Xxh3::new())),
        };
        BodySum { state, any: false }
    }

    /// Checksum of a body in parts.
    pub fn of_parts(self, parts: &[&[u8]]) -> u64 {
        match (self, parts) {
            (_, []) => 0,
            (_, [body]) => self.of(body),
            (_, parts) => {
                let mut sum = self.begin();
                parts.iter().for_each(|part| sum.add(part));
                sum.end()
            }
        }
    }
}

/// A checksum in progress.
pub struct BodySum {
    state: ChecksumState,
    /// Whether any byte was added; an empty body's checksum is 0.
    any: bool,
}

enum ChecksumState {
    None,
    Crc32(crc32fast::Hasher),
    Xxh3(Box<Xxh3>),
}

impl BodySum {
    pub fn add(&mut self, piece: &[u8]) {
        self.any |= !piece.is_empty();
        match &mut self.state {
            ChecksumState::None => {}
            ChecksumState::Crc32(sum) => sum.update(piece),
            ChecksumState::Xxh3(sum) => sum.update(piece),
        }
    }

    pub fn end(self) -> u64 {
        match self.state {
            _ if !self.any => 0,
            ChecksumState::None => 0,
            ChecksumState::Crc32(sum) => sum.finalize().into(),
            ChecksumState::Xxh3(sum) => sum.digest(),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: u8,
    pub flags: u8,
    pub head_bytes: u32,
    pub body_bytes: u64,
    /// Checksum of the body.
    pub checksum: u64,
    /// CRC-32 of the head.
    pub head_crc: u32,
}

impl Header {
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind;
        bytes[1] = self.flags;
        bytes[4..8].copy_from_slice(&self.head_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.head_crc.to_le_bytes());
        let own = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// # Errors
    /// If the CRC does not match, or the head exceeds its limit.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Result<Header, BadMessage> {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        if crc32fast::hash(&bytes[..28]) != word(28) {
            return bad("a header's CRC differs: this is not a detector stream, or bytes were lost or changed");
        }
        let header = Header {
            kind: bytes[0],
            flags: bytes[1],
            head_bytes: word(4),
            body_bytes: long(8),
            checksum: long(16),
            head_crc: word(24),
        };
        if header.head_bytes as usize > HEAD_BYTES_MAX {
            return bad(format!("a head has {} bytes; at most {HEAD_BYTES_MAX} are allowed", header.head_bytes));
        }
        Ok(header)
    }

    /// # Errors
    /// If the head was changed in transmission.
    pub fn check_head(&self, head: &[u8]) -> Result<(), BadMessage> {
        if crc32fast::hash(head) != self.head_crc { bad("a head's CRC differs: bytes were changed") } else { Ok(()) }
    }
}

/// Sends one message with as few system calls as possible. The body is given in parts, such as the chunks of a frame;
/// `sum` is its checksum.
///
/// # Errors
/// Errors of `to`.
pub fn send(to: &mut impl Write, (kind, flags, head): (u8, u8, Vec<u8>), body: &[&[u8]], sum: u64) -> io::Result<()> {
    let header = Header {
        kind,
        flags,
        head_bytes: head.len() as u32,
        body_bytes: body.iter().map(|part| part.len() as u64).sum(),
        checksum: sum,
        head_crc: crc32fast::hash(&head),
    };
    let mut bytes = header.encode().to_vec();
    bytes.extend(head);
    let mut slices: Vec<IoSlice<'_>> =
        std::iter::once(IoSlice::new(&bytes)).chain(body.iter().map(|part| IoSlice::new(part))).collect();
    let mut rest = &mut slices[..];
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match to.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => IoSlice::advance_slices(&mut rest, written),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
