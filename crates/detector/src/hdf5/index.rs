//! Chunk indexes: the addresses of a dataset's chunks. The kind of index follows from the dataset's shape by the same
//! rule as in the HDF5 library: a fixed array without unlimited dimensions, an extensible array with one, a version 2
//! B-tree with several. Unfiltered datasets that are allocated as a whole have an implicit index.

mod array;
mod btree;
mod extensible_array;
mod fixed_array;
mod map;

pub use map::{ChunkMap, Grid};

use super::FileImage;
use super::UNDEFINED;
use super::bytes::Block;

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

    fn put(&self, block: &mut Block, record: &ChunkRecord) {
        block.long(record.address);
        if self.filtered {
            block.number(record.size, self.size_width).word(record.mask);
        }
    }

    /// The client ID in the headers of arrays.
    fn client(&self) -> u8 {
        u8::from(self.filtered)
    }
}

/// Writes the index of `chunks` to `image` and returns the data layout message.
///
/// # Panics
/// If `kind` does not fit the grid of `chunks`; [`Grid::index_kind`] returns a fitting kind.
pub fn encode(image: &mut FileImage, kind: IndexKind, chunks: &ChunkMap, filtered: bool) -> Vec<u8> {
    let grid = chunks.grid();
    let element = Element::new(filtered, grid.chunk_bytes());
    let mut layout = Block::new();
    // Version 4, class "chunked", no flags.
    layout.byte(4).byte(2).byte(0).byte(grid.rank() as u8 + 1);
    let lengths: Vec<u64> = grid.chunk().iter().copied().chain([grid.element_bytes()]).collect();
    let longest = lengths.iter().copied().max().expect("there is always the element's size");
    let width = (longest.max(1).ilog2() as usize + 8) / 8;
    layout.byte(width as u8);
    for length in &lengths {
        layout.number(*length, width);
    }
    let address = match kind {
        IndexKind::Implicit { base } => {
            assert!(!filtered, "chunks of an implicit index are unfiltered");
            layout.byte(2);
            base
        }
        IndexKind::FixedArray => {
            layout.byte(3).byte(fixed_array::PAGE_BITS);
            fixed_array::encode(image, &element, chunks)
        }
        IndexKind::ExtensibleArray => {
            layout.byte(4).bytes(&extensible_array::PARAMETERS);
            extensible_array::encode(image, &element, chunks)
        }
        IndexKind::BtreeV2 => {
            layout.byte(5).word(btree::NODE_BYTES as u32).byte(btree::SPLIT_PERCENT).byte(btree::MERGE_PERCENT);
            btree::encode(image, &element, chunks)
        }
    };
    layout.long(address);
    layout.into_bytes()
}
