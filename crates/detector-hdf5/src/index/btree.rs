//! The version 2 B-tree (specification III.A.2) with records of type 10 (unfiltered chunks) and 11 (filtered chunks).
//!
//! The tree is persistent: a stored node never changes. A new record gives new nodes on the path to the root, and all
//! other nodes keep their addresses. A commit therefore writes a few nodes, whatever the number of chunks. This is the
//! only index of the format that allows it: blocks of the arrays have the address of their header, nodes do not.

use super::record::{ChunkRecord, Element};
use crate::UNDEFINED;
use crate::bytes::Block;
use std::ops::Range;

/// The HDF5 library's values.
pub const NODE_BYTES: usize = 2048;
pub const SPLIT_PERCENT: u8 = 100;
pub const MERGE_PERCENT: u8 = 40;
/// Bytes of the tree's header.
pub const HEADER_BYTES: usize = 38;
/// Bytes of a node's signature, version, type and checksum.
const NODE_AROUND: usize = 10;
/// Limit for the height: more records than any file has.
const LEVELS_MAX: usize = 12;

/// Capacity of a node at one level; level 0 are the leaves.
#[derive(Clone, Copy, Debug)]
struct BtreeLevel {
    records_max: u64,
    /// Width of a subtree's total record count; 0 for leaves, whose own count is the total.
    total_width: usize,
}

/// The capacities of nodes, which follow from the size of a record.
#[derive(Clone, Debug)]
pub struct NodeShape {
    levels: Vec<BtreeLevel>,
}

impl NodeShape {
    pub fn new(element: &Element, rank: usize) -> NodeShape {
        let record_bytes = record_bytes(element, rank);
        let leaf_max = ((NODE_BYTES - NODE_AROUND) / record_bytes) as u64;
        let mut levels = vec![BtreeLevel { records_max: leaf_max, total_width: 0 }];
        let mut total_max = leaf_max;
        while levels.len() < LEVELS_MAX {
            let below = &levels[levels.len() - 1];
            let pointer = 8 + width(leaf_max) + below.total_width;
            let records_max = ((NODE_BYTES - NODE_AROUND - pointer) / (record_bytes + pointer)) as u64;
            total_max = (records_max + 1).saturating_mul(total_max).saturating_add(records_max);
            levels.push(BtreeLevel { records_max, total_width: width(total_max) });
        }
        NodeShape { levels }
    }

    /// Capacity of a leaf.
    pub fn leaf_records(&self) -> u64 {
        self.levels[0].records_max
    }

    /// Upper limit for the number of levels of a tree with `records` records: all nodes but the root are half full, or
    /// are adjacent to a full one.
    pub fn levels_max(&self, records: u64) -> u64 {
        let mut nodes = 4 * records / self.levels[0].records_max + 1;
        let mut levels = 1;
        for level in &self.levels[1..] {
            if nodes <= 1 {
                break;
            }
            nodes = 4 * nodes / level.records_max + 1;
            levels += 1;
        }
        levels + 1
    }
}

fn width(limit: u64) -> usize {
    limit.max(1).ilog2() as usize / 8 + 1
}

fn record_bytes(element: &Element, rank: usize) -> usize {
    element.length() + 8 * rank
}

#[derive(Clone, Debug)]
struct Node<K> {
    records: Vec<(K, ChunkRecord)>,
    /// One more than records; none in a leaf.
    children: Vec<usize>,
    /// Records of the whole subtree.
    total: u64,
    /// Address of the node in the file; `None` if it changed since it was stored.
    stored: Option<u64>,
}

/// The outcome of setting a record in a subtree.
struct Change<K> {
    old: Option<ChunkRecord>,
    /// Whether the subtree differs from before.
    changed: bool,
    /// The subtree was split: a separator, and the new node behind it.
    split: Option<((K, ChunkRecord), usize)>,
}

/// Chunks sorted by their key.
#[derive(Clone, Debug)]
pub struct Btree<K> {
    shape: NodeShape,
    nodes: Vec<Node<K>>,
    root: usize,
    /// Level of the root.
    depth: usize,
    /// Nodes that are not stored.
    dirty: u64,
    /// Nodes in the file that the tree no longer refers to.
    superseded: Vec<Range<u64>>,
}

