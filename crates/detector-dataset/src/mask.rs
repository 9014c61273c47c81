//! The pixel mask of a run, from its regions.

use crate::dataset_spec::nxmx::MaskRegion;
use crate::dataset_spec::static_array::{ARRAY_BYTES_MAX, PIXEL_MASK, SPECIFIC, StaticArray};
use crate::dataset_spec::{DatasetSpec, Structure};
use varve_detector_hdf5::ElementType;

pub(crate) const ELEMENT: ElementType = ElementType::U32;

impl DatasetSpec {
    /// Turns the regions of a pixel mask, which were checked, into an array. Readers of DECTRIS files do not open a file
    /// without a mask: a run that has none gets one of zeros, which takes no space, where only those readers look.
    pub fn complete_arrays(&mut self) {
        if !self.arrays.is_empty() {
            self.nxmx.get_or_insert_default();
        }
        let Some(nxmx) = self.nxmx.as_mut().filter(|_| self.structure == Structure::Nexus) else { return };
        let regions = std::mem::take(&mut nxmx.pixel_mask);
        if !regions.is_empty() {
            let bytes = mask(&self.frame, &regions);
            self.arrays.push(StaticArray::named(PIXEL_MASK, ELEMENT, self.frame.clone(), bytes));
        }
        let path = format!("{SPECIFIC}/{PIXEL_MASK}");
        let bytes = self.frame.iter().product::<u64>() * ELEMENT.size() as u64;
        let has_one = self.array(PIXEL_MASK).is_some() || self.array(&path).is_some();
        if self.frame.len() == 2 && !has_one && bytes <= ARRAY_BYTES_MAX {
            self.arrays.push(StaticArray { path, element: ELEMENT, shape: self.frame.clone(), data: None });
        }
    }
}

pub(crate) fn mask(frame: &[u64], regions: &[MaskRegion]) -> Vec<u8> {
    let mut bytes = vec![0; frame.iter().product::<u64>() as usize * ELEMENT.size()];
    regions.iter().for_each(|region| mark(&mut bytes, frame, region));
    bytes
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
