//! A growing dataset with one value per frame: status, times, scalars. The values are in memory. In the file they lie
//! in chunks. A commit writes new rows to the chunk that has room for them, because readers of the previous commit do not
//! look behind the end of its dataset. A chunk with changed rows that they may look at goes to a new address.

use crate::commit_data::{ALIGN, CommitData};
use std::collections::BTreeMap;
use std::ops::Range;
use varve_detector_hdf5::{Attribute, ChunkMap, ChunkRecord, Dataset, Datatype, Grid, Storage, index};

/// Rows per chunk; the index has one element per chunk.
pub const CHUNK_ROWS: u64 = 1024;

#[derive(Debug)]
pub struct Column {
    datatype: Datatype,
    /// Fill value of one row.
    fill: Vec<u8>,
    data: Vec<u8>,
    chunks: ChunkMap,
    /// Rows that changed since they were last stored, by chunk: the range from the first to the last of them.
    changed: BTreeMap<u64, Range<u64>>,
    /// Number of rows of the dataset when it was last stored.
    shown: u64,
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
        let chunks = ChunkMap::new(grid, false);
        Column { datatype, fill, data: Vec::new(), chunks, changed: BTreeMap::new(), shown: 0 }
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
        let rows = self.changed.entry(row / CHUNK_ROWS).or_insert(row..row + 1);
        *rows = rows.start.min(row)..rows.end.max(row + 1);
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
    fn grow(&mut self, rows: u64) {
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
        let kind = self.chunks.grid().index_kind();
        let moved = self.changed.iter().filter(|(chunk, rows)| self.open_chunk(**chunk, rows).is_none());
        let moved: Vec<u64> = moved.map(|(chunk, _)| *chunk).collect();
        if moved.is_empty() {
            return index::changed_bytes(kind, &self.chunks);
        }
        let mut chunks = self.chunks.clone();
        for chunk in &moved {
            chunks.set(&self.place(*chunk), ChunkRecord { address: 0, size: self.chunk_bytes(), mask: 0 });
        }
        moved.len() as u64 * (ALIGN + self.chunk_bytes()) + index::changed_bytes(kind, &chunks)
    }

    /// Coordinates of a chunk.
    fn place(&self, chunk: u64) -> Vec<u64> {
        let mut place = vec![0; self.chunks.grid().rank()];
        place[0] = chunk;
        place
    }

    /// The address of a chunk of the previous commit, if its readers do not look at these rows.
    fn open_chunk(&self, chunk: u64, rows: &Range<u64>) -> Option<u64> {
        let stored = self.chunks.get(&self.place(chunk)).filter(|_| rows.start >= self.shown);
        stored.map(|stored| stored.address)
    }

    /// Stores the changed rows of a dataset of at least `rows` rows.
    pub fn store(&mut self, rows: u64, out: &mut CommitData) {
        self.grow(rows);
        let width = self.fill.len();
        for (chunk, changed) in std::mem::take(&mut self.changed) {
            if let Some(address) = self.open_chunk(chunk, &changed) {
                let bytes = self.data[changed.start as usize * width..changed.end as usize * width].to_vec();
                out.in_place.push((address + (changed.start - chunk * CHUNK_ROWS) * width as u64, bytes));
                continue;
            }
            let from = (chunk * self.chunk_bytes()) as usize;
            let to = self.data.len().min(from + self.chunk_bytes() as usize);
            let mut bytes = self.data[from..to].to_vec();
            let missing = self.chunk_bytes() as usize - bytes.len();
            bytes.extend(self.fill.iter().copied().cycle().take(missing));
            let record = ChunkRecord { address: out.append(&bytes), size: self.chunk_bytes(), mask: 0 };
            if let Some(old) = self.chunks.set(&self.place(chunk), record) {
                out.supersede(&old);
            }
        }
        out.append_index(self.chunks.grid().index_kind(), &mut self.chunks);
        self.shown = self.chunks.grid().dims()[0];
    }

    /// Bytes of the stored chunks and their index.
    pub fn stored_bytes(&self) -> u64 {
        self.chunks.count() * self.chunk_bytes() + self.chunks.whole_index_bytes()
    }

    /// Forgets where the chunks lie, so that all of them are stored in another file.
    pub fn forget_stored(&mut self) {
        let rows = self.data.len() as u64 / self.row_bytes();
        for chunk in 0..rows.div_ceil(CHUNK_ROWS) {
            if self.chunks.get(&self.place(chunk)).is_some() {
                let first = chunk * CHUNK_ROWS;
                self.changed.insert(chunk, first..rows.min(first + CHUNK_ROWS));
            }
        }
        (self.chunks, self.shown) = (ChunkMap::new(self.chunks.grid().clone(), false), 0);
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
