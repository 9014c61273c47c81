//! Records of chunks, and the elements of an index.

use crate::UNDEFINED;
use crate::bytes::Block;

/// Location of one chunk in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkRecord {
    /// [`UNDEFINED`]: the chunk does not exist and reads as the fill value.
    pub address: u64,
    /// Stored size in bytes.
    pub size: u64,
    /// Bit `i` set: the chunk skipped filter `i` of the pipeline.
    pub mask: u32,
}

impl ChunkRecord {
    pub const ABSENT: ChunkRecord = ChunkRecord { address: UNDEFINED, size: 0, mask: 0 };

    pub fn is_absent(&self) -> bool {
        self.address == UNDEFINED
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexKind {
    /// Chunk `i` lies at `base + i × bytes of a chunk`. Every chunk exists. Only for unfiltered chunks.
    Implicit {
        base: u64,
    },
    FixedArray,
    ExtensibleArray,
    BtreeV2,
}

/// Size of an index element, which depends on whether chunks are filtered.
#[derive(Clone, Copy, Debug)]
pub struct Element {
    pub filtered: bool,
    /// Width of a stored size; used only if filtered.
    pub size_width: usize,
}

impl Element {
    /// `chunk_bytes` is the size of an unfiltered chunk.
    pub fn new(filtered: bool, chunk_bytes: u64) -> Element {
        // One byte more than the unfiltered size needs, because a filter may make a chunk larger.
        Element { filtered, size_width: (1 + (chunk_bytes.max(1).ilog2() as usize + 8) / 8).min(8) }
    }

    pub fn length(&self) -> usize {
        if self.filtered { 8 + self.size_width + 4 } else { 8 }
    }

    /// The largest stored size that the index can record.
    pub fn size_max(&self) -> u64 {
        if self.size_width >= 8 { u64::MAX } else { (1 << (8 * self.size_width)) - 1 }
    }

    pub(super) fn put(&self, block: &mut Block, record: &ChunkRecord) {
        block.long(record.address);
        if self.filtered {
            block.number(record.size, self.size_width).word(record.mask);
        }
    }

    /// The client ID in the headers of arrays.
    pub(super) fn client(&self) -> u8 {
        u8::from(self.filtered)
    }
}
