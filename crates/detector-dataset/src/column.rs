//! A growing dataset with one value per frame: status, times, scalars. The values are in memory. In the file they lie
//! in chunks; a commit writes only changed chunks, each to a new address, so that readers of the previous commit keep
//! theirs.

use std::collections::BTreeSet;
use varve_detector_hdf5::{Attribute, ChunkMap, ChunkRecord, Dataset, Datatype, Grid, Storage};

/// Rows per chunk. A commit rewrites about one chunk per column; the index has one element per chunk.
pub const CHUNK_ROWS: u64 = 1024;
/// Alignment of chunks.
const ALIGN: u64 = 8;

#[derive(Debug)]
pub struct Column {
    datatype: Datatype,
    /// Fill value of one row.
    fill: Vec<u8>,
    data: Vec<u8>,
    chunks: ChunkMap,
    /// Chunks that changed since they were last stored.
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

    /// A column with several elements per row; missing elements are 0.
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

    /// The element of a row, or the fill value if none was set.
    pub fn get(&self, row: u64) -> &[u8] {
        self.stored(row).unwrap_or(&self.fill)
    }

    /// Whether a row differs from the fill value.
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

    /// Extends the dataset to at least `rows` rows.
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

    /// Upper limit for the bytes that [`Column::store`] appends.
    pub fn changed_bytes(&self) -> u64 {
        self.changed.len() as u64 * self.chunk_bytes().next_multiple_of(ALIGN)
    }

    /// Appends the changed chunks to `block`, whose first byte goes to file offset `base`.
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
