//! Assembly of chunks from the regions of sources. Dividing frames into chunks is the same operation.

use super::queue::FramePart;
use varve_detector_dataset::dataset_spec::{DatasetSpec, Region};
use varve_detector_dataset::geometry::unravel;

pub struct Shapes {
    frame: Vec<u64>,
    /// Sides of a chunk within a frame.
    chunk: Vec<u64>,
    counts: Vec<u64>,
    pub regions: Vec<Region>,
    element_bytes: usize,
    /// Bytes of a chunk for each of its frames.
    pub chunk_frame_bytes: usize,
    /// One element; the value of elements that are missing or outside the frame.
    fill: Vec<u8>,
    /// Result of [`Shapes::chunks_of`] by source.
    whole: Vec<Option<Vec<u64>>>,
}

impl Shapes {
    pub fn new(description: &DatasetSpec) -> Shapes {
        let mut shapes = Shapes {
            frame: description.frame.clone(),
            chunk: description.chunk(),
            counts: description.chunk_counts(),
            regions: description.regions(),
            element_bytes: description.element.size(),
            chunk_frame_bytes: description.chunk_frame_bytes(),
            fill: description.fill_element(),
            whole: Vec::new(),
        };
        shapes.whole = (0..shapes.regions.len() as u32).map(|source| shapes.whole_chunks(source)).collect();
        shapes
    }

    /// Number of chunks in a frame.
    pub fn count(&self) -> u64 {
        self.counts.iter().product()
    }

    fn chunk_region(&self, number: u64) -> Region {
        let at = unravel(number, &self.counts);
        let offset: Vec<u64> = at.iter().zip(&self.chunk).map(|(at, chunk)| at * chunk).collect();
        let sides = 0..offset.len();
        let shape = sides.map(|side| self.chunk[side].min(self.frame[side] - offset[side])).collect();
        Region { offset, shape }
    }

    /// Whether `source` sends any element of chunk `number`.
    pub fn touches(&self, number: u64, source: u32) -> bool {
        common(&self.chunk_region(number), &self.regions[source as usize]).is_some()
    }

    /// Whether the region of `source` is exactly chunk `number`.
    pub fn is_chunk(&self, number: u64, source: u32) -> bool {
        let region = &self.regions[source as usize];
        *region == self.chunk_region(number) && region.shape == self.chunk
    }

    /// The chunks of `source`'s region in the order in which it sends them, if the region consists of whole chunks.
    pub fn chunks_of(&self, source: u32) -> Option<&[u64]> {
        self.whole[source as usize].as_deref()
    }

    fn whole_chunks(&self, source: u32) -> Option<Vec<u64>> {
        let region = &self.regions[source as usize];
        let fits = |side: usize| {
            let end = region.offset[side] + region.shape[side];
            region.offset[side].is_multiple_of(self.chunk[side])
                && (end.is_multiple_of(self.chunk[side]) || end == self.frame[side])
        };
        (0..self.frame.len())
            .all(fits)
            .then(|| (0..self.count()).filter(|number| self.touches(*number, source)).collect())
    }

    /// Prepares `out` for chunk `number` before regions are copied to it. `all`: whether all its frames will be copied.
    /// Elements that will not be overwritten get the fill value.
    pub fn prepare(&self, number: u64, all: bool, bytes: usize, out: &mut Vec<u8>) {
        if all && self.is_of_one(number) { out.resize(bytes, 0) } else { self.blank(bytes, out) }
    }

    /// Fills `out` with the fill value.
    fn blank(&self, bytes: usize, out: &mut Vec<u8>) {
        /// The repeated pattern fits the first-level cache.
        const PIECE_BYTES: usize = 4096;
        out.clear();
        out.extend(self.fill.iter().copied().cycle().take(bytes.min(PIECE_BYTES.next_multiple_of(self.fill.len()))));
        let piece = out.len();
        while out.len() < bytes {
            out.extend_from_within(..piece.min(bytes - out.len()));
        }
    }

    /// Whether one source sends all elements of chunk `number`.
    fn is_of_one(&self, number: u64) -> bool {
        let brings_all = matches!(self.regions.as_slice(), [region] if region.shape == self.frame);
        brings_all && self.chunk_region(number).shape == self.chunk
    }

    /// Copies the elements of chunk `number` from the plain bytes of a part to `out`, at frame `slot` of the chunk.
    pub fn copy(&self, plain: &[u8], part: &FramePart, number: u64, slot: u64, out: &mut [u8]) {
        let region = &self.regions[part.source as usize];
        let chunk = self.chunk_region(number);
        let Some(both) = common(&chunk, region) else { return };
        let out = &mut out[slot as usize * self.chunk_frame_bytes..][..self.chunk_frame_bytes];
        let (from, to) = (self.strides(&region.shape), self.strides(&self.chunk));
        // The last sides that are complete in both arrays are contiguous.
        let is_whole =
            |side: &usize| both.shape[*side] == region.shape[*side] && both.shape[*side] == self.chunk[*side];
        let outer = both.shape.len() - 1 - (1..both.shape.len()).rev().take_while(is_whole).count();
        let run = both.shape[outer] as usize * from[outer];
        let start = |strides: &[usize], origin: &[u64]| -> usize {
            let sides = strides.iter().zip(&both.offset).zip(origin);
            sides.map(|((stride, at), origin)| (at - origin) as usize * stride).sum()
        };
        let begin = (start(&from, &region.offset), start(&to, &chunk.offset));
        each_run(&both.shape[..outer], (&from, &to), begin, &mut |from, to| {
            out[to..to + run].copy_from_slice(&plain[from..from + run]);
        });
    }

    /// Bytes from one element to the next along each side of an array.
    fn strides(&self, shape: &[u64]) -> Vec<usize> {
        let mut strides = vec![self.element_bytes; shape.len()];
        for side in (1..shape.len()).rev() {
            strides[side - 1] = strides[side] * shape[side] as usize;
        }
        strides
    }
}

/// Calls `copy` with the offsets in both arrays, from `begin` on, of every element of `shape`.
fn each_run(shape: &[u64], strides: (&[usize], &[usize]), begin: (usize, usize), copy: &mut impl FnMut(usize, usize)) {
    let Some((count, inner)) = shape.split_first() else { return copy(begin.0, begin.1) };
    for at in 0..*count as usize {
        let begin = (begin.0 + at * strides.0[0], begin.1 + at * strides.1[0]);
        each_run(inner, (&strides.0[1..], &strides.1[1..]), begin, copy);
    }
}

/// The intersection of two regions.
fn common(one: &Region, other: &Region) -> Option<Region> {
    let mut both = Region { offset: Vec::new(), shape: Vec::new() };
    for side in 0..one.offset.len() {
        let start = one.offset[side].max(other.offset[side]);
        let end = (one.offset[side] + one.shape[side]).min(other.offset[side] + other.shape[side]);
        if start >= end {
            return None;
        }
        both.offset.push(start);
        both.shape.push(end - start);
    }
    Some(both)
}
