//! The version 2 B-tree (specification III.A.2) with records of type 10 (unfiltered chunks) and 11 (filtered chunks).
//! The whole tree is built from sorted records.

use super::map::ChunkMap;
use super::record::{ChunkRecord, Element};
use crate::bytes::Block;
use crate::{FileImage, UNDEFINED};

/// The HDF5 library's values.
pub const NODE_BYTES: usize = 2048;
pub const SPLIT_PERCENT: u8 = 100;
pub const MERGE_PERCENT: u8 = 40;
/// Bytes of a node's signature, version, type and checksum.
const NODE_AROUND: usize = 10;

type Record<'a> = (&'a [u64], &'a ChunkRecord);

/// Capacity of a node at one level; level 0 are the leaves.
struct BtreeLevel {
    records_max: u64,
    /// Capacity of the whole subtree.
    total_max: u64,
    /// Width of a subtree's total record count; 0 for leaves, whose own count is the total.
    total_width: usize,
}

/// A written subtree.
struct Subtree {
    address: u64,
    records: u64,
    total: u64,
}

struct BtreeWriter<'a> {
    image: &'a mut FileImage,
    element: &'a Element,
    kind: u8,
    record_bytes: usize,
    levels: Vec<BtreeLevel>,
}

pub fn encode(image: &mut FileImage, element: &Element, chunks: &ChunkMap) -> u64 {
    const HEADER: usize = 38;
    let records = chunks.tree();
    let header = image.reserve(HEADER);
    let kind = if element.filtered { 11 } else { 10 };
    let record_bytes = element.length() + 8 * chunks.grid().rank();
    let levels = levels(record_bytes, records.len() as u64);
    let depth = levels.len() - 1;
    let mut writer = BtreeWriter { image, element, kind, record_bytes, levels };
    let root = if records.is_empty() {
        Subtree { address: UNDEFINED, records: 0, total: 0 }
    } else {
        writer.node(&records, depth)
    };
    let mut bytes = Block::signed(b"BTHD", 0);
    bytes.byte(kind).word(NODE_BYTES as u32).short(record_bytes as u16).short(depth as u16);
    bytes.byte(SPLIT_PERCENT).byte(MERGE_PERCENT).long(root.address).short(root.records as u16).long(root.total);
    let bytes = bytes.sealed();
    assert_eq!(bytes.len(), HEADER, "a B-tree's header has 38 bytes");
    image.fill(header, &bytes);
    header
}

fn width(limit: u64) -> usize {
    limit.max(1).ilog2() as usize / 8 + 1
}

/// The levels that a tree of `count` records needs.
fn levels(record_bytes: usize, count: u64) -> Vec<BtreeLevel> {
    let leaf_max = ((NODE_BYTES - NODE_AROUND) / record_bytes) as u64;
    let mut levels = vec![BtreeLevel { records_max: leaf_max, total_max: leaf_max, total_width: 0 }];
    while levels[levels.len() - 1].total_max < count {
        let below = &levels[levels.len() - 1];
        let pointer = 8 + width(leaf_max) + below.total_width;
        let records_max = ((NODE_BYTES - NODE_AROUND - pointer) / (record_bytes + pointer)) as u64;
        let total_max = (records_max + 1) * below.total_max + records_max;
        levels.push(BtreeLevel { records_max, total_max, total_width: width(total_max) });
    }
    levels
}

impl BtreeWriter<'_> {
    fn record(&self, block: &mut Block, (coordinates, record): &Record<'_>) {
        self.element.put(block, record);
        for coordinate in *coordinates {
            block.long(*coordinate);
        }
    }

    fn node(&mut self, records: &[Record<'_>], level: usize) -> Subtree {
        let mut block = Block::signed(if level == 0 { b"BTLF" } else { b"BTIN" }, 0);
        block.byte(self.kind);
        let own = if level == 0 {
            for record in records {
                self.record(&mut block, record);
            }
            records.len() as u64
        } else {
            self.internal(&mut block, records, level)
        };
        assert!(own <= self.levels[level].records_max, "a node holds what fits");
        // All nodes have the same size; the checksum follows the used part.
        let mut bytes = block.sealed();
        bytes.resize(NODE_BYTES, 0);
        Subtree { address: self.image.append(&bytes), records: own, total: records.len() as u64 }
    }

    /// Spreads `records` evenly over children and separators: a child, a record of this node, a child, …
    fn internal(&mut self, block: &mut Block, records: &[Record<'_>], level: usize) -> u64 {
        let count = records.len() as u64;
        let children_count = (count + 1).div_ceil(self.levels[level - 1].total_max + 1).max(2);
        let in_children = count - (children_count - 1);
        let mut children = Vec::new();
        let mut separators = Vec::new();
        let mut rest = records;
        for number in 0..children_count {
            let share = in_children / children_count + u64::from(number < in_children % children_count);
            let (mine, after) = rest.split_at(share as usize);
            children.push(self.node(mine, level - 1));
            rest = after;
            if let Some((separator, after)) = rest.split_first() {
                separators.push(separator);
                rest = after;
            }
        }
        for separator in &separators {
            self.record(block, separator);
        }
        let (records_width, total_width) = (width(self.levels[0].records_max), self.levels[level - 1].total_width);
        for child in &children {
            block.long(child.address).number(child.records, records_width);
            if total_width > 0 {
                block.number(child.total, total_width);
            }
        }
        debug_assert!(self.record_bytes > 0 && rest.is_empty());
        separators.len() as u64
    }
}
