//! Frames that are filtered while they come, piece by piece, each in the cache of the processor that has just received it.

use crate::filters::{Encoder, FilterError};
use crate::stream::link::{Incoming, LinkError, PIECE_BYTES};
use crate::stream::{BodyChecksum, Header};

pub struct Filtering {
    encoder: Encoder,
    piece: Vec<u8>,
    /// What a chunk takes, as far as is known.
    filtered_bytes: usize,
}

impl Filtering {
    /// By a filter that takes a chunk block by block.
    pub fn new(encoder: Encoder) -> Filtering {
        let piece = vec![0; PIECE_BYTES.next_multiple_of(encoder.block_bytes())];
        Filtering { encoder, piece, filtered_bytes: 0 }
    }

    /// The body of a message as a chunk, in memory that `buffer` gives for about so many bytes, and whether it was whole.
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
        // The next chunk will hardly be larger by more than an eighth.
        self.filtered_bytes = chunk.len() + chunk.len() / 8;
        Ok((whole, filtered.map(|()| chunk)))
    }
}
