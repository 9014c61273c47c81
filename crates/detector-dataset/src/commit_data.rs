//! The bytes of a commit outside its tree: what changed since the commit before.

use std::ops::Range;
use varve_detector_hdf5::{ChunkMap, ChunkRecord, IndexKind, index};

/// Alignment of all blocks.
pub const ALIGN: u64 = 8;

#[derive(Debug)]
pub struct CommitData {
    base: u64,
    /// Goes to the file offset that was given.
    pub block: Vec<u8>,
    /// Offset and bytes of rows that are written to chunks of the commit before. Its readers do not look at them, because
    /// they lie behind the end of its datasets.
    pub in_place: Vec<(u64, Vec<u8>)>,
    /// Parts of the file that only earlier commits refer to.
    pub superseded: Vec<Range<u64>>,
}

impl CommitData {
    pub fn new(base: u64) -> CommitData {
        CommitData { base, block: Vec::new(), in_place: Vec::new(), superseded: Vec::new() }
    }

    /// Appends a block and returns its address.
    pub fn append(&mut self, bytes: &[u8]) -> u64 {
        self.block.resize(self.block.len().next_multiple_of(ALIGN as usize), 0);
        let address = self.base + self.block.len() as u64;
        self.block.extend_from_slice(bytes);
        address
    }

    /// Appends the changed parts of an index.
    pub fn append_index(&mut self, kind: IndexKind, chunks: &mut ChunkMap) {
        index::store(kind, chunks, self.base, &mut self.block);
        self.superseded.extend(chunks.take_superseded());
    }

    /// Notes that the chunk at `record` is replaced by another one.
    pub fn supersede(&mut self, record: &ChunkRecord) {
        self.superseded.push(record.address..record.address + record.size);
    }
}
