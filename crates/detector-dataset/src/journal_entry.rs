//! Entries of a run's journal: what has been written, and where. `formats/detector-journal.md` has the bytes.

use crate::dataset_spec::{DatasetSpec, Scalar, ScalarKind};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use varve_detector_hdf5::UNDEFINED;

/// Upper limit for a record, which describes a frame, a chunk group, or a row of scalars. A longer length field is
/// damage, and no memory is allocated for it. A run whose records could be longer does not start.
pub const RECORD_BYTES_MAX: usize = 64 << 20;

/// One event of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum JournalEntry {
    /// All chunks of a chunk group are in the file.
    #[serde(rename = "Slab")]
    ChunkGroup(ChunkGroupEntry),
    /// The first `entries` entries of the journal, counting these marks, have been synced together with the chunks that
    /// they refer to.
    Durable { entries: u64, time: u64 },
    /// Scalars of one frame: column and value.
    Scalars { frame: u64, values: Vec<(u32, Scalar)> },
    /// The frame was received again.
    Duplicate { frame: u64 },
    /// The frame was received incomplete.
    Damaged { frame: u64 },
    /// One more column of scalars.
    Column { name: String, kind: ScalarKind },
    /// Other processes may write to unused space below `end`, even after the process that appended this entry has died.
    /// Each journal begins with such an entry, which shows that its writer records grants.
    Granted { end: u64 },
}

/// The frames of a chunk group; usually one frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkGroupEntry {
    /// Number of the chunk group, row-major over the scan in chunks.
    #[serde(rename = "slab")]
    pub chunk_group: u64,
    /// Number of the writer within the run. Reports of a writer that was given up are no longer accepted.
    pub epoch: u32,
    /// Whether this entry replaces an earlier one of the same writer with fewer frames or regions.
    pub again: bool,
    pub frames: Vec<FrameEntry>,
    /// Row-major within a frame. The address of a chunk without data is [`varve_detector_hdf5::UNDEFINED`].
    pub chunks: Vec<ChunkEntry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameEntry {
    pub number: u64,
    /// Times: detector, received, compressed, written.
    pub times: [u64; 4],
    /// Sources whose regions are missing.
    pub missing: Vec<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkEntry {
    pub address: u64,
    pub size: u64,
    pub mask: u32,
    /// XXH3 of the stored bytes.
    pub checksum: u64,
}

impl ChunkEntry {
    /// The chunk's bytes in the file.
    pub fn range(&self) -> Range<u64> {
        self.address..self.address.saturating_add(self.size)
    }

    /// Whether the index can record this chunk.
    pub fn fits(&self, description: &DatasetSpec) -> bool {
        self.address == UNDEFINED && self.size == 0 || description.takes_chunk(self.size)
    }
}

impl ChunkGroupEntry {
    /// The chunks with data.
    pub fn stored(&self) -> impl Iterator<Item = &ChunkEntry> {
        self.chunks.iter().filter(|chunk| chunk.address != UNDEFINED)
    }

    /// Whether the entry is valid for a run with this spec: its frames belong to this chunk group, the number of chunks
    /// is right, and the index can record all of them.
    pub fn fits(&self, description: &DatasetSpec) -> bool {
        let lies = |frame: &FrameEntry| description.chunk_group_of(frame.number).0 == self.chunk_group;
        self.frames.first().is_some_and(|frame| description.takes_frame(frame.number))
            && self.frames.iter().all(lies)
            && self.chunks.len() as u64 == description.chunks_per_frame()
            && self.chunks.iter().all(|chunk| chunk.fits(description))
    }

    /// Upper limit for the payload of such a record, for a run with this spec.
    pub fn record_bytes_max(description: &DatasetSpec) -> u64 {
        // Variant, chunk group, epoch, `again`, and the two lengths.
        const AROUND: u64 = 1 + 10 + 5 + 1 + 10 + 10;
        // Frame number and times.
        const FRAME: u64 = 10 + 4 * 10;
        const CHUNK: u64 = 10 + 10 + 5 + 10;
        // A length, and the numbers of missing sources, all below 2^14. A received frame of one source misses none.
        let missing = match description.sources.len() as u64 {
            0 | 1 => 1,
            sources => 2 + 2 * sources,
        };
        let frames = description.chunk_group_frames().saturating_mul(FRAME + missing);
        frames.saturating_add(description.chunks_per_frame().saturating_mul(CHUNK)).saturating_add(AROUND)
    }

    /// Total size of its chunks in the file.
    pub fn stored_bytes(&self) -> u64 {
        self.stored().fold(0, |sum, chunk| sum.saturating_add(chunk.size))
    }
}

impl JournalEntry {
    /// End of the last byte in the file that the entry refers to.
    pub fn end(&self) -> u64 {
        let JournalEntry::ChunkGroup(chunk_group) = self else { return 0 };
        chunk_group.stored().map(|chunk| chunk.range().end).max().unwrap_or(0)
    }
}
