//! The shape of a chunked dataset and the locations of its chunks.

use super::array::Array;
use super::btree::{Btree, RecordFormat};
use super::record::{ChunkRecord, Element, IndexKind};
use std::ops::Range;

/// A larger fixed array is not used, because every commit that adds a chunk writes it as a whole. This one has no pages.
pub const FIXED_ARRAY_CHUNKS_MAX: u64 = 1 << 10;

/// Shape of a dataset and of its chunks in elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grid {
    dims: Vec<u64>,
    /// `None`: unlimited.
    max: Vec<Option<u64>>,
    chunk: Vec<u64>,
    element_bytes: u64,
}

impl Grid {
    /// # Panics
    /// If the ranks differ, a chunk has a length of 0, or a dimension is above its maximum.
    pub fn new(dims: Vec<u64>, max: Vec<Option<u64>>, chunk: Vec<u64>, element_bytes: usize) -> Grid {
        assert!(dims.len() == max.len() && dims.len() == chunk.len(), "shape, limits and chunk have one rank");
        assert!(chunk.iter().all(|length| *length > 0), "a chunk has no empty side");
        assert!(dims.iter().zip(&max).all(|(dim, max)| max.is_none_or(|max| *dim <= max)), "a shape within its limits");
        Grid { dims, max, chunk, element_bytes: element_bytes as u64 }
    }

    pub fn rank(&self) -> usize {
        self.dims.len()
    }

    pub fn dims(&self) -> &[u64] {
        &self.dims
    }

    pub fn max(&self) -> &[Option<u64>] {
        &self.max
    }

    pub fn chunk(&self) -> &[u64] {
        &self.chunk
    }

    pub fn element_bytes(&self) -> u64 {
        self.element_bytes
    }

    /// Size of an unfiltered chunk.
    pub fn chunk_bytes(&self) -> u64 {
        self.chunk.iter().product::<u64>() * self.element_bytes
    }

    /// Grows the dataset to at least this shape.
    pub fn grow(&mut self, dims: &[u64]) {
        for ((dim, new), max) in self.dims.iter_mut().zip(dims).zip(&self.max) {
            assert!(max.is_none_or(|max| *new <= max), "a shape grows within its limits");
            *dim = (*dim).max(*new);
        }
    }

    /// The kind of index for this shape. Readers take it from the file.
    pub fn index_kind(&self) -> IndexKind {
        let all = self.chunks_max().into_iter().flatten().fold(1_u64, u64::saturating_mul);
        match self.max.iter().filter(|max| max.is_none()).count() {
            0 if all <= FIXED_ARRAY_CHUNKS_MAX => IndexKind::FixedArray,
            1 => IndexKind::ExtensibleArray,
            _ => IndexKind::BtreeV2,
        }
    }

    /// Number of chunks along each dimension at its maximum; `None` where it is unlimited.
    pub fn chunks_max(&self) -> Vec<Option<u64>> {
        self.max.iter().zip(&self.chunk).map(|(max, chunk)| max.map(|max| max.div_ceil(*chunk))).collect()
    }

    /// Number of the chunk at `coordinates` (in chunks) in an array index. The order is row-major over the maximum
    /// shape; the one unlimited dimension, at any position, is the slowest. [`u64::MAX`] if the number is too large.
    ///
    /// # Panics
    /// If several dimensions are unlimited.
    pub fn linear(&self, coordinates: &[u64]) -> u64 {
        let chunks = self.chunks_max();
        let unlimited = chunks.iter().position(Option::is_none);
        let mut number = unlimited.map_or(0, |position| coordinates[position]);
        for (position, (coordinate, count)) in coordinates.iter().zip(&chunks).enumerate() {
            if Some(position) != unlimited {
                let count = count.expect("an array index has one unlimited dimension at most");
                number = number.saturating_mul(count).saturating_add(*coordinate);
            }
        }
        number
    }

