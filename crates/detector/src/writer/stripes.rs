//! What all threads write: chunks one after the other as they are made, in writes that end where the store's stripes end.
//! Whoever has put a stripe's last chunk there writes the stripe, and enters the chunk groups that are whole then.
//! Large chunks are written from where they are; small ones are gathered first.

use super::PipelineShared;
use super::buffers::Buffers;
use crate::allocate::PAGE_BYTES;
use crate::journal::ChunkGroupEntry;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::sync::Arc;

/// Chunks from here on are not copied.
const OWN_BYTES: usize = 64 << 10;
/// Pieces that the kernel takes in one write.
const PIECES_MAX: usize = 1024;

/// How far the stream of all chunks has come, in bytes; not an address, for the file holds other things in between.
pub(super) type StreamPosition = u64;

pub(super) struct Stripes {
    stripe: u64,
    /// What is left of an extent that a coordinator granted. Held while a chunk gets its address and its place in the
    /// stream, so that both orders are one.
    extent: Mutex<Range<u64>>,
    state: Mutex<StripeState>,
    pub buffers: Buffers,
}

#[derive(Default)]
struct StripeState {
    /// Where the first byte that waits will lie; the others follow it without a gap.
    address: u64,
    waiting: u64,
    pieces: VecDeque<ChunkPiece>,
    /// Small chunks, after all pieces.
    gathered: Vec<u8>,
    /// The stream's position at `address`.
    position: StreamPosition,
    /// Cut off from what waits, and nobody has begun to write them.
    ready: VecDeque<WriteBatch>,
    /// Positions at which batches begin that are not written yet.
    unwritten: BTreeSet<StreamPosition>,
    /// Chunk groups that are not in the journal yet, by how far the stream must be written before they may be; and by a
    /// count, for chunk groups without chunks share a position.
    chunk_groups: BTreeMap<(StreamPosition, u64), ChunkGroupEntry>,
    counted: u64,
}

/// A part of a chunk, or of several.
struct ChunkPiece {
    bytes: Arc<Vec<u8>>,
    range: Range<usize>,
}

/// What one write brings to the file.
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

    /// Cuts off the first `bytes` of what waits.
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

    /// Everything before it has been written.
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

    /// Takes a chunk as it is; answers its address, and the position that the stream must be written to.
    pub(super) fn push(&self, shared: &PipelineShared, bytes: Vec<u8>) -> io::Result<(u64, StreamPosition)> {
        let length = bytes.len() as u64;
        let mut extent = self.extent.lock();
        let address = shared.place(&mut extent, length)?;
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

    /// Sets `bytes` aside which whoever asks writes.
    pub(super) fn apart(&self, shared: &PipelineShared, bytes: u64) -> io::Result<u64> {
        let mut extent = self.extent.lock();
        shared.place(&mut extent, bytes.next_multiple_of(PAGE_BYTES))
    }

    /// A chunk group may be entered once the stream is written to `position`.
    pub(super) fn enter(&self, chunk_group: ChunkGroupEntry, position: StreamPosition) {
        let mut state = self.state.lock();
        state.counted += 1;
        let number = state.counted;
        state.chunk_groups.insert((position, number), chunk_group);
    }

    /// The chunk groups that may be entered now, each once.
    pub(super) fn take_written(&self) -> Vec<ChunkGroupEntry> {
        let mut state = self.state.lock();
        let written = state.written();
        let after = state.chunk_groups.split_off(&(written, u64::MAX));
        std::mem::replace(&mut state.chunk_groups, after).into_values().collect()
    }

    /// Whether nothing waits for somebody to write it.
    pub(super) fn is_empty(&self) -> bool {
        let state = self.state.lock();
        state.waiting == 0 && state.ready.is_empty()
    }

    /// Writes all whole stripes; or all that waits.
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

/// Writes a batch; its pieces are kept.
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
