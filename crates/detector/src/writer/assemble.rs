//! Putting a chunk together from what sources brought, and cutting frames into chunks, which is the same.

use super::queue::Part;
use crate::catalog::unravel;
use crate::description::{Description, Region};

/// The shapes of frames, chunks and regions.
pub struct Shapes {
    frame: Vec<u64>,
    /// Within a frame.
    chunk: Vec<u64>,
    counts: Vec<u64>,
    pub regions: Vec<Region>,
    element_bytes: usize,
    /// Of a chunk, for each of its frames.
    pub chunk_frame_bytes: usize,
    /// One element, for what does not come or lies outside the frame.
    fill: Vec<u8>,
}

impl Shapes {
    pub fn new(description: &Description) -> Shapes {
        Shapes {
            frame: description.frame.clone(),
            chunk: description.chunk(),
            counts: description.chunk_counts(),
            regions: description.regions(),
            element_bytes: description.element.size(),
            chunk_frame_bytes: description.chunk_frame_bytes(),
            fill: description.fill_element(),
        }
    }

    /// Chunks of a frame.
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

    /// Whether anything of chunk `number` comes from `source`.
    pub fn touches(&self, number: u64, source: u32) -> bool {
        common(&self.chunk_region(number), &self.regions[source as usize]).is_some()
    }

    /// Whether what `source` brings is chunk `number` and nothing else.
    pub fn is_chunk(&self, number: u64, source: u32) -> bool {
        let region = &self.regions[source as usize];
        *region == self.chunk_region(number) && region.shape == self.chunk
    }

    /// Whether what `source` brings is made of whole chunks; if so, which, in the order in which it brings them.
    pub fn chunks_of(&self, source: u32) -> Option<Vec<u64>> {
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

    /// Makes `out` the elements of chunk `number` where nothing came.
    pub fn blank(&self, bytes: usize, out: &mut Vec<u8>) {
        out.clear();
        out.extend(self.fill.iter().copied().cycle().take(bytes));
    }

    /// Copies what of chunk `number` is in the plain bytes of a part to `out`, where frame `slot` of the chunk lies.
    pub fn copy(&self, plain: &[u8], part: &Part, number: u64, slot: u64, out: &mut [u8]) {
        let region = &self.regions[part.source as usize];
        let chunk = self.chunk_region(number);
        let Some(both) = common(&chunk, region) else { return };
        let out = &mut out[slot as usize * self.chunk_frame_bytes..][..self.chunk_frame_bytes];
        let rank = self.frame.len();
        // Rows along the last side lie together in both.
        let row = both.shape[rank - 1] as usize * self.element_bytes;
        let outer = &both.shape[..rank - 1];
        for line in 0..outer.iter().product::<u64>() {
            let mut at: Vec<u64> = unravel(line, outer);
            at.push(0);
            let offset = |sides: &[u64], origin: &[u64]| -> usize {
                let element =
                    |offset: u64, side: usize| offset * sides[side] + both.offset[side] + at[side] - origin[side];
                (0..rank).fold(0, element) as usize * self.element_bytes
            };
            let (from, to) = (offset(&region.shape, &region.offset), offset(&self.chunk, &chunk.offset));
            out[to..to + row].copy_from_slice(&plain[from..from + row]);
        }
    }
}

/// What two regions have in common.
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
