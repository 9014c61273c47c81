//! Filters frames piece by piece during reception, while each piece is in the cache of the receiving CPU.

use varve_detector_filters::{Encoder, FilterError};
use varve_detector_stream::link::{Incoming, LinkError, PIECE_BYTES};
use varve_detector_stream::{BodyChecksum, Header};

pub struct Filtering {
    encoder: Encoder,
    piece: Vec<u8>,
    /// Estimated size of a filtered chunk.
    filtered_bytes: usize,
}

impl Filtering {
    /// Creates the state for a filter that accepts a chunk block by block.
    pub fn new(encoder: Encoder) -> Filtering {
        let piece = vec![0; PIECE_BYTES.next_multiple_of(encoder.block_bytes())];
        Filtering { encoder, piece, filtered_bytes: 0 }
    }

    /// Receives and filters a message's body as one chunk, in a buffer of about the requested size from `buffer`. Also
    /// returns whether the body was intact.
    pub fn body(
        &mut self,
        incoming: &mut Incoming,
        (header, checksum): (&Header, BodyChecksum),
        buffer: impl FnOnce(u64) -> Vec<u8>,
    ) -> Result<(bool, Result<Vec<u8>, FilterError>), LinkError> {
        let mut chunk = buffer(self.filtered_bytes as u64);
        chunk.clear();
        self.encoder.begin(header.body_bytes as usize, &mut chunk);
        let (encoder, mut filtered) = (&mut self.encoder, Ok(()));
        let whole = incoming.pieces(header, checksum, &mut self.piece, |piece| {
            if filtered.is_ok() {
                filtered = encoder.add(piece, &mut chunk);
            }
        })?;
        // The next chunk is unlikely to be larger by more than an eighth.
        self.filtered_bytes = chunk.len() + chunk.len() / 8;
        Ok((whole, filtered.map(|()| chunk)))
    }
}
