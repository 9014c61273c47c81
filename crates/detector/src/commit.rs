//! Publishing: the whole metadata written where nothing lies, synced, then the superblock that leads to it. Nothing that
//! a superblock ever led to is changed, so that whoever opens the file at any moment opens a whole one. Room for the next
//! commit is set aside with each, so that a full disk cannot keep what was written from being published.

use crate::allocate::{Allocator, PAGE_BYTES};
use crate::catalog::Catalog;
use crate::hdf5::superblock::Superblock;
use crate::hdf5::{Image, tree};
use crate::length::Length;
use crate::structure;
use crate::writer::now;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Room set aside at a time for commits, at least. What a run does not need of its last one is lost.
const ROOM_BYTES: u64 = 16 << 10;

/// What commits need beside the file.
#[derive(Debug)]
pub(crate) struct Publisher {
    /// Set aside, and not used yet.
    room: Range<u64>,
    /// More commits will follow.
    goes_on: bool,
    /// Bytes of the last commit.
    used: u64,
}

impl Publisher {
    pub(crate) fn new() -> Publisher {
        Publisher { room: 0..0, goes_on: true, used: 0 }
    }

    /// Of one commit, after which there is none: it takes no more room than it needs.
    pub(crate) fn last() -> Publisher {
        Publisher { room: 0..0, goes_on: false, used: 0 }
    }

    /// Writes what `catalog` knows and makes it what readers see. Chunks must have been synced before. Answers the end of
    /// the file as readers see it.
    ///
    /// # Errors
    /// If the file cannot be written or synced; readers then see the commit before.
    pub(crate) fn publish(
        &mut self,
        file: &File,
        length: &Length,
        allocator: &Allocator,
        catalog: &mut Catalog,
    ) -> io::Result<u64> {
        let columns = self.take(file, length, allocator, catalog.changed_bytes())?;
        file.write_all_at(&catalog.store(columns.start), columns.start)?;
        // Its length does not depend on where it lies: made once to learn it, and again at its address.
        let bytes_needed = image(catalog, 0)?.0.len() as u64;
        let place = self.take(file, length, allocator, bytes_needed)?;
        let (bytes, root) = image(catalog, place.start)?;
        assert_eq!(bytes.len() as u64, bytes_needed, "metadata take the same space wherever they lie");
        file.write_all_at(&bytes, place.start)?;
        allocator.fill(columns.end.max(place.end));
        let end = allocator.used();
        length.ensure(file, end)?;
        file.sync_data()?;
        std::thread::sleep(length.unsettled(end));
        file.write_all_at(&Superblock { root, end }.encode(), 0)?;
        file.sync_data()?;
        catalog.publish(now());
        self.used = (columns.end - columns.start) + (place.end - place.start);
        if !self.goes_on {
            return Ok(end);
        }
        // The next commit is little larger than this one.
        self.set_aside(file, length, allocator, self.used + self.used / 4 + PAGE_BYTES)?;
        Ok(end)
    }

    /// Bytes of the last commit, which stay in the file.
    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    fn take(&mut self, file: &File, length: &Length, allocator: &Allocator, bytes: u64) -> io::Result<Range<u64>> {
        let bytes = bytes.next_multiple_of(8);
        self.set_aside(file, length, allocator, bytes)?;
        let start = self.room.start;
        self.room.start += bytes;
        Ok(start..self.room.start)
    }

    /// Sees to room for `bytes`.
    fn set_aside(&mut self, file: &File, length: &Length, allocator: &Allocator, bytes: u64) -> io::Result<()> {
        if self.room.end - self.room.start >= bytes {
            return Ok(());
        }
        let wanted = if self.goes_on { bytes.max(ROOM_BYTES) } else { bytes };
        let room = allocator.extent(wanted, PAGE_BYTES);
        length.ensure(file, room.end)?;
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, room.start, room.end - room.start) {
            // A store that sets nothing aside says that it is full when it is written to.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(error) => return Err(error.into()),
        }
        self.room = room;
        Ok(())
    }
}

fn image(catalog: &Catalog, base: u64) -> io::Result<(Vec<u8>, u64)> {
    let mut image = Image::new(base);
    let root = tree::encode(&mut image, &structure::tree(catalog)).map_err(io::Error::other)?;
    Ok((image.into_bytes(), root))
}