    /// Coordinates (in chunks) of the chunk with this number, in a dataset without an unlimited dimension.
    fn coordinates(&self, number: u64) -> Vec<u64> {
        let mut rest = number;
        let counts = self.chunks_max().into_iter().rev();
        let mut coordinates: Vec<u64> = counts
            .map(|count| {
                let count = count.expect("a numbered tree has no unlimited dimension").max(1);
                let at = rest % count;
                rest /= count;
                at
            })
            .collect();
        coordinates.reverse();
        coordinates
    }
}

/// The chunks of a dataset.
#[derive(Clone, Debug)]
pub struct ChunkMap {
    grid: Grid,
    filtered: bool,
    records: ChunkRecords,
    count: u64,
    /// Where the index lies in the file, if it has not changed since it was stored. A B-tree's header.
    stored: Option<Range<u64>>,
    /// Parts of earlier indexes in the file.
    superseded: Vec<Range<u64>>,
}

#[derive(Clone, Debug)]
enum ChunkRecords {
    /// By number.
    Array(Array),
    /// By number, in a B-tree.
    Numbered(Btree<u64>),
    /// By coordinates.
    Tree(Btree<Vec<u64>>),
}

impl ChunkMap {
    /// `filtered`: whether the chunks pass filters.
    pub fn new(grid: Grid, filtered: bool) -> ChunkMap {
        let element = Element::new(filtered, grid.chunk_bytes());
        let records = match grid.index_kind() {
            IndexKind::BtreeV2 if grid.max.iter().all(Option::is_some) => {
                ChunkRecords::Numbered(Btree::new(&element, grid.rank()))
            }
            IndexKind::BtreeV2 => ChunkRecords::Tree(Btree::new(&element, grid.rank())),
            _ => ChunkRecords::Array(Array::default()),
        };
        ChunkMap { grid, filtered, records, count: 0, stored: None, superseded: Vec::new() }
    }

    pub fn is_filtered(&self) -> bool {
        self.filtered
    }

    /// The form of the index's elements.
    pub fn element(&self) -> Element {
        Element::new(self.filtered, self.grid.chunk_bytes())
    }

    pub fn grid(&self) -> &Grid {
        &self.grid
    }

    pub fn grow(&mut self, dims: &[u64]) {
        self.grid.grow(dims);
    }

    /// Number of chunks present.
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn get(&self, coordinates: &[u64]) -> Option<ChunkRecord> {
        let record = match &self.records {
            ChunkRecords::Array(records) => Some(records.get(self.grid.linear(coordinates))),
            ChunkRecords::Numbered(records) => records.get(&self.grid.linear(coordinates)),
            ChunkRecords::Tree(records) => records.get(&coordinates.to_vec()),
        };
        record.filter(|record| !record.is_absent())
    }

    /// Sets one chunk and returns the previous one.
    pub fn set(&mut self, coordinates: &[u64], record: ChunkRecord) -> Option<ChunkRecord> {
        // A tree has no records of chunks that never came.
        if record.is_absent() && self.get(coordinates).is_none() {
            return None;
        }
        let old = match &mut self.records {
            ChunkRecords::Array(records) => records.set(self.grid.linear(coordinates), record),
            ChunkRecords::Numbered(records) => {
                records.set(self.grid.linear(coordinates), record).unwrap_or(ChunkRecord::ABSENT)
            }
            ChunkRecords::Tree(records) => records.set(coordinates.to_vec(), record).unwrap_or(ChunkRecord::ABSENT),
        };
        if old != record {
            self.superseded.extend(self.stored.take());
        }
        self.count = self.count + u64::from(!record.is_absent()) - u64::from(!old.is_absent());
        (!old.is_absent()).then_some(old)
    }

