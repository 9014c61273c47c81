//! What one thread writes: chunks one after the other in extents of its own, in writes that end where the store's stripes
//! end. Large chunks are written from where they are; small ones, and what the filter makes, are gathered first.

use super::Shared;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::ops::Range;

/// Chunks from here on are not copied.
const OWN_BYTES: usize = 64 << 10;
/// Pieces that the kernel takes in one write.
const PIECES_MAX: usize = 1024;

pub(super) struct Stripes<'s> {
    shared: &'s Shared,
    /// What is left of the extent, from where the first piece will lie on.
    extent: Range<u64>,
    pieces: VecDeque<Piece>,
    gathered: Vec<u8>,
    /// Bytes of all pieces.
    waiting: u64,
    /// Bytes that were ever written.
    written: u64,
}

enum Piece {
    /// In `gathered`.
    Gathered(Range<usize>),
    Own {
        bytes: Vec<u8>,
        from: usize,
    },
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Piece::Gathered(range) => range.len(),
            Piece::Own { bytes, from } => bytes.len() - from,
        }
    }

    fn cut(&mut self, count: usize) {
        match self {
            Piece::Gathered(range) => range.start += count,
            Piece::Own { from, .. } => *from += count,
        }
    }
}

impl<'s> Stripes<'s> {
    pub(super) fn new(shared: &'s Shared) -> Stripes<'s> {
        Stripes { shared, extent: 0..0, pieces: VecDeque::new(), gathered: Vec::new(), waiting: 0, written: 0 }
    }

    /// How much has come, and how much of it has been written.
    pub(super) fn taken(&self) -> u64 {
        self.written + self.waiting
    }

    pub(super) fn written(&self) -> u64 {
        self.written
    }

    /// Where the next chunk is to be appended, and from where on it will begin; [`Stripes::end`] follows.
    pub(super) fn begin(&mut self) -> (&mut Vec<u8>, usize) {
        let from = self.gathered.len();
        (&mut self.gathered, from)
    }

    /// Takes what was appended since [`Stripes::begin`] answered `from`; answers its address.
    pub(super) fn end(&mut self, from: usize) -> io::Result<u64> {
        let length = self.gathered.len() - from;
        if !self.fits(length as u64) {
            self.write(self.waiting, length)?;
            self.extend(length as u64)?;
        }
        let from = self.gathered.len() - length;
        Ok(self.add(Piece::Gathered(from..from + length)))
    }

    /// Takes a chunk as it is; answers its address.
    pub(super) fn push(&mut self, bytes: Vec<u8>) -> io::Result<u64> {
        if bytes.len() < OWN_BYTES {
            let (gathered, from) = self.begin();
            gathered.extend_from_slice(&bytes);
            return self.end(from);
        }
        if !self.fits(bytes.len() as u64) {
            self.write(self.waiting, 0)?;
            self.extend(bytes.len() as u64)?;
        }
        Ok(self.add(Piece::Own { bytes, from: 0 }))
    }

    /// Sets `bytes` aside which whoever asks writes.
    pub(super) fn apart(&mut self, bytes: u64) -> io::Result<u64> {
        let bytes = bytes.next_multiple_of(crate::allocate::PAGE_BYTES);
        if !self.fits(bytes) {
            self.extend(bytes)?;
        }
        let address = self.extent.start;
        self.extent.start += bytes;
        Ok(address)
    }

    fn fits(&self, bytes: u64) -> bool {
        self.extent.end - self.extent.start >= self.waiting + bytes
    }

    fn extend(&mut self, bytes: u64) -> io::Result<()> {
        self.extent = self.shared.extent(bytes)?;
        Ok(())
    }

    fn add(&mut self, piece: Piece) -> u64 {
        let address = self.extent.start + self.waiting;
        self.waiting += piece.len() as u64;
        self.pieces.push_back(piece);
        address
    }

    /// Writes all whole stripes.
    pub(super) fn write_whole(&mut self) -> io::Result<()> {
        let stripe = self.shared.settings.stripe_bytes.max(1);
        let end = (self.extent.start + self.waiting) / stripe * stripe;
        self.write(end.saturating_sub(self.extent.start), 0)
    }

    pub(super) fn write_all(&mut self) -> io::Result<()> {
        self.write(self.waiting, 0)
    }

    /// Writes the first `bytes` of what waits; the last `keep` bytes gathered belong to no piece yet.
    fn write(&mut self, bytes: u64, keep: usize) -> io::Result<()> {
        let mut rest = bytes;
        while rest > 0 {
            let mut slices = Vec::new();
            let mut room = rest as usize;
            for piece in self.pieces.iter().take(PIECES_MAX) {
                let slice = match piece {
                    Piece::Gathered(range) => &self.gathered[range.clone()],
                    Piece::Own { bytes, from } => &bytes[*from..],
                };
                slices.push(IoSlice::new(&slice[..slice.len().min(room)]));
                room -= slice.len().min(room);
                if room == 0 {
                    break;
                }
            }
            let count = match rustix::io::pwritev(&self.shared.file, &slices, self.extent.start) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            self.advance(count);
            rest -= count as u64;
        }
        if bytes > 0 {
            self.compact(keep);
        }
        Ok(())
    }

    fn advance(&mut self, mut count: usize) {
        self.extent.start += count as u64;
        self.waiting -= count as u64;
        self.written += count as u64;
        while let Some(piece) = self.pieces.front_mut() {
            let length = piece.len();
            if length > count {
                piece.cut(count);
                break;
            }
            count -= length;
            self.pieces.pop_front();
        }
    }

    /// Forgets what of `gathered` no piece needs, but for the last `keep` bytes; what remains is less than a stripe.
    fn compact(&mut self, keep: usize) {
        let first = self.pieces.iter().find_map(|piece| match piece {
            Piece::Gathered(range) => Some(range.start),
            Piece::Own { .. } => None,
        });
        let unused = first.unwrap_or(self.gathered.len() - keep);
        self.gathered.drain(..unused);
        for piece in &mut self.pieces {
            if let Piece::Gathered(range) = piece {
                *range = range.start - unused..range.end - unused;
            }
        }
    }
}
