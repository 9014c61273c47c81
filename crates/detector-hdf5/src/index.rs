//! Chunk indexes: the addresses of a dataset's chunks. The kind of index follows from the dataset's shape:
//! a fixed array without unlimited dimensions if the chunks are few, an extensible array with one unlimited
//! dimension, else a version 2 B-tree. Unfiltered datasets that are allocated as a whole have an implicit index.
//!
//! [`store`] writes an index beside the tree of objects, and later trees refer to it until it changes.

mod array;
mod btree;
mod extensible_array;
mod fixed_array;
mod map;
mod record;

pub use btree::{NODE_BYTES, NodeShape};
pub use map::{ChunkMap, FIXED_ARRAY_CHUNKS_MAX, Grid};
pub use record::{ChunkRecord, Element, IndexKind};

use super::FileImage;
use super::bytes::Block;

/// Returns the data layout message of `chunks`. An index that is not stored is written to `image`.
///
/// # Panics
/// If `kind` does not fit the grid of `chunks`; [`Grid::index_kind`] returns a fitting kind.
pub fn encode(image: &mut FileImage, kind: IndexKind, chunks: &ChunkMap) -> Vec<u8> {
    let grid = chunks.grid();
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
    match kind {
        IndexKind::Implicit { .. } => layout.byte(2),
        IndexKind::FixedArray => layout.byte(3).byte(fixed_array::PAGE_BITS),
        IndexKind::ExtensibleArray => layout.byte(4).bytes(&extensible_array::PARAMETERS),
        IndexKind::BtreeV2 => {
            layout.byte(5).word(btree::NODE_BYTES as u32).byte(btree::SPLIT_PERCENT).byte(btree::MERGE_PERCENT)
        }
    };
    let address = match (kind, chunks.stored()) {
        (IndexKind::Implicit { base }, _) => {
            assert!(!chunks.is_filtered(), "chunks of an implicit index are unfiltered");
            base
        }
        (_, Some(stored)) => stored.start,
        (_, None) => write(image, kind, chunks),
    };
    layout.long(address);
    layout.into_bytes()
}

/// Writes an index as a whole, apart from stored nodes of a B-tree, and returns its address.
fn write(image: &mut FileImage, kind: IndexKind, chunks: &ChunkMap) -> u64 {
    match kind {
        IndexKind::Implicit { base } => base,
        IndexKind::FixedArray => fixed_array::encode(image, &chunks.element(), chunks),
        IndexKind::ExtensibleArray => extensible_array::encode(image, &chunks.element(), chunks),
        IndexKind::BtreeV2 => {
            let header = image.reserve(btree::HEADER_BYTES);
            let bytes = chunks.tree_header(&mut |node| image.append(node));
            image.fill(header, &bytes);
            header
        }
    }
}

/// Bytes that [`store`] appends at most.
pub fn changed_bytes(kind: IndexKind, chunks: &ChunkMap) -> u64 {
    const ALIGN: u64 = 8;
    match (kind, chunks.stored()) {
        (IndexKind::Implicit { .. }, _) | (_, Some(_)) => 0,
        (IndexKind::BtreeV2, None) => ALIGN + chunks.changed_node_bytes() + btree::HEADER_BYTES as u64,
        (_, None) => {
            // The length does not depend on the address.
            let mut image = FileImage::new(0);
            write(&mut image, kind, chunks);
            ALIGN + image.end()
        }
    }
}

/// Appends the changed parts of the index to `block`, whose first byte goes to the file offset `base`, and remembers
/// where they lie.
pub fn store(kind: IndexKind, chunks: &mut ChunkMap, base: u64, block: &mut Vec<u8>) {
    if matches!(kind, IndexKind::Implicit { .. }) || chunks.stored().is_some() {
        return;
    }
    let mut image = FileImage::new((base + block.len() as u64).next_multiple_of(8));
    if kind == IndexKind::BtreeV2 {
        chunks.store_nodes(&mut |node| image.append(node));
    }
    let address = write(&mut image, kind, chunks);
    // A B-tree is superseded node by node.
    let own = if kind == IndexKind::BtreeV2 { address } else { image.base() };
    chunks.set_stored(own..image.end());
    block.resize((image.base() - base) as usize, 0);
    block.extend(image.into_bytes());
}
