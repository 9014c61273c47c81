//! The fixed array (specification VII.C): a header and one data block with an element for every possible chunk of the
//! dataset. A larger one would have pages; [`FIXED_ARRAY_CHUNKS_MAX`] rules that out.

use super::array::Array;
use super::map::{ChunkMap, FIXED_ARRAY_CHUNKS_MAX};
use super::record::Element;
use crate::bytes::Block;
use crate::{FileImage, UNDEFINED};

/// The HDF5 library's value.
pub const PAGE_BITS: u8 = 10;
const _: () = assert!(FIXED_ARRAY_CHUNKS_MAX <= 1 << PAGE_BITS, "a fixed array has no pages");

pub fn encode(image: &mut FileImage, element: &Element, chunks: &ChunkMap) -> u64 {
    let count: u64 =
        chunks.grid().chunks_max().iter().map(|count| count.expect("a fixed array has no open side")).product();
    assert!(count <= FIXED_ARRAY_CHUNKS_MAX, "a fixed array has few elements");
    const HEADER: usize = 28;
    let header = image.reserve(HEADER);
    let block = if chunks.count() == 0 { UNDEFINED } else { data_block(image, element, chunks.array(), count, header) };
    let mut bytes = Block::signed(b"FAHD", 0);
    bytes.byte(element.client()).byte(element.length() as u8).byte(PAGE_BITS).long(count).long(block);
    let bytes = bytes.sealed();
    assert_eq!(bytes.len(), HEADER, "a fixed array's header has 28 bytes");
    image.fill(header, &bytes);
    header
}

fn data_block(image: &mut FileImage, element: &Element, records: &Array, count: u64, header: u64) -> u64 {
    let mut block = Block::signed(b"FADB", 0);
    block.byte(element.client()).long(header);
    elements(&mut block, element, records, 0, count);
    image.append(&block.sealed())
}

/// Appends `count` elements from number `first` on.
pub(super) fn elements(block: &mut Block, element: &Element, records: &Array, first: u64, count: u64) {
    records.run(first, count).for_each(|record| element.put(block, &record));
}
