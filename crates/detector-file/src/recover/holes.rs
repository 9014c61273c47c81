//! Ranges of a file that may lack synced data. Truncating a file loses the data above its new end, and later writes
//! extend the file again and leave a hole.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

/// The first write after a truncation may lie in the same block as the remaining data, without a hole between them. The
/// run fails soon after a truncation, so only the last bytes are affected.
const LAST_BYTES: u64 = 64 << 20;
/// Lower limit for the file system's block size. At the end of a block, zeros may stand for lost data.
const BLOCK_BYTES: u64 = 64 << 10;

pub(super) struct Holes {
    /// Holes including the blocks at both ends, in order.
    ranges: Vec<Range<u64>>,
    /// Any part of the file from here on may be a hole.
    last: u64,
}

impl Holes {
    /// Finds the holes of a file with known data up to `end`. There are none if the file system does not report holes.
    pub fn of(file: &File, end: u64) -> io::Result<Holes> {
        let block = file.metadata()?.blksize().max(BLOCK_BYTES);
        let (mut ranges, mut at) = (Vec::<Range<u64>>::new(), 0);
        while at < end
            && let Some(hole) = seek(file, SeekFrom::Hole(at))?.filter(|hole| *hole < end)
        {
            at = seek(file, SeekFrom::Data(hole))?.unwrap_or(end);
            let (start, until) = (hole.saturating_sub(block), at.saturating_add(block));
            match ranges.last_mut() {
                Some(before) if before.end >= start => before.end = until,
                _ => ranges.push(start..until),
            }
        }
        Ok(Holes { ranges, last: end.saturating_sub(LAST_BYTES) })
    }

    /// Whether any byte of a range may be lost.
    pub fn touch(&self, range: &Range<u64>) -> bool {
        let after = self.ranges.partition_point(|hole| hole.end <= range.start);
        range.end > self.last || self.ranges.get(after).is_some_and(|hole| hole.start < range.end)
    }
}

/// `None`: there is no further data or hole, or the file system does not report it.
fn seek(file: &File, whence: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, whence) {
        Ok(at) => Ok(Some(at)),
        Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn hole_boundaries_are_found() {
        const MIB: u64 = 1 << 20;
        let file = tempfile::tempfile().expect("a file");
        for at in [0, 20 * MIB, 90 * MIB] {
            file.write_all_at(&vec![1; 4 * MIB as usize], at).expect("written");
        }
        let holes = Holes::of(&file, 94 * MIB).expect("known");
        let touched = |at: u64| holes.touch(&(at..at + 1));
        assert!(!touched(0) && touched(4 * MIB - 1) && touched(4 * MIB) && touched(20 * MIB));
        assert!(!touched(22 * MIB) && holes.touch(&(22 * MIB..25 * MIB)));
        assert!(touched(93 * MIB), "the last of it");
    }
}
