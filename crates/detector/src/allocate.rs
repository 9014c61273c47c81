//! Addresses in the file. Extents are handed out rising, aligned, and never twice: two hosts that shared a page would
//! overwrite each other on some stores, and a reader of an old index must find there what it names.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug)]
pub struct Allocator {
    next: AtomicU64,
    align: u64,
}

impl Allocator {
    /// Everything below `start` is taken.
    ///
    /// # Panics
    /// If `align` is not a power of two from 8 on.
    pub fn new(start: u64, align: u64) -> Allocator {
        assert!(align.is_power_of_two() && align >= 8, "extents are aligned to a power of two, HDF5's blocks to 8");
        Allocator { next: AtomicU64::new(start.next_multiple_of(align)), align }
    }

    /// At least `bytes`, in whole units of the alignment.
    pub fn extent(&self, bytes: u64) -> Range<u64> {
        let length = bytes.next_multiple_of(self.align);
        let start = self.next.fetch_add(length, Ordering::Relaxed);
        start..start + length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_aligned_and_apart() {
        let allocator = Allocator::new(48, 4096);
        assert_eq!(allocator.extent(1), 4096..8192);
        assert_eq!(allocator.extent(4097), 8192..16384);
        assert_eq!(allocator.extent(8), 16384..20480);
    }
}