impl<K: Ord + Clone> Btree<K> {
    pub fn new(element: &Element, rank: usize) -> Btree<K> {
        let leaf = Node { records: Vec::new(), children: Vec::new(), total: 0, stored: None };
        let shape = NodeShape::new(element, rank);
        Btree { shape, nodes: vec![leaf], root: 0, depth: 0, dirty: 1, superseded: Vec::new() }
    }

    pub fn get(&self, key: &K) -> Option<ChunkRecord> {
        let mut node = &self.nodes[self.root];
        loop {
            match node.records.binary_search_by(|(known, _)| known.cmp(key)) {
                Ok(at) => return Some(node.records[at].1),
                Err(_) if node.children.is_empty() => return None,
                Err(at) => node = &self.nodes[node.children[at]],
            }
        }
    }

    /// Sets one record and returns the previous one.
    pub fn set(&mut self, key: K, record: ChunkRecord) -> Option<ChunkRecord> {
        let Change { old, split, .. } = self.insert(self.root, self.depth, key, record);
        if let Some((separator, right)) = split {
            let total = self.nodes[self.root].total + self.nodes[right].total + 1;
            let root = Node { records: vec![separator], children: vec![self.root, right], total, stored: None };
            self.root = self.add(root);
            self.depth += 1;
        }
        old
    }

    fn add(&mut self, node: Node<K>) -> usize {
        self.nodes.push(node);
        self.dirty += 1;
        self.nodes.len() - 1
    }

    fn touch(&mut self, at: usize) {
        if let Some(address) = self.nodes[at].stored.take() {
            self.superseded.push(address..address + NODE_BYTES as u64);
            self.dirty += 1;
        }
    }

    fn insert(&mut self, at: usize, level: usize, key: K, record: ChunkRecord) -> Change<K> {
        let node = &mut self.nodes[at];
        let place = match node.records.binary_search_by(|(known, _)| known.cmp(&key)) {
            Ok(place) => {
                let old = std::mem::replace(&mut node.records[place].1, record);
                let changed = old != record;
                if changed {
                    self.touch(at);
                }
                return Change { old: Some(old), changed, split: None };
            }
            Err(place) => place,
        };
        if level == 0 {
            node.records.insert(place, (key, record));
            node.total += 1;
            self.touch(at);
            return Change { old: None, changed: true, split: self.split(at, level, place) };
        }
        let child = node.children[place];
        let Change { old, changed, split } = self.insert(child, level - 1, key, record);
        if changed {
            self.touch(at);
        }
        let node = &mut self.nodes[at];
        node.total += u64::from(old.is_none());
        let Some((separator, right)) = split else { return Change { old, changed, split: None } };
        node.records.insert(place, separator);
        node.children.insert(place + 1, right);
        Change { old, changed, split: self.split(at, level, place) }
    }

    /// Splits a node that has one record too many, the last of which came to `place`.
    fn split(&mut self, at: usize, level: usize, place: usize) -> Option<((K, ChunkRecord), usize)> {
        let node = &self.nodes[at];
        let count = node.records.len();
        if count as u64 <= self.shape.levels[level].records_max {
            return None;
        }
        // Chunks mostly come in order. A node split at its end stays full.
        let middle = if place + 1 == count { count - 2 } else { count / 2 };
        let total = |tree: &Btree<K>, node: &Node<K>| {
            node.records.len() as u64 + node.children.iter().map(|child| tree.nodes[*child].total).sum::<u64>()
        };
        let node = &mut self.nodes[at];
        let records = node.records.split_off(middle + 1);
        let separator = node.records.pop().expect("a node with one record too many has some");
        let children = if level == 0 { Vec::new() } else { node.children.split_off(middle + 1) };
        let mut right = Node { records, children, total: 0, stored: None };
        right.total = total(self, &right);
        self.nodes[at].total -= right.total + 1;
        Some((separator, self.add(right)))
    }

    /// Bytes that [`Btree::store`] writes.
    pub fn changed_bytes(&self) -> u64 {
        if self.is_empty() { 0 } else { self.dirty * NODE_BYTES as u64 }
    }

    fn is_empty(&self) -> bool {
        self.nodes[self.root].total == 0
    }

