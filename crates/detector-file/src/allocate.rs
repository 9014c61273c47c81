//! Allocates addresses in the file. Addresses rise and are never reused: a reader of an old index must find the bytes
//! that its index names. Bytes that one process writes lie without gaps. Extents of other processes are aligned to
//! pages, because on some stores two hosts that share a page overwrite each other's bytes.

use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

/// Punches a hole into an unused part of the file, so that it takes no space. Returns whether the store supports holes.
///
/// # Errors
/// If the store supports holes and the call fails.
pub fn punch(file: &File, Range { start, end }: Range<u64>) -> io::Result<bool> {
    if start >= end {
        return Ok(true);
    }
    match rustix::fs::fallocate(file, HOLE, start, end - start) {
        Ok(()) => Ok(true),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// The parts of granted extents that no journal entry has named. No reader depends on their content.
#[derive(Debug, Default)]
pub struct Unnamed(BTreeMap<u64, u64>);

impl Unnamed {
    pub fn grant(&mut self, extent: Range<u64>) {
        self.0.insert(extent.start, extent.end);
    }

    /// Removes a range that a journal entry names.
    pub fn name(&mut self, Range { start, end }: Range<u64>) {
        while let Some((from, to)) = self.0.range(..end).next_back().map(|(from, to)| (*from, *to)) {
            if to <= start {
                return;
            }
            self.0.remove(&from);
            for (from, to) in [(from, to.min(start)), (from.max(end), to)] {
                if from < to {
                    self.0.insert(from, to);
                }
            }
        }
    }

    /// The unnamed ranges below `end`.
    pub fn below(&self, end: u64) -> impl Iterator<Item = Range<u64>> {
        self.0.range(..end).map(move |(from, to)| *from..(*to).min(end))
    }
}

/// Extents begin and end at whole pages, because hosts must not share a page.
pub const PAGE_BYTES: u64 = 4096;

#[derive(Debug)]
pub struct Allocator {
    next: AtomicU64,
    /// End of the last used byte.
    used: AtomicU64,
}

impl Allocator {
    /// Treats everything below `start` as used.
    pub fn new(start: u64) -> Allocator {
        Allocator { next: AtomicU64::new(start.next_multiple_of(PAGE_BYTES)), used: AtomicU64::new(start) }
    }

    /// Allocates at least `bytes`, in whole pages, starting at a multiple of `align`.
    pub fn extent(&self, bytes: u64, align: u64) -> Range<u64> {
        let length = bytes.next_multiple_of(PAGE_BYTES);
        let align = align.max(1).next_multiple_of(PAGE_BYTES);
        let next = |next: u64| Some(next.next_multiple_of(align) + length);
        let before =
            self.next.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).expect("there is always a next");
        let start = before.next_multiple_of(align);
        start..start + length
    }

    /// Allocates exactly `bytes` for a writer in this process.
    pub fn bytes(&self, bytes: u64) -> u64 {
        self.next.fetch_add(bytes, Ordering::Relaxed)
    }

    /// Notes that bytes below `end` are used.
    pub fn fill(&self, end: u64) {
        self.used.fetch_max(end, Ordering::Relaxed);
    }

    /// End of the last used byte.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn named_extents_are_not_punched() {
        let mut unnamed = Unnamed::default();
        unnamed.grant(10..20);
        unnamed.grant(30..40);
        for named in [0..5, 10..12, 14..15, 18..33, 39..41, 50..60] {
            unnamed.name(named);
        }
        let below = |end| unnamed.below(end).collect::<Vec<Range<u64>>>();
        assert_eq!(below(100), [12..14, 15..18, 33..39]);
        assert_eq!(below(35), [12..14, 15..18, 33..35]);
        assert_eq!(below(12), []);
    }

    #[test]
    fn extents_are_aligned_and_disjoint() {
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
