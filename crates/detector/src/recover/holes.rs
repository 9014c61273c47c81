//! Where a file may lack what had been synced to it: who cuts a file takes what lay above, and whoever still writes to it
//! then makes it long again, by a hole.

use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

/// What is written first after a cut may lie in the same block as what was left, and no hole is between: soon after, the
/// run fails.
const LAST_BYTES: u64 = 64 << 20;
/// A file system's own block is at least taken for so long: where it ends, zeros may stand for what was cut off.
const BLOCK_BYTES: u64 = 64 << 10;

pub(super) struct Holes {
    /// With the blocks at both ends, in their order.
    ranges: Vec<Range<u64>>,
    /// From here on all may be one.
    last: u64,
}

impl Holes {
    /// Of a file in which anything is known to lie up to `end`. None, where its file system does not tell.
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

    /// Whether anything of a range may be gone.
    pub fn touch(&self, range: &Range<u64>) -> bool {
        let after = self.ranges.partition_point(|hole| hole.end <= range.start);
        range.end > self.last || self.ranges.get(after).is_some_and(|hole| hole.start < range.end)
    }
}

/// `None`: there is nothing of that kind any more, or nobody can say.
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
