//! What is known of a run's frames: the one source of a commit. Pure; entries of the journal go in, in any order.

use crate::description::Description;
use crate::frame::{FrameStatus, Times};
use crate::hdf5::{ChunkMap, ChunkRecord};
use crate::journal::{Entry, FrameEntry};
use crate::structure::Mask;

#[derive(Debug)]
pub struct Catalog {
    pub description: Description,
    pub chunks: ChunkMap,
    pub frames: Vec<FrameState>,
    /// By column, then by frame; not a number where none came.
    pub scalars: Vec<Vec<f64>>,
    /// What NXmx wants to know of the pixels.
    pub(crate) mask: Option<Mask>,
    /// When the first frame was taken, and the last.
    span: Option<(u64, u64)>,
    /// Frames that have been published, by which lateness is told.
    published: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameState {
    pub status: FrameStatus,
    pub times: Times,
}

impl FrameState {
    const MISSING: FrameState = FrameState {
        status: FrameStatus::Missing,
        times: Times { detector: 0, received: 0, compressed: 0, written: 0, durable: 0 },
    };
}

/// Frames by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counts {
    /// One past the highest number that came.
    pub frames: u64,
    pub received: u64,
    pub missing: u64,
    pub damaged: u64,
    pub duplicate: u64,
    pub late: u64,
}

impl Catalog {
    pub fn new(description: Description) -> Catalog {
        let chunks = ChunkMap::new(description.grid(0));
        let scalars = vec![Vec::new(); description.scalars.len()];
        let nxmx = description.nxmx.as_ref().filter(|nxmx| !nxmx.pixel_mask.is_empty());
        let mask = nxmx.map(|nxmx| Mask::new(&description.frame, &nxmx.pixel_mask));
        Catalog { description, chunks, frames: Vec::new(), scalars, mask, span: None, published: 0 }
    }

    /// Takes in what has been synced at `durable`; frames in `damaged` came, but their bytes are not in the file.
    pub fn apply(&mut self, entry: &Entry, durable: u64) {
        match entry {
            Entry::Frame(frame) => self.frame(frame, durable),
            Entry::Durable { .. } => {}
            Entry::Scalars { frame, values } => {
                let number = *frame as usize;
                for (column, value) in values {
                    let Some(column) = self.scalars.get_mut(*column as usize) else { continue };
                    if column.len() <= number {
                        column.resize(number + 1, f64::NAN);
                    }
                    column[number] = *value;
                }
            }
            Entry::Duplicate { frame } => {
                let state = self.state(*frame);
                if state.status != FrameStatus::Missing {
                    state.status = FrameStatus::Duplicate;
                }
            }
            Entry::Damaged { frame } => self.damage(*frame),
        }
    }

    /// Nanoseconds since 1970 at which the first frame was taken, and the last; received, where the detector does not
    /// say. `None` before there is one.
    pub fn span(&self) -> Option<(u64, u64)> {
        self.span
    }

    fn state(&mut self, number: u64) -> &mut FrameState {
        let number = number as usize;
        if self.frames.len() <= number {
            self.frames.resize(number + 1, FrameState::MISSING);
            self.chunks.grow(self.description.grid(number as u64 + 1).dims());
        }
        &mut self.frames[number]
    }

    fn frame(&mut self, entry: &FrameEntry, durable: u64) {
        let late = entry.number < self.published;
        let state = self.state(entry.number);
        if !matches!(state.status, FrameStatus::Missing | FrameStatus::Damaged) {
            state.status = FrameStatus::Duplicate;
            return;
        }
        let [detector, received, compressed, written] = entry.times;
        state.status = if late { FrameStatus::Late } else { FrameStatus::Received };
        state.times = Times { detector, received, compressed, written, durable };
        let taken = if detector == 0 { received } else { detector };
        let (first, last) = self.span.unwrap_or((taken, taken));
        self.span = Some((first.min(taken), last.max(taken)));
        let counts = self.description.chunk_counts();
        for (number, chunk) in entry.chunks.iter().enumerate() {
            let mut coordinates = self.description.place(entry.number);
            coordinates.extend(unravel(number as u64, &counts));
            let record = ChunkRecord { address: chunk.address, size: chunk.size, mask: chunk.mask };
            self.chunks.set(&coordinates, record);
        }
    }

    /// The frame came, but what lies in the file is not it.
    pub fn damage(&mut self, number: u64) {
        let state = self.state(number);
        if state.status == FrameStatus::Missing {
            state.status = FrameStatus::Damaged;
        }
    }

    /// All frames so far have been published.
    pub fn publish(&mut self) {
        self.published = self.frames.len() as u64;
    }

    pub fn counts(&self) -> Counts {
        let mut counts = Counts { frames: self.frames.len() as u64, ..Counts::default() };
        for state in &self.frames {
            match state.status {
                FrameStatus::Missing => counts.missing += 1,
                FrameStatus::Received => counts.received += 1,
                FrameStatus::Damaged => counts.damaged += 1,
                FrameStatus::Duplicate => counts.duplicate += 1,
                FrameStatus::Late => counts.late += 1,
            }
        }
        counts
    }
}

/// Coordinates of `number` in a row-major array with these sides.
pub fn unravel(mut number: u64, sides: &[u64]) -> Vec<u64> {
    let mut coordinates = vec![0; sides.len()];
    for (coordinate, side) in coordinates.iter_mut().zip(sides).rev() {
        *coordinate = number % side;
        number /= side;
    }
    coordinates
}
