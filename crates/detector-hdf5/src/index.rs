//! Chunk indexes: the addresses of a dataset's chunks. The kind of index follows from the dataset's shape by the same
//! rule as in the HDF5 library: a fixed array without unlimited dimensions, an extensible array with one, a version 2
//! B-tree with several. Unfiltered datasets that are allocated as a whole have an implicit index.

mod array;
mod btree;
mod extensible_array;
mod fixed_array;
mod map;
mod record;

pub use map::{ChunkMap, Grid};
pub use record::{ChunkRecord, Element, IndexKind};

use super::FileImage;
use super::bytes::Block;

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
