//! The bytes of a commit outside its tree: what changed since the commit before.

use std::ops::Range;
use varve_detector_hdf5::{ChunkMap, ChunkRecord, IndexKind, index};

/// Alignment of all blocks.
pub const ALIGN: u64 = 8;

#[derive(Debug)]
pub struct CommitData {
    base: u64,
    /// Goes to the file offset that was given.
    pub block: Vec<u8>,
    /// Offset and bytes of rows that are written to chunks of the commit before. Its readers do not look at them, because
    /// they lie behind the end of its datasets.
    pub in_place: Vec<(u64, Vec<u8>)>,
    /// Parts of the file that only earlier commits refer to.
    pub superseded: Vec<Range<u64>>,
}

impl CommitData {
    pub fn new(base: u64) -> CommitData {
        CommitData { base, block: Vec::new(), in_place: Vec::new(), superseded: Vec::new() }
    }

    /// Appends a block and returns its address.
    pub fn append(&mut self, bytes: &[u8]) -> u64 {
        self.block.resize(self.block.len().next_multiple_of(ALIGN as usize), 0);
        let address = self.base + self.block.len() as u64;
        self.block.extend_from_slice(bytes);
        address
    }

    /// Appends the changed parts of an index.
    pub fn append_index(&mut self, kind: IndexKind, chunks: &mut ChunkMap) {
        index::store(kind, chunks, self.base, &mut self.block);
        self.superseded.extend(chunks.take_superseded().into_iter().map(aligned));
    }

    /// Notes that the chunk at `record` is replaced by another one.
    pub fn supersede(&mut self, record: &ChunkRecord) {
        self.superseded.push(aligned(record.address..record.address + record.size));
    }
}

/// A block with the bytes up to the next one, so that adjacent blocks merge when they are free.
fn aligned(block: Range<u64>) -> Range<u64> {
    block.start..block.end.next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_detector_hdf5::Grid;

    /// Adjacent superseded blocks have no bytes between them, so that their space merges.
    #[test]
    fn superseded_blocks_include_their_padding() {
        let mut chunks = ChunkMap::new(Grid::new(vec![100], vec![Some(100)], vec![1], 8), true);
        let mut superseded = Vec::new();
        for number in 0..3 {
            let mut data = CommitData::new(4096 * (number + 1));
            data.append(&[0; 8]);
            chunks.set(&[number], ChunkRecord { address: 1 << 20, size: 5, mask: 0 });
            data.append_index(chunks.grid().index_kind(), &mut chunks);
            assert_ne!(data.block.len() % ALIGN as usize, 0, "an index that needs padding");
            superseded.extend(data.superseded);
        }
        assert_eq!(superseded.len(), 2);
        assert!(superseded.iter().all(|block| block.start % ALIGN == 0 && block.end % ALIGN == 0), "{superseded:?}");
    }
}
