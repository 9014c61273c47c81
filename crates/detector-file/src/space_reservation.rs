//! Reservation of space in the file for commits. Space is reserved before a frame is acknowledged as written, so that a
//! full disk cannot prevent the publication of written frames. The frames of a commit determine its maximum size.
//!
//! Space of earlier commits is reused ([`superseded`]).

mod need;
mod superseded;

pub use superseded::READER_AGE;

use crate::allocate::{Allocator, PAGE_BYTES};
use crate::length::Length;
use need::{COLUMN_BYTES, CommitInput, Shape};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::time::{Duration, Instant};
use superseded::Superseded;
use varve_detector_dataset::catalog::Catalog;
use varve_detector_dataset::journal_entry::JournalEntry;

/// Minimum size of a reserved piece.
const PIECE_BYTES_MIN: u64 = 8 << 10;

/// The source of space.
#[derive(Clone, Copy)]
pub struct Space<'a> {
    pub file: &'a File,
    pub length: &'a Length,
    pub allocator: &'a Allocator,
}

#[derive(Debug)]
pub struct SpaceReservation {
    shape: Shape,
    /// Reserved and unused pieces, sorted by address; adjacent pieces are merged.
    free: Vec<Range<u64>>,
    /// Input of the next commit, as far as the committer has applied it.
    applied: CommitInput,
    /// Input entered since then; a commit that begins now does not contain it.
    pending: CommitInput,
    /// The tree of the last commit.
    tree: Range<u64>,
    superseded: Superseded,
}

/// Location of a commit.
#[derive(Debug)]
pub struct CommitExtent {
    /// Changed chunks of columns, and indexes.
    pub data: Range<u64>,
    pub tree: Range<u64>,
}

impl SpaceReservation {
    /// For a run that continues.
    pub fn new(catalog: &mut Catalog) -> SpaceReservation {
        SpaceReservation {
            shape: Shape::of(catalog),
            free: Vec::new(),
            applied: CommitInput::default(),
            pending: CommitInput::default(),
            tree: 0..0,
            superseded: Superseded::new(READER_AGE),
        }
    }

    /// Reuses space only that no commit of the last `age` refers to.
    pub fn for_readers_of(mut self, age: Duration) -> SpaceReservation {
        self.superseded = Superseded::new(age);
        self
    }

    /// For a single last commit, which takes no more space than it needs.
    pub fn of_last(catalog: &mut Catalog) -> SpaceReservation {
        let mut room = SpaceReservation::new(catalog);
        room.shape.goes_on = false;
        room
    }

    /// Reserves the space that a commit with these entries needs.
    ///
    /// # Errors
    /// If there is no space. The entries then must not be acknowledged, and the next commit does not contain them.
    /// Space for earlier entries stays reserved.
    pub fn expect(&mut self, space: Space<'_>, entries: &[JournalEntry]) -> io::Result<()> {
        let (mut shape, mut coming) = (self.shape, CommitInput::default());
        for entry in entries {
            match entry {
                JournalEntry::ChunkGroup(chunk_group) => {
                    coming.chunks = true;
                    chunk_group.frames.iter().for_each(|frame| coming.note(frame.number, &mut shape));
                }
                JournalEntry::Scalars { frame, .. }
                | JournalEntry::Duplicate { frame }
                | JournalEntry::Damaged { frame } => {
                    coming.note(*frame, &mut shape);
                }
                JournalEntry::Column { name, kind } => {
                    shape.columns += 1;
                    shape.row_bytes += kind.fill().len() as u64;
                    coming.columns += COLUMN_BYTES + name.len() as u64;
                }
                JournalEntry::Durable { .. } | JournalEntry::Granted { .. } => {}
            }
        }
        let mut all = CommitInput::default();
        [&self.applied, &self.pending, &coming].into_iter().for_each(|brought| all.add(brought));
        let _pieces = self.cover(space, &[shape.data_bytes(&all), shape.tree_bytes(&all)])?;
        self.shape = shape;
        self.pending.add(&coming);
        Ok(())
    }

    /// Moves all entered input to the next commit.
    pub fn apply(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.applied.add(&pending);
    }

    /// Returns the location of a commit with all applied input, whose columns and indexes take `data` bytes. Takes
    /// nothing if the pending input would then lack space; a later commit has both.
    ///
    /// # Errors
    /// If there is no space.
    pub fn begin(&mut self, space: Space<'_>, data: u64) -> io::Result<CommitExtent> {
        if !self.shape.goes_on {
            return Ok(CommitExtent { data: self.take(space, data)?, tree: 0..0 });
        }
        let unused = self.superseded.release(Instant::now());
        self.give_back_all(unused);
        let tree = self.shape.tree_bytes(&self.applied);
        let mut sizes = vec![data, tree];
        if !self.pending.is_empty() {
            // The tree of the following commit grows from this one's.
            let next = self.shape.after(&self.applied);
            sizes.extend([next.data_bytes(&self.pending), next.tree_bytes(&self.pending)]);
        }
        // Exactly these pieces are taken, because the remaining free pieces are known to suffice for the following
        // commit.
        let pieces = self.cover(space, &sizes)?;
        pieces[..2].iter().for_each(|piece| self.hold(piece));
        let place = CommitExtent { data: pieces[0].clone(), tree: pieces[1].clone() };
        self.shape = self.shape.after(&self.applied);
        self.applied = CommitInput::default();
        Ok(place)
    }