    /// All present records, in no order.
    pub fn present(&self) -> Box<dyn Iterator<Item = &ChunkRecord> + '_> {
        match &self.records {
            ChunkRecords::Array(records) => Box::new(records.present()),
            ChunkRecords::Numbered(records) => Box::new(records.present()),
            ChunkRecords::Tree(records) => Box::new(records.present()),
        }
    }

    /// Gives every present chunk another address, in another file. The index is not stored there.
    pub fn relocate(&mut self, address: &mut dyn FnMut(&ChunkRecord) -> u64) {
        let mut moved = |record: &mut ChunkRecord| record.address = address(record);
        match &mut self.records {
            ChunkRecords::Array(records) => records.present_mut().for_each(&mut moved),
            ChunkRecords::Numbered(records) => records.present_mut().for_each(&mut moved),
            ChunkRecords::Tree(records) => records.present_mut().for_each(&mut moved),
        }
        (self.stored, self.superseded) = (None, Vec::new());
    }

    /// Bytes of the stored index and, in a B-tree, of all its nodes.
    pub fn whole_index_bytes(&self) -> u64 {
        let nodes = match &self.records {
            ChunkRecords::Array(_) => 0,
            ChunkRecords::Numbered(records) => records.bytes(),
            ChunkRecords::Tree(records) => records.bytes(),
        };
        self.index_bytes() + nodes
    }

    /// Records by number.
    pub(super) fn array(&self) -> &Array {
        match &self.records {
            ChunkRecords::Array(records) => records,
            ChunkRecords::Numbered(_) | ChunkRecords::Tree(_) => panic!("an array index has its records by number"),
        }
    }

    /// Where the index lies in the file, if it is stored.
    pub(super) fn stored(&self) -> Option<&Range<u64>> {
        self.stored.as_ref()
    }

    /// Bytes of the stored index, without the nodes of a B-tree.
    pub fn index_bytes(&self) -> u64 {
        self.stored.as_ref().map_or(0, |index| index.end - index.start)
    }

    pub(super) fn set_stored(&mut self, index: Range<u64>) {
        self.stored = Some(index);
    }

    /// Takes the parts of the file that belonged to the index and no longer do.
    pub fn take_superseded(&mut self) -> Vec<Range<u64>> {
        let mut all = std::mem::take(&mut self.superseded);
        match &mut self.records {
            ChunkRecords::Array(_) => {}
            ChunkRecords::Numbered(records) => all.extend(records.take_superseded()),
            ChunkRecords::Tree(records) => all.extend(records.take_superseded()),
        }
        all
    }

    /// Bytes of the nodes of a B-tree that are not stored.
    pub(super) fn changed_node_bytes(&self) -> u64 {
        match &self.records {
            ChunkRecords::Array(_) => 0,
            ChunkRecords::Numbered(records) => records.changed_bytes(),
            ChunkRecords::Tree(records) => records.changed_bytes(),
        }
    }

    /// Appends the nodes of a B-tree that are not stored.
    pub(super) fn store_nodes(&mut self, append: &mut dyn FnMut(&[u8]) -> u64) {
        let (element, rank, grid) = (self.element(), self.grid.rank(), &self.grid);
        match &mut self.records {
            ChunkRecords::Array(_) => {}
            ChunkRecords::Numbered(records) => {
                records
                    .store(&RecordFormat { element, rank, coordinates: &|number| grid.coordinates(*number) }, append);
            }
            ChunkRecords::Tree(records) => {
                records.store(&RecordFormat { element, rank, coordinates: &Vec::clone }, append);
            }
        }
    }

    /// The header of a B-tree, after the nodes that are not stored.
    pub(super) fn tree_header(&self, append: &mut dyn FnMut(&[u8]) -> u64) -> Vec<u8> {
        let (element, rank, grid) = (self.element(), self.grid.rank(), &self.grid);
        match &self.records {
            ChunkRecords::Array(_) => panic!("an array index is no tree"),
            ChunkRecords::Numbered(records) => records
                .header(&RecordFormat { element, rank, coordinates: &|number| grid.coordinates(*number) }, append),
            ChunkRecords::Tree(records) => {
                records.header(&RecordFormat { element, rank, coordinates: &Vec::clone }, append)
            }
        }
    }
}
