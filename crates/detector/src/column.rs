//! One value a frame, as a dataset that grows: status, times, scalars. Kept in memory; in the file in chunks of which a
//! commit writes only those that have changed, each to a new place, so that readers of the commit before keep theirs.

use crate::hdf5::{Attribute, ChunkMap, ChunkRecord, Dataset, Datatype, Grid, Storage};
use std::collections::BTreeSet;

/// Rows of a chunk. A commit rewrites about one chunk a column; the index has an element for each.
pub const CHUNK_ROWS: u64 = 1024;
/// Blocks begin at multiples of this.
const ALIGN: u64 = 8;

#[derive(Debug)]
pub struct Column {
    datatype: Datatype,
    /// Of a row.
    fill: Vec<u8>,
    data: Vec<u8>,
    chunks: ChunkMap,
    /// Chunks that have changed since they were stored.
    changed: BTreeSet<u64>,
}

impl Column {
    /// # Panics
    /// If `fill` is not one element.
    pub fn new(datatype: Datatype, fill: Vec<u8>) -> Column {
        assert_eq!(fill.len(), datatype.size(), "a fill value is one element");
        let grid = Grid::new(vec![0], vec![None], vec![CHUNK_ROWS], datatype.size());
        Column::of(grid, datatype, fill)
    }

    /// Several elements a row, 0 where nothing came.
    pub fn wide(datatype: Datatype, elements: u64) -> Column {
        let fill = vec![0; datatype.size() * elements as usize];
        let (max, chunk) = (vec![None, Some(elements)], vec![CHUNK_ROWS, elements]);
        Column::of(Grid::new(vec![0, elements], max, chunk, datatype.size()), datatype, fill)
    }

    fn of(grid: Grid, datatype: Datatype, fill: Vec<u8>) -> Column {
        Column { datatype, fill, data: Vec::new(), chunks: ChunkMap::new(grid), changed: BTreeSet::new() }
    }

    /// # Panics
    /// If `element` is not one element.
    pub fn set(&mut self, row: u64, element: &[u8]) {
        let at = row as usize * self.fill.len();
        if self.data.len() <= at {
            let missing = row as usize + 1 - self.data.len() / self.fill.len();
            self.data.extend(self.fill.iter().copied().cycle().take(missing * self.fill.len()));
        }
        self.data[at..at + self.fill.len()].copy_from_slice(element);
        self.changed.insert(row / CHUNK_ROWS);
    }

    /// The element of a row; what never came is the fill value.
    pub fn get(&self, row: u64) -> &[u8] {
        self.stored(row).unwrap_or(&self.fill)
    }

    /// Whether anything but the fill value came for a row.
    pub fn has(&self, row: u64) -> bool {
        self.get(row) != self.fill
    }

    fn stored(&self, row: u64) -> Option<&[u8]> {
        let at = usize::try_from(row).ok()?.checked_mul(self.fill.len())?;
        self.data.get(at..at.checked_add(self.fill.len())?)
    }

    pub fn chunks(&self) -> &ChunkMap {
        &self.chunks
    }

    pub fn datatype(&self) -> &Datatype {
        &self.datatype
    }

    /// Makes the dataset at least so long.
    pub fn grow(&mut self, rows: u64) {
        let mut dims = self.chunks.grid().dims().to_vec();
        dims[0] = rows;
        self.chunks.grow(&dims);
    }

    pub fn row_bytes(&self) -> u64 {
        self.fill.len() as u64
    }

    fn chunk_bytes(&self) -> u64 {
        CHUNK_ROWS * self.row_bytes()
    }

    /// Bytes that [`Column::store`] will append at most.
    pub fn changed_bytes(&self) -> u64 {
        self.changed.len() as u64 * self.chunk_bytes().next_multiple_of(ALIGN)
    }

    /// Appends the chunks that have changed to `block`, whose first byte will lie at `base`.
    pub fn store(&mut self, base: u64, block: &mut Vec<u8>) {
        for chunk in std::mem::take(&mut self.changed) {
            block.resize(block.len().next_multiple_of(ALIGN as usize), 0);
            let address = base + block.len() as u64;
            let from = (chunk * self.chunk_bytes()) as usize;
            let to = self.data.len().min(from + self.chunk_bytes() as usize);
            block.extend_from_slice(&self.data[from..to]);
            let missing = self.chunk_bytes() as usize - (to - from);
            block.extend(self.fill.iter().copied().cycle().take(missing));
            let mut place = vec![0; self.chunks.grid().rank()];
            place[0] = chunk;
            self.chunks.set(&place, ChunkRecord { address, size: self.chunk_bytes(), mask: 0 });
        }
    }

    pub fn dataset(&self, attributes: Vec<Attribute>) -> Dataset<'_> {
        let storage = Storage::Chunked {
            datatype: self.datatype.clone(),
            chunks: &self.chunks,
            kind: self.chunks.grid().index_kind(),
            filters: Vec::new(),
            fill: Some(self.fill[..self.datatype.size()].to_vec()),
        };
        Dataset { attributes, storage }
    }
}
