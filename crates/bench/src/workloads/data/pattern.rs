//! The bytes of a file: reproducible from the seed, the file's number and the place, so that every byte that is read can be
//! compared. No store can compress or deduplicate them.

use varve_env::random::Seeded;

/// Compression and deduplication look for repetitions within less.
const BASE_BYTES: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
/// Each page begins with the numbers of its file and of itself.
const STAMP_BYTES: usize = 16;

/// Where a file's content differs from what was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WrongByte {
    pub offset: u64,
    pub found: u8,
    pub expected: u8,
}

pub(super) struct BytePattern {
    base: Vec<u8>,
}

impl BytePattern {
    /// `seed` must be the same in all ranks.
    pub(super) fn new(seed: u64) -> BytePattern {
        BytePattern { base: Seeded::new(seed).bytes(BASE_BYTES) }
    }

    /// Fills `buffer` with the bytes of `file` from `offset` on. `filled` is the offset that the buffer was filled for
    /// before: the same bytes of the base are not copied again.
    pub(super) fn fill(&self, file: u64, offset: u64, buffer: &mut [u8], filled: Option<u64>) {
        let same = |filled: u64| filled % BASE_BYTES as u64 == offset % BASE_BYTES as u64;
        if !filled.is_some_and(same) {
            let (mut at, mut done) = ((offset % BASE_BYTES as u64) as usize, 0);
            while done < buffer.len() {
                let bytes = (buffer.len() - done).min(BASE_BYTES - at);
                buffer[done..done + bytes].copy_from_slice(&self.base[at..at + bytes]);
                (at, done) = (0, done + bytes);
            }
        }
        each_page(offset, buffer.len(), |start, end, page, within| {
            let stamp = stamp(file, page);
            let stamped = within..STAMP_BYTES.min(within + end - start);
            if !stamped.is_empty() {
                buffer[start..start + stamped.len()].copy_from_slice(&stamp[stamped]);
            }
        });
    }

    /// The first byte of `buffer` that is not that of [`BytePattern::fill`]. `expected` is scratch space.
    pub(super) fn compare(&self, file: u64, offset: u64, buffer: &[u8], expected: &mut Vec<u8>) -> Option<WrongByte> {
        expected.resize(buffer.len(), 0);
        self.fill(file, offset, expected, None);
        if buffer == &expected[..] {
            return None;
        }
        let at = buffer.iter().zip(expected.iter()).position(|(found, expected)| found != expected)?;
        Some(WrongByte { offset: offset + at as u64, found: buffer[at], expected: expected[at] })
    }
}

fn stamp(file: u64, page: u64) -> [u8; STAMP_BYTES] {
    let mut stamp = [0; STAMP_BYTES];
    stamp[..8].copy_from_slice(&file.to_le_bytes());
    stamp[8..].copy_from_slice(&page.to_le_bytes());
    stamp
}

/// Calls `visit` with the start and the end of each page's part in the buffer, the page, and where in it the part begins.
fn each_page(offset: u64, length: usize, mut visit: impl FnMut(usize, usize, u64, usize)) {
    let mut start = 0;
    while start < length {
        let at = offset + start as u64;
        let within = (at % PAGE_BYTES as u64) as usize;
        let end = length.min(start + PAGE_BYTES - within);
        visit(start, end, at / PAGE_BYTES as u64, within);
        start = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_depend_on_their_place_alone() {
        let pattern = BytePattern::new(7);
        let whole = |file| {
            let mut whole = vec![0; 3 << 20];
            pattern.fill(file, 0, &mut whole, None);
            whole
        };
        let (first, second) = (whole(0), whole(1));
        assert_ne!(first, second);
        for (offset, length) in [(0, 1), (4090, 12), (4097, 9000), ((1 << 20) - 5, 10), (12345, 1 << 20)] {
            let mut part = vec![0; length];
            pattern.fill(1, offset as u64, &mut part, None);
            assert!(part == second[offset..offset + length], "{offset} {length}");
            assert_eq!(pattern.compare(1, offset as u64, &part, &mut Vec::new()), None);
        }
        let mut again = first[..1 << 20].to_vec();
        pattern.fill(0, 1 << 20, &mut again, Some(0));
        assert!(again == first[1 << 20..2 << 20], "a buffer that is used again gets the stamps of its new place");
    }

    #[test]
    fn any_flipped_byte_is_found() {
        let pattern = BytePattern::new(1);
        let mut bytes = vec![0; 20_000];
        pattern.fill(3, 4096, &mut bytes, None);
        for at in [0, 15, 16, 4095, 4096, 19_999] {
            bytes[at] ^= 1;
            let wrong = pattern.compare(3, 4096, &bytes, &mut Vec::new()).unwrap();
            assert_eq!((wrong.offset, wrong.found ^ wrong.expected), (4096 + at as u64, 1));
            bytes[at] ^= 1;
        }
    }
}
