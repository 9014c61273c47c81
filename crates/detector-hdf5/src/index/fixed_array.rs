//! The fixed array (specification VII.C): a header and one data block with an element for every possible chunk of the
//! dataset. Above 1,024 elements the data block is divided into pages. A page without a chunk is not written, and its
//! bit is clear.

use super::array::Array;
use super::map::ChunkMap;
use super::record::Element;
use crate::bytes::Block;
use crate::{FileImage, UNDEFINED};

/// The HDF5 library's value.
pub const PAGE_BITS: u8 = 10;
const PAGE_ELEMENTS: u64 = 1 << PAGE_BITS;
const CHECKSUM: usize = 4;

pub fn encode(image: &mut FileImage, element: &Element, chunks: &ChunkMap) -> u64 {
    let count: u64 =
        chunks.grid().chunks_max().iter().map(|count| count.expect("a fixed array has no open side")).product();
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
    let mut prefix = Block::signed(b"FADB", 0);
    prefix.byte(element.client()).long(header);
    if count <= PAGE_ELEMENTS {
        elements(&mut prefix, element, records, 0, count);
        return image.append(&prefix.sealed());
    }
    let pages = count.div_ceil(PAGE_ELEMENTS);
    let present = |page: &u64| records.any(page * PAGE_ELEMENTS, PAGE_ELEMENTS);
    let mut initialised = vec![0_u8; pages.div_ceil(8) as usize];
    for page in (0..pages).filter(present) {
        initialised[page as usize / 8] |= 0x80 >> (page % 8);
    }
    prefix.bytes(&initialised);
    let prefix = prefix.sealed();
    let page_bytes = PAGE_ELEMENTS as usize * element.length() + CHECKSUM;
    let last_elements = count - (pages - 1) * PAGE_ELEMENTS;
    let last_bytes = last_elements as usize * element.length() + CHECKSUM;
    let address = image.reserve(prefix.len() + (pages as usize - 1) * page_bytes + last_bytes);
    image.fill(address, &prefix);
    for page in (0..pages).filter(present) {
        let first = page * PAGE_ELEMENTS;
        let mut bytes = Block::new();
        elements(&mut bytes, element, records, first, (count - first).min(PAGE_ELEMENTS));
        image.fill(address + prefix.len() as u64 + page * page_bytes as u64, &bytes.sealed());
    }
    address
}

/// Appends `count` elements from number `first` on.
pub(super) fn elements(block: &mut Block, element: &Element, records: &Array, first: u64, count: u64) {
    records.run(first, count).for_each(|record| element.put(block, &record));
}
