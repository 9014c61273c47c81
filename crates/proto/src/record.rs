//! Records: the bytes of a TCP connection after its handshake, sealed and authenticated. A state machine without I/O.
//!
//! ```text
//! offset 0  u16 little-endian  length of the ciphertext, 17 to 65,535
//!        2  ciphertext         a Noise transport message: 1 to 65,519 bytes of the stream, and a tag of 16
//! ```
//!
//! Frames ([`crate::frame`]) are split into records without regard to frame boundaries. Each direction has its own key
//! and counts its records. The count is the nonce and is not sent, so decryption fails for a record that is left out,
//! repeated, reordered or sent back to its sender. After every [`REKEY_RECORDS`] records a direction derives its next
//! key. The first record that fails to decrypt ends the connection.

use snow::TransportState;

/// Length of the header of each record.
pub const HEADER_BYTES: usize = 2;

const TAG_BYTES: usize = 16;

/// Largest length of a record without its header: the largest Noise message.
pub const RECORD_BYTES_MAX: usize = 65_535;

/// Largest number of stream bytes in one record.
pub const PLAIN_BYTES_MAX: usize = RECORD_BYTES_MAX - TAG_BYTES;

/// Stream bytes that this implementation puts into one record. A peer must receive a whole record before it can decrypt
/// it.
const PIECE_BYTES: usize = 16 * 1024;

/// Records of a direction under one key, at most 4 GiB. ChaCha20-Poly1305 allows far more; the limit bounds how much a
/// key that leaks from memory can decrypt.
pub const REKEY_RECORDS: u64 = 1 << 16;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("a record of {0} bytes is too short for one byte and its tag; the peer does not speak Varve's protocol")]
    TooShort(usize),
    #[error(
        "record {0} of the connection is not authentic: it was changed, replayed, dropped or forged in transit; the \
         connection ends"
    )]
    Unauthentic(u64),
    #[error("the connection has ended because of a record that was not authentic")]
    Ended,
    #[error("cannot encrypt a record: {0}")]
    Unsealed(String),
}

/// Both directions of a connection, from the view of one side.
pub struct Records {
    transport: Box<TransportState>,
    sealed: u64,
    opened: u64,
    ended: bool,
}

impl std::fmt::Debug for Records {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Records").field("sealed", &self.sealed).field("opened", &self.opened).finish_non_exhaustive()
    }
}

impl Records {
    pub(crate) fn new(transport: TransportState) -> Records {
        Records { transport: Box::new(transport), sealed: 0, opened: 0, ended: false }
    }

    /// Encrypts `plain` and appends it to `out` as the next records.
    pub fn seal(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), RecordError> {
        for piece in plain.chunks(PIECE_BYTES) {
            let bytes = piece.len() + TAG_BYTES;
            out.extend_from_slice(&(bytes as u16).to_le_bytes());
            let start = out.len();
            out.resize(start + bytes, 0);
            let unsealed = |error| RecordError::Unsealed(format!("{error:?}"));
            let written = self.transport.write_message(piece, &mut out[start..]).map_err(unsealed)?;
            debug_assert_eq!(written, bytes, "the header has said how long the record is");
            self.sealed += 1;
            if self.sealed.is_multiple_of(REKEY_RECORDS) {
                self.transport.rekey_outgoing();
            }
        }
        Ok(())
    }

    /// Decrypts the first complete record of `received`, appends its bytes to `plain`, and returns how many bytes of
    /// `received` it consumed; 0 if the record is incomplete.
    pub fn open(&mut self, received: &[u8], plain: &mut Vec<u8>) -> Result<usize, RecordError> {
        if self.ended {
            return Err(RecordError::Ended);
        }
        let Some(header) = received.first_chunk::<HEADER_BYTES>() else { return Ok(0) };
        let bytes = usize::from(u16::from_le_bytes(*header));
        if bytes <= TAG_BYTES {
            self.ended = true;
            return Err(RecordError::TooShort(bytes));
        }
        let Some(sealed) = received.get(HEADER_BYTES..HEADER_BYTES + bytes) else { return Ok(0) };
        let start = plain.len();
        plain.resize(start + bytes, 0);
        match self.transport.read_message(sealed, &mut plain[start..]) {
            Ok(read) => plain.truncate(start + read),
            Err(_) => {
                plain.truncate(start);
                self.ended = true;
                return Err(RecordError::Unauthentic(self.opened));
            }
        }
        self.opened += 1;
        if self.opened.is_multiple_of(REKEY_RECORDS) {
            self.transport.rekey_incoming();
        }
        Ok(HEADER_BYTES + bytes)
    }

    /// Decrypts all complete records of `received` and removes them from it.
    pub fn open_all(&mut self, received: &mut Vec<u8>, plain: &mut Vec<u8>) -> Result<(), RecordError> {
        let mut taken = 0;
        loop {
            match self.open(&received[taken..], plain)? {
                0 => break,
                count => taken += count,
            }
        }
        received.drain(..taken);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
