//! The extensible array (specification VII.D): a header, an index block with the first elements, data blocks of
//! doubling size, and super blocks that point to the larger data blocks. Data blocks above 1,024 elements are divided
//! into pages.

use super::array::Array;
use super::fixed_array::elements;
use super::map::ChunkMap;
use super::record::Element;
use crate::bytes::Block;
use crate::{FileImage, UNDEFINED};

const BITS_MAX: u8 = 32;
const INDEX_ELEMENTS: u64 = 4;
const POINTERS_MIN: u64 = 4;
const BLOCK_ELEMENTS_MIN: u64 = 16;
const PAGE_BITS: u8 = 10;
const PAGE_ELEMENTS: u64 = 1 << PAGE_BITS;
const CHECKSUM: usize = 4;
/// Width of an offset in the array.
const OFFSET_WIDTH: usize = BITS_MAX as usize / 8;

/// Parameters in the order of the layout message; the values are the HDF5 library's.
pub const PARAMETERS: [u8; 5] =
    [BITS_MAX, INDEX_ELEMENTS as u8, POINTERS_MIN as u8, BLOCK_ELEMENTS_MIN as u8, PAGE_BITS];

/// The elements of one super block. The first few have no block of their own: the index block points to their data
/// blocks.
struct Range {
    /// Number of the first element, not counting those in the index block.
    start: u64,
    blocks: u64,
    block_elements: u64,
}

/// Number of super blocks whose data blocks the index block points to directly.
const DIRECT: usize = 2 * POINTERS_MIN.ilog2() as usize;

fn ranges() -> Vec<Range> {
    let count = 1 + usize::from(BITS_MAX) - BLOCK_ELEMENTS_MIN.ilog2() as usize;
    let mut start = 0;
    (0..count)
        .map(|number| {
            let range =
                Range { start, blocks: 1 << (number / 2), block_elements: BLOCK_ELEMENTS_MIN << number.div_ceil(2) };
            start += range.blocks * range.block_elements;
            range
        })
        .collect()
}

/// Statistics of the header.
#[derive(Default)]
struct Statistics {
    super_blocks: u64,
    super_block_bytes: u64,
    data_blocks: u64,
    data_block_bytes: u64,
    elements: u64,
}

struct ExtensibleArrayWriter<'a> {
    image: &'a mut FileImage,
    element: &'a Element,
    records: &'a Array,
    header: u64,
    statistics: Statistics,
}

pub fn encode(image: &mut FileImage, element: &Element, chunks: &ChunkMap) -> u64 {
    const HEADER: usize = 72;
    let records = chunks.array();
    let header = image.reserve(HEADER);
    let mut writer = ExtensibleArrayWriter { image, element, records, header, statistics: Statistics::default() };
    let index_block = if records.length() == 0 { UNDEFINED } else { writer.index_block() };
    let statistics = writer.statistics;
    let mut bytes = Block::signed(b"EAHD", 0);
    bytes.byte(element.client()).byte(element.length() as u8);
    bytes.bytes(&[BITS_MAX, INDEX_ELEMENTS as u8, BLOCK_ELEMENTS_MIN as u8, POINTERS_MIN as u8, PAGE_BITS]);
    bytes.long(statistics.super_blocks).long(statistics.super_block_bytes);
    bytes.long(statistics.data_blocks).long(statistics.data_block_bytes);
    bytes.long(records.length()).long(statistics.elements).long(index_block);
    let bytes = bytes.sealed();
    assert_eq!(bytes.len(), HEADER, "an extensible array's header has 72 bytes");
    image.fill(header, &bytes);
    header
}

impl ExtensibleArrayWriter<'_> {
    fn prefix(&self, signature: &[u8; 4]) -> Block {
        let mut block = Block::signed(signature, 0);
        block.byte(self.element.client()).long(self.header);
        block
    }

    /// Whether any of `count` elements from `start` on is set; elements of the index block do not count.
    fn any(&self, start: u64, count: u64) -> bool {
        self.records.any(INDEX_ELEMENTS + start, count)
    }

    fn index_block(&mut self) -> u64 {
        let mut block = self.prefix(b"EAIB");
        elements(&mut block, self.element, self.records, 0, INDEX_ELEMENTS);
        self.statistics.elements += INDEX_ELEMENTS;
        for (number, range) in ranges().iter().enumerate() {
            if number < DIRECT {
                for data_block in 0..range.blocks {
                    let address = self.data_block(range, data_block).map_or(UNDEFINED, |(address, _)| address);
                    block.long(address);
                }
            } else {
                let address = if self.any(range.start, range.blocks * range.block_elements) {
                    self.super_block(range)
                } else {
                    UNDEFINED
                };
                block.long(address);
            }
        }
        self.image.append(&block.sealed())
    }

    fn super_block(&mut self, range: &Range) -> u64 {
        let pages = if range.block_elements > PAGE_ELEMENTS { range.block_elements / PAGE_ELEMENTS } else { 0 };
        // Bits are numbered through all data blocks, although each data block adds whole bytes.
        let mut initialised = vec![0_u8; (range.blocks * pages.div_ceil(8)) as usize];
        let mut addresses = Block::new();
        for data_block in 0..range.blocks {
            match self.data_block(range, data_block) {
                None => addresses.long(UNDEFINED),
                Some((address, present)) => {
                    for page in present {
                        let bit = data_block * pages + page;
                        initialised[bit as usize / 8] |= 0x80 >> (bit % 8);
                    }
                    addresses.long(address)
                }
            };
        }
        let mut block = self.prefix(b"EASB");
        block.number(range.start, OFFSET_WIDTH).bytes(&initialised).bytes(&addresses.into_bytes());
        let bytes = block.sealed();
        self.statistics.super_blocks += 1;
        self.statistics.super_block_bytes += bytes.len() as u64;
        self.image.append(&bytes)
    }

    /// Writes one data block and returns its address and the pages present; `None` if it has no chunk.
    fn data_block(&mut self, range: &Range, number: u64) -> Option<(u64, Vec<u64>)> {
        let start = range.start + number * range.block_elements;
        if !self.any(start, range.block_elements) {
            return None;
        }
        let mut prefix = self.prefix(b"EADB");
        prefix.number(start, OFFSET_WIDTH);
        self.statistics.data_blocks += 1;
        self.statistics.elements += range.block_elements;
        let first = INDEX_ELEMENTS + start;
        if range.block_elements <= PAGE_ELEMENTS {
            elements(&mut prefix, self.element, self.records, first, range.block_elements);
            let bytes = prefix.sealed();
            self.statistics.data_block_bytes += bytes.len() as u64;
            return Some((self.image.append(&bytes), Vec::new()));
        }
        let prefix = prefix.sealed();
        let pages = range.block_elements / PAGE_ELEMENTS;
        let page_bytes = PAGE_ELEMENTS as usize * self.element.length() + CHECKSUM;
        let length = prefix.len() + pages as usize * page_bytes;
        self.statistics.data_block_bytes += length as u64;
        let address = self.image.reserve(length);
        self.image.fill(address, &prefix);
        let present: Vec<u64> =
            (0..pages).filter(|page| self.any(start + page * PAGE_ELEMENTS, PAGE_ELEMENTS)).collect();
        for page in &present {
            let mut bytes = Block::new();
            elements(&mut bytes, self.element, self.records, first + page * PAGE_ELEMENTS, PAGE_ELEMENTS);
            self.image.fill(address + prefix.len() as u64 + page * page_bytes as u64, &bytes.sealed());
        }
        Some((address, present))
    }
}
