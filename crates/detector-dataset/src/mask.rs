//! The pixel mask. It is built and compressed once, and written with every commit.

use crate::dataset_spec::nxmx::MaskRegion;
use varve_detector_filters::{Encoder, Filter};
use varve_detector_hdf5::{Dataset, Datatype, ElementType, Grid, Storage};

const ELEMENT: ElementType = ElementType::U32;

#[derive(Debug)]
pub struct Mask {
    /// A grid of one chunk.
    grid: Grid,
    chunk: Vec<u8>,
}

impl Mask {
    /// Builds the mask from regions that were checked to lie within `frame`.
    ///
    /// # Panics
    /// If the mask exceeds the size of a chunk, which is checked as well.
    pub fn new(frame: &[u64], regions: &[MaskRegion]) -> Mask {
        let max = frame.iter().map(|side| Some(*side)).collect();
        let grid = Grid::new(frame.to_vec(), max, frame.to_vec(), ELEMENT.size());
        let mut bytes = vec![0; grid.chunk_bytes() as usize];
        for region in regions {
            mark(&mut bytes, frame, region);
        }
        let mut chunk = Vec::new();
        let mut encoder = Encoder::new(Filter::BSLZ4, ELEMENT.size()).expect("bitshuffle takes 4 bytes");
        encoder.encode(&bytes, &mut chunk).expect("LZ4 takes any chunk");
        Mask { grid, chunk }
    }

    pub fn dataset(&self) -> Dataset<'_> {
        let storage = Storage::OneChunk {
            datatype: Datatype::Number(ELEMENT),
            grid: &self.grid,
            filters: Filter::BSLZ4.messages(ELEMENT.size(), self.grid.chunk_bytes()),
            chunk: &self.chunk,
        };
        Dataset { attributes: Vec::new(), storage }
    }
}

/// Adds a region's bits, row by row along the fastest side.
fn mark(bytes: &mut [u8], frame: &[u64], region: &MaskRegion) {
    let rows: u64 = region.shape[..frame.len() - 1].iter().product();
    let length = region.shape[frame.len() - 1];
    for row in 0..rows {
        let mut rest = row;
        let mut at = region.offset[frame.len() - 1];
        let mut stride = frame[frame.len() - 1];
        for side in (0..frame.len() - 1).rev() {
            at += (region.offset[side] + rest % region.shape[side]) * stride;
            rest /= region.shape[side];
            stride *= frame[side];
        }
        for pixel in at..at + length {
            let pixel = &mut bytes[pixel as usize * ELEMENT.size()..][..ELEMENT.size()];
            let bits = u32::from_le_bytes((&*pixel).try_into().expect("4 bytes")) | region.value;
            pixel.copy_from_slice(&bits.to_le_bytes());
        }
    }
}
