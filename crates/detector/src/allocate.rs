//! Addresses in the file, handed out rising and never twice: a reader of an old index must find there what it names. What
//! one process writes lies without a gap; extents of others are aligned, for two hosts that shared a page would overwrite
//! each other on some stores.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Extents begin and end at whole pages, which is what hosts must not share.
pub const PAGE_BYTES: u64 = 4096;

#[derive(Debug)]
pub struct Allocator {
    next: AtomicU64,
    /// One past the last byte that anything lies at.
    used: AtomicU64,
}

impl Allocator {
    /// Everything below `start` is taken.
    pub fn new(start: u64) -> Allocator {
        Allocator { next: AtomicU64::new(start.next_multiple_of(PAGE_BYTES)), used: AtomicU64::new(start) }
    }

    /// At least `bytes`, in whole pages, from a multiple of `align` on.
    pub fn extent(&self, bytes: u64, align: u64) -> Range<u64> {
        let length = bytes.next_multiple_of(PAGE_BYTES);
        let align = align.max(1).next_multiple_of(PAGE_BYTES);
        let next = |next: u64| Some(next.next_multiple_of(align) + length);
        let before =
            self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).expect("there is always a next");
        let start = before.next_multiple_of(align);
        start..start + length
    }

    /// Exactly `bytes`, for whoever is of this process.
    pub fn bytes(&self, bytes: u64) -> u64 {
        self.next.fetch_add(bytes, Ordering::Relaxed)
    }

    /// Notes that something lies below `end`.
    pub fn fill(&self, end: u64) {
        self.used.fetch_max(end, Ordering::Relaxed);
    }

    /// One past the last byte that anything lies at.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn extents_are_aligned_and_apart() {
        let allocator = Allocator::new(48);
        assert_eq!(allocator.extent(1, 8), 4096..8192);
        assert_eq!(allocator.extent(4097, 8), 8192..16384);
        assert_eq!(allocator.extent(8, 1 << 20), 1 << 20..(1 << 20) + 4096);
        assert_eq!(allocator.extent(8, 1), (1 << 20) + 4096..(1 << 20) + 8192);
        assert_eq!((allocator.bytes(3), allocator.bytes(5)), ((1 << 20) + 8192, (1 << 20) + 8195));
        assert_eq!(
            allocator.extent(1, 1),
            (1 << 20) + 12288..(1 << 20) + 16384,
            "no page is shared with another process"
        );
        assert_eq!(allocator.used(), 48);
    }
}