    /// Returns the unused reservations when no further commit follows.
    pub fn rest(&mut self) -> Vec<Range<u64>> {
        std::mem::take(&mut self.free)
    }

    /// Returns the first `bytes` of `place`, and frees the rest.
    pub fn shorten(&mut self, place: Range<u64>, bytes: u64) -> Range<u64> {
        let end = place.start + rounded(bytes);
        assert!(end <= place.end, "a commit stays within its space");
        self.give_back(end..place.end);
        place.start..end
    }

    /// Notes that a commit is published: nothing but earlier commits refers to `superseded` and to the previous tree.
    /// `tree` is the new one, and `end` the end of the file.
    pub fn supersede(&mut self, superseded: Vec<Range<u64>>, tree: Range<u64>, end: u64) {
        let before = std::mem::replace(&mut self.tree, tree);
        self.superseded.add(Instant::now(), superseded.into_iter().chain([before]), end);
    }

    /// Returns the part of `place` that a tree of `bytes` takes, and frees the rest. `indexes`: bytes of the stored
    /// indexes.
    pub fn settle(
        &mut self,
        space: Space<'_>,
        place: Range<u64>,
        (bytes, indexes): (u64, u64),
    ) -> io::Result<Range<u64>> {
        (self.shape.tree, self.shape.indexes) = (bytes, indexes);
        let bytes = rounded(bytes);
        if place.end - place.start < bytes {
            self.give_back(place);
            return self.take(space, bytes);
        }
        self.give_back(place.start + bytes..place.end);
        Ok(place.start..place.start + bytes)
    }

    fn give_back(&mut self, range: Range<u64>) {
        self.give_back_all(vec![range]);
    }

    /// Sorts and merges once for all pieces, which may be a million.
    fn give_back_all(&mut self, mut ranges: Vec<Range<u64>>) {
        ranges.retain(|range| !range.is_empty());
        if ranges.is_empty() {
            return;
        }
        self.free.append(&mut ranges);
        self.free.sort_by_key(|free| free.start);
        self.free.dedup_by(|after, before| {
            let touch = before.end == after.start;
            if touch {
                before.end = after.end;
            }
            touch
        });
    }

    /// Finds or reserves free pieces for all of `sizes` together, and returns them in that order without taking them.
    /// The largest pieces are placed first, because in another order they might not fit.
    fn cover(&mut self, space: Space<'_>, sizes: &[u64]) -> io::Result<Vec<Range<u64>>> {
        let mut order: Vec<usize> = (0..sizes.len()).collect();
        order.sort_by_key(|at| std::cmp::Reverse(sizes[*at]));
        let mut free = self.free.clone();
        let mut pieces = vec![0..0; sizes.len()];
        for at in order {
            let bytes = rounded(sizes[at]);
            pieces[at] = match cut(&mut free, bytes) {
                Some(piece) => piece,
                None => {
                    let room = set_aside(space, bytes.max(PIECE_BYTES_MIN))?;
                    self.give_back(room.clone());
                    room.start..room.start + bytes
                }
            };
        }
        Ok(pieces)
    }

    /// Takes a free piece.
    fn hold(&mut self, piece: &Range<u64>) {
        if piece.is_empty() {
            return;
        }
        let at = self.free.partition_point(|free| free.end <= piece.start);
        let around = self.free[at].clone();
        assert!(around.start <= piece.start && piece.end <= around.end, "{piece:?} is not free");
        let rest = [around.start..piece.start, piece.end..around.end];
        self.free.splice(at..=at, rest.into_iter().filter(|rest| !rest.is_empty()));
    }

    fn take(&mut self, space: Space<'_>, bytes: u64) -> io::Result<Range<u64>> {
        let bytes = rounded(bytes);
        if let Some(range) = cut(&mut self.free, bytes) {
            return Ok(range);
        }
        let range = set_aside(space, bytes)?;
        self.give_back(range.start + bytes..range.end);
        Ok(range.start..range.start + bytes)
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.next_multiple_of(8)
}

/// Cuts `bytes` off the smallest piece that is large enough.
fn cut(free: &mut Vec<Range<u64>>, bytes: u64) -> Option<Range<u64>> {
    let fits = free.iter().enumerate().filter(|(_, piece)| piece.end - piece.start >= bytes);
    let (at, _) = fits.min_by_key(|(_, piece)| piece.end - piece.start)?;
    let start = free[at].start;
    free[at].start += bytes;
    if free[at].is_empty() {
        free.remove(at);
    }
    Some(start..start + bytes)
}

fn set_aside(Space { file, length, allocator }: Space<'_>, bytes: u64) -> io::Result<Range<u64>> {
    let room = allocator.extent(bytes, PAGE_BYTES);
    length.ensure(file, room.end)?;
    match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, room.start, room.end - room.start) {
        // A store without preallocation reports a full disk on write.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(room),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests;
