//! Cutting a frame into chunks.

use crate::catalog::unravel;

/// The shapes of a frame and of its chunks.
pub struct Split {
    pub frame: Vec<u64>,
    pub chunk: Vec<u64>,
    pub element_bytes: usize,
    /// One element, for what of a chunk lies outside the frame.
    pub fill: Vec<u8>,
}

impl Split {
    pub fn is_whole(&self) -> bool {
        self.frame == self.chunk
    }

    pub fn count(&self) -> u64 {
        self.counts().iter().product()
    }

    fn counts(&self) -> Vec<u64> {
        self.frame.iter().zip(&self.chunk).map(|(side, chunk)| side.div_ceil(*chunk)).collect()
    }

    /// Copies chunk `number` of `frame` to `out`.
    pub fn copy(&self, frame: &[u8], number: u64, out: &mut Vec<u8>) {
        let rank = self.frame.len();
        let at = unravel(number, &self.counts());
        let origin: Vec<u64> = at.iter().zip(&self.chunk).map(|(at, chunk)| at * chunk).collect();
        let inside: Vec<u64> = (0..rank).map(|side| self.chunk[side].min(self.frame[side] - origin[side])).collect();
        out.clear();
        let elements = self.chunk.iter().product::<u64>() as usize;
        if inside == self.chunk {
            out.resize(elements * self.element_bytes, 0);
        } else {
            out.extend(self.fill.iter().copied().cycle().take(elements * self.element_bytes));
        }
        // Rows along the last side lie together in both.
        let row = inside[rank - 1] as usize * self.element_bytes;
        for line in 0..inside[..rank - 1].iter().product::<u64>() {
            let mut within = unravel(line, &inside[..rank - 1]);
            within.push(0);
            let offset = |sides: &[u64], origin: &[u64]| -> usize {
                let elements = (0..rank).fold(0, |offset, side| offset * sides[side] + origin[side] + within[side]);
                elements as usize * self.element_bytes
            };
            let (from, to) = (offset(&self.frame, &origin), offset(&self.chunk, &vec![0; rank]));
            out[to..to + row].copy_from_slice(&frame[from..from + row]);
        }
    }
}