    /// Appends the changed nodes by `append`, which returns the address of a block, and remembers their addresses.
    pub fn store(&mut self, format: &RecordFormat<'_, K>, append: &mut dyn FnMut(&[u8]) -> u64) {
        let mut written = Vec::new();
        if !self.is_empty() {
            self.write(self.root, self.depth, format, append, &mut written);
        }
        for (node, address) in written {
            self.nodes[node].stored = Some(address);
            self.dirty -= 1;
        }
    }

    pub fn present(&self) -> impl Iterator<Item = &ChunkRecord> {
        self.nodes.iter().flat_map(|node| &node.records).map(|(_, record)| record).filter(|record| !record.is_absent())
    }

    /// All present records, to be changed. No node is stored any more.
    pub fn present_mut(&mut self) -> impl Iterator<Item = &mut ChunkRecord> {
        self.dirty = self.nodes.len() as u64;
        let records = self.nodes.iter_mut().flat_map(|node| {
            node.stored = None;
            &mut node.records
        });
        records.map(|(_, record)| record).filter(|record| !record.is_absent())
    }

    /// Bytes of all nodes.
    pub fn bytes(&self) -> u64 {
        self.nodes.len() as u64 * NODE_BYTES as u64
    }

    /// Takes the nodes that no longer belong to the tree.
    pub fn take_superseded(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.superseded)
    }

    /// The header of the tree. Nodes that are not stored are appended first.
    pub fn header(&self, format: &RecordFormat<'_, K>, append: &mut dyn FnMut(&[u8]) -> u64) -> Vec<u8> {
        let root = match self.is_empty() {
            true => UNDEFINED,
            false => self.write(self.root, self.depth, format, append, &mut Vec::new()),
        };
        let node = &self.nodes[self.root];
        let mut bytes = Block::signed(b"BTHD", 0);
        bytes.byte(format.kind()).word(NODE_BYTES as u32).short(format.bytes() as u16).short(self.depth as u16);
        bytes.byte(SPLIT_PERCENT).byte(MERGE_PERCENT).long(root).short(node.records.len() as u16).long(node.total);
        let bytes = bytes.sealed();
        assert_eq!(bytes.len(), HEADER_BYTES, "a B-tree's header has 38 bytes");
        bytes
    }

    /// Writes the nodes of a subtree that are not stored, children first, and returns the address of its top node.
    fn write(
        &self,
        at: usize,
        level: usize,
        format: &RecordFormat<'_, K>,
        append: &mut dyn FnMut(&[u8]) -> u64,
        written: &mut Vec<(usize, u64)>,
    ) -> u64 {
        let node = &self.nodes[at];
        if let Some(address) = node.stored {
            return address;
        }
        let mut block = Block::signed(if level == 0 { b"BTLF" } else { b"BTIN" }, 0);
        block.byte(format.kind());
        for (key, record) in &node.records {
            format.put(&mut block, key, record);
        }
        for child in &node.children {
            let address = self.write(*child, level - 1, format, append, written);
            let child = &self.nodes[*child];
            block.long(address).number(child.records.len() as u64, width(self.shape.leaf_records()));
            let total_width = self.shape.levels[level - 1].total_width;
            if total_width > 0 {
                block.number(child.total, total_width);
            }
        }
        // All nodes have the same size; the checksum follows the used part.
        let mut bytes = block.sealed();
        assert!(bytes.len() <= NODE_BYTES, "a node holds what fits");
        bytes.resize(NODE_BYTES, 0);
        let address = append(&bytes);
        written.push((at, address));
        address
    }
}

/// The form of a record: the element of an index, then the chunk's coordinates.
pub struct RecordFormat<'a, K> {
    pub element: Element,
    pub rank: usize,
    pub coordinates: &'a dyn Fn(&K) -> Vec<u64>,
}

impl<K> RecordFormat<'_, K> {
    fn kind(&self) -> u8 {
        if self.element.filtered { 11 } else { 10 }
    }

    fn bytes(&self) -> usize {
        record_bytes(&self.element, self.rank)
    }

    fn put(&self, block: &mut Block, key: &K, record: &ChunkRecord) {
        self.element.put(block, record);
        for coordinate in (self.coordinates)(key) {
            block.long(coordinate);
        }
    }
}

#[cfg(test)]
mod tests;
