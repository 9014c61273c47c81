//! Ordered writing by all threads. Chunks follow one another as they are produced, in writes that end at stripe
//! boundaries. The thread that adds the last chunk of a stripe writes the stripe, and enters the chunk groups that are
//! then complete. Large chunks are written in place; small ones are first copied together.

use super::buffers::Buffers;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;
use varve_detector_dataset::journal_entry::ChunkGroupEntry;
use varve_detector_file::allocate::PAGE_BYTES;

/// Chunks of this size and above are not copied.
const OWN_BYTES: usize = 64 << 10;
/// Limit for the buffers in one system call.
const PIECES_MAX: usize = 1024;

/// Position in the stream of all chunks, in bytes. Not an address, because the file has other data in between.
pub(super) type StreamPosition = u64;

pub(super) struct Stripes {
    stripe: u64,
    /// The unused part of an extent from a coordinator. Held while a chunk gets its address and its position in the
    /// stream, so that both have the same order.
    extent: Mutex<Range<u64>>,
    state: Mutex<StripeState>,
    pub buffers: Buffers,
}

#[derive(Default)]
struct StripeState {
    /// Address of the first waiting byte; the others follow without a gap.
    address: u64,
    waiting: u64,
    pieces: VecDeque<ChunkPiece>,
    /// Small chunks, which follow all pieces.
    gathered: Vec<u8>,
    /// Stream position of `address`.
    position: StreamPosition,
    /// Batches that no thread has begun to write.
    ready: VecDeque<WriteBatch>,
    /// Stream positions of batches that are not written yet.
    unwritten: BTreeSet<StreamPosition>,
    /// Chunk groups that are not in the journal yet, by the stream position up to which chunks must be written first,
    /// and by a counter, because chunk groups without chunks share a position.
    chunk_groups: BTreeMap<(StreamPosition, u64), ChunkGroupEntry>,
    counted: u64,
}

/// A part of a chunk or of several chunks.
struct ChunkPiece {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

/// The data of one write.
struct WriteBatch {
    address: u64,
    position: StreamPosition,
    pieces: VecDeque<ChunkPiece>,
}

impl StripeState {
    fn add(&mut self, bytes: Vec<u8>) {
        self.seal();
        let range = 0..bytes.len();
        self.pieces.push_back(ChunkPiece { bytes: Arc::new(bytes), range });
    }

    /// Makes a piece of the small chunks.
    fn seal(&mut self) {
        if !self.gathered.is_empty() {
            let bytes = std::mem::take(&mut self.gathered);
            let range = 0..bytes.len();
            self.pieces.push_back(ChunkPiece { bytes: Arc::new(bytes), range });
        }
    }

    /// Cuts the first `bytes` off the waiting data and makes a batch of them.
    fn cut(&mut self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        self.seal();
        let mut batch = WriteBatch { address: self.address, position: self.position, pieces: VecDeque::new() };
        let mut rest = bytes as usize;
        while rest > 0 {
            let first = self.pieces.front_mut().expect("as many bytes wait");
            if first.range.len() > rest {
                let middle = first.range.start + rest;
                batch
                    .pieces
                    .push_back(ChunkPiece { bytes: Arc::clone(&first.bytes), range: first.range.start..middle });
                first.range.start = middle;
                break;
            }
            rest -= first.range.len();
            batch.pieces.extend(self.pieces.pop_front());
        }
        self.unwritten.insert(batch.position);
        self.ready.push_back(batch);
        self.address += bytes;
        self.position += bytes;
        self.waiting -= bytes;
    }

    /// Position up to which everything has been written.
    fn written(&self) -> StreamPosition {
        self.unwritten.first().copied().unwrap_or(self.position)
    }
}

impl Stripes {
    pub(super) fn new(stripe: u64) -> Stripes {
        Stripes {
            stripe: stripe.max(1),
            extent: Mutex::new(0..0),
            state: Mutex::default(),
            buffers: Buffers::default(),
        }
    }

    /// Adds a chunk; returns its address, and the position up to which the stream must be written for it. `place`
    /// allocates an address from the extent.
    pub(super) fn push(
        &self,
        bytes: Vec<u8>,
        place: impl FnOnce(&mut Range<u64>, u64) -> io::Result<u64>,
    ) -> io::Result<(u64, StreamPosition)> {
        let length = bytes.len() as u64;
        let mut extent = self.extent.lock();
        let address = place(&mut extent, length)?;
        let mut state = self.state.lock();
        if address != state.address + state.waiting {
            let all = state.waiting;
            state.cut(all);
            state.address = address;
        }
        state.waiting += length;
        if bytes.len() < OWN_BYTES {
            state.gathered.extend_from_slice(&bytes);
            self.buffers.put(bytes);
        } else {
            state.add(bytes);
        }
        Ok((address, state.position + state.waiting))
    }

    /// Allocates `bytes` that the caller writes itself.
    pub(super) fn apart(
        &self,
        bytes: u64,
        place: impl FnOnce(&mut Range<u64>, u64) -> io::Result<u64>,
    ) -> io::Result<u64> {
        let mut extent = self.extent.lock();
        place(&mut extent, bytes.next_multiple_of(PAGE_BYTES))
    }

    /// Adds a chunk group that may be entered once the stream is written up to `position`.
    pub(super) fn enter(&self, chunk_group: ChunkGroupEntry, position: StreamPosition) {
        let mut state = self.state.lock();
        state.counted += 1;
        let number = state.counted;
        state.chunk_groups.insert((position, number), chunk_group);
    }

    /// Takes the chunk groups that may be entered now.
    pub(super) fn take_written(&self) -> Vec<ChunkGroupEntry> {
        let mut state = self.state.lock();
        let written = state.written();
        let after = state.chunk_groups.split_off(&(written, u64::MAX));
        std::mem::replace(&mut state.chunk_groups, after).into_values().collect()
    }

    /// Whether no data wait to be written.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.waiting == 0 && state.ready.is_empty()
    }

    /// Writes all complete stripes, or all waiting data.
    pub(super) fn write(&self, file: &File, all: bool) -> io::Result<()> {
        loop {
            let mut state = self.state.lock();
            let end = state.address + state.waiting;
            let end = if all { end } else { end / self.stripe * self.stripe };
            let whole = end.saturating_sub(state.address);
            state.cut(whole);
            let Some(mut batch) = state.ready.pop_front() else { return Ok(()) };
            drop(state);
            write(file, &mut batch)?;
            self.state.lock().unwritten.remove(&batch.position);
            let bytes = batch.pieces.into_iter().filter_map(|piece| Arc::into_inner(piece.bytes));
            bytes.for_each(|bytes| self.buffers.put(bytes));
        }
    }
}

/// Writes a batch; the caller keeps its pieces.
fn write(file: &File, batch: &mut WriteBatch) -> io::Result<()> {
    let mut address = batch.address;
    let mut slices: Vec<IoSlice<'_>> =
        batch.pieces.iter().map(|piece| IoSlice::new(&piece.bytes[piece.range.clone()])).collect();
    let mut slices = &mut slices[..];
    while !slices.is_empty() {
        let some = slices.len().min(PIECES_MAX);
        match rustix::io::pwritev(file, &slices[..some], address) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                address += count as u64;
                IoSlice::advance_slices(&mut slices, count);
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}
