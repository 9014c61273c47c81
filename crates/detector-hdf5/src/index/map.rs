//! The shape of a chunked dataset and the locations of its chunks.

use super::array::Array;
use super::record::{ChunkRecord, IndexKind};
use std::collections::BTreeMap;

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

    /// The kind of index that readers expect for this shape.
    pub fn index_kind(&self) -> IndexKind {
        match self.max.iter().filter(|max| max.is_none()).count() {
            0 => IndexKind::FixedArray,
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
}

/// The chunks of a dataset.
#[derive(Clone, Debug)]
pub struct ChunkMap {
    grid: Grid,
    records: ChunkRecords,
    count: u64,
}

#[derive(Clone, Debug)]
enum ChunkRecords {
    /// By number.
    Array(Array),
    /// By coordinates.
    Tree(BTreeMap<Vec<u64>, ChunkRecord>),
}

impl ChunkMap {
    pub fn new(grid: Grid) -> ChunkMap {
        let records = match grid.index_kind() {
            IndexKind::BtreeV2 => ChunkRecords::Tree(BTreeMap::new()),
            _ => ChunkRecords::Array(Array::default()),
        };
        ChunkMap { grid, records, count: 0 }
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
            ChunkRecords::Tree(records) => records.get(coordinates).copied(),
        };
        record.filter(|record| !record.is_absent())
    }

    /// Sets one chunk and returns the previous one.
    pub fn set(&mut self, coordinates: &[u64], record: ChunkRecord) -> Option<ChunkRecord> {
        let old = match &mut self.records {
            ChunkRecords::Array(records) => records.set(self.grid.linear(coordinates), record),
            ChunkRecords::Tree(records) => records.insert(coordinates.to_vec(), record).unwrap_or(ChunkRecord::ABSENT),
        };
        self.count = self.count + u64::from(!record.is_absent()) - u64::from(!old.is_absent());
        (!old.is_absent()).then_some(old)
    }

    /// Records by number.
    pub(super) fn array(&self) -> &Array {
        match &self.records {
            ChunkRecords::Array(records) => records,
            ChunkRecords::Tree(_) => panic!("chunks with several unlimited dimensions have no numbers"),
        }
    }

    /// Present records, ordered by coordinates.
    pub(super) fn tree(&self) -> Vec<(&[u64], &ChunkRecord)> {
        match &self.records {
            ChunkRecords::Array(_) => panic!("chunks with one unlimited dimension at most are kept by number"),
            ChunkRecords::Tree(records) => {
                let present = records.iter().filter(|(_, record)| !record.is_absent());
                present.map(|(coordinates, record)| (coordinates.as_slice(), record)).collect()
            }
        }
    }
}
