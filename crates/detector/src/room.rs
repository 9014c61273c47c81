//! Room in the file for commits, set aside before a frame is called written, so that a disk that runs full cannot keep
//! what was written from being published. How much a commit takes at most follows from which frames it brings.

use crate::allocate::{Allocator, PAGE_BYTES};
use crate::catalog::Catalog;
use crate::column::CHUNK_ROWS;
use crate::description::Description;
use crate::hdf5::index::IndexKind;
use crate::journal::Entry;
use crate::length::Length;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;

/// Pieces are at least so large.
const PIECE_BYTES_MIN: u64 = 8 << 10;
/// What the tree without its indexes grows by between two commits, but for new columns: counts and times in attributes.
const TREE_GROWTH_BYTES: u64 = 1 << 10;
/// Of an index of no more than a few elements, and of the first blocks of every column's.
const INDEX_BYTES_MIN: u64 = 512;
/// An array's element, with a size of eight bytes and a filter mask.
const ELEMENT_BYTES: u64 = 20;
/// Above so many elements, arrays are cut into pages.
const PAGE_ELEMENTS: u64 = 1 << 10;
/// Header, messages and link of a column's dataset, but for its name.
const COLUMN_BYTES: u64 = 2 << 10;

/// Where room comes from.
#[derive(Clone, Copy)]
pub(crate) struct Space<'a> {
    pub file: &'a File,
    pub length: &'a Length,
    pub allocator: &'a Allocator,
}

#[derive(Debug)]
pub(crate) struct Room {
    shape: Shape,
    /// Set aside and not used, in the order of addresses, none touching the next.
    free: Vec<Range<u64>>,
    /// What the next commit brings, as far as the committer has taken it in.
    applied: Brought,
    /// What has been entered since, which a commit that begins now does not bring.
    pending: Brought,
}

/// What the size of a commit depends on, beside what it brings.
#[derive(Debug)]
struct Shape {
    /// More commits will follow; otherwise nothing is set aside.
    goes_on: bool,
    index: IndexKind,
    /// Elements of a fixed array, which is written as a whole as soon as it has a chunk.
    fixed: u64,
    /// It was written.
    has_fixed: bool,
    rank: u64,
    /// Chunks that a frame has or shares.
    chunks: u64,
    /// The array's elements follow each other as the frames do.
    dense: bool,
    columns: u64,
    /// Of all columns.
    row_bytes: u64,
    /// Columns have values for frames that never came, too.
    counts_all: bool,
    /// One past the highest frame.
    frames: u64,
    /// Bytes of the last commit but for its columns.
    tree: u64,
}

/// Frames that a commit brings.
#[derive(Debug, Default)]
struct Brought {
    /// How many, by the chunk of the columns that they are in.
    frames: BTreeMap<u64, u64>,
    /// Whether chunks come with them.
    chunks: bool,
    /// Bytes that new columns add to the tree.
    columns: u64,
}

/// Where a commit goes.
#[derive(Debug)]
pub(crate) struct Place {
    pub columns: Range<u64>,
    pub tree: Range<u64>,
}

impl Brought {
    fn note(&mut self, frame: u64) {
        *self.frames.entry(frame / CHUNK_ROWS).or_default() += 1;
    }

    fn add(&mut self, other: &Brought) {
        for (chunk, frames) in &other.frames {
            *self.frames.entry(*chunk).or_default() += frames;
        }
        self.chunks |= other.chunks;
        self.columns += other.columns;
    }

    fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.columns == 0
    }
}

impl Shape {
    fn columns_bytes(&self, brought: &Brought) -> u64 {
        const ALIGN: u64 = 8;
        brought.frames.len() as u64 * (CHUNK_ROWS * self.row_bytes + ALIGN * self.columns)
    }

    /// Bytes of the tree and its indexes at most, in steps, so that not every frame asks for a little more.
    fn tree_bytes(&self, brought: &Brought) -> u64 {
        let touched = brought.frames.len() as u64;
        let frames: u64 = brought.frames.values().map(|frames| step(*frames)).sum();
        let index = match self.index {
            IndexKind::Implicit { .. } => 0,
            // Keys of eight bytes a side, and nodes that are half empty at worst.
            IndexKind::BtreeV2 => 2 * frames * self.chunks * (ELEMENT_BYTES + 8 + 8 * self.rank),
            IndexKind::FixedArray if self.has_fixed || !brought.chunks => 0,
            IndexKind::FixedArray => ELEMENT_BYTES * self.fixed,
            IndexKind::ExtensibleArray => ELEMENT_BYTES * self.elements(brought),
        };
        // The columns have indexes too, of which a chunk brings a block at most.
        let blocks = touched * self.columns * ELEMENT_BYTES * widest_block(self.frames / CHUNK_ROWS);
        let least = INDEX_BYTES_MIN * (1 + self.columns.min(touched * self.columns));
        self.tree + TREE_GROWTH_BYTES + brought.columns + index + index / 16 + blocks + least
    }

    /// Elements of an extensible array that come to what there was, at most.
    fn elements(&self, brought: &Brought) -> u64 {
        let all = step(self.frames) * self.chunks;
        let page = PAGE_ELEMENTS.max(widest_block(all));
        let scattered = |frames: u64| step(frames) * (self.chunks + 2 * page);
        if !self.dense {
            return brought.frames.values().copied().map(scattered).sum();
        }
        let together = CHUNK_ROWS * self.chunks + 2 * page;
        let touched: u64 = brought.frames.values().map(|frames| scattered(*frames).min(together)).sum();
        touched.min(2 * all + widest_block(all))
    }
}

/// The next power of two, not the smallest.
fn step(frames: u64) -> u64 {
    const LEAST: u64 = 32;
    frames.max(LEAST).next_power_of_two()
}

/// Elements of the largest block of an extensible array that has `elements`.
fn widest_block(elements: u64) -> u64 {
    const BLOCK_ELEMENTS_MIN: u64 = 16;
    4 * elements.isqrt().next_power_of_two() + BLOCK_ELEMENTS_MIN
}

impl Room {
    /// Of a run that goes on.
    pub(crate) fn new(catalog: &mut Catalog) -> Room {
        let widths = catalog.widths();
        let description = &catalog.description;
        let shape = Shape {
            goes_on: true,
            index: description.index_kind(),
            fixed: catalog.chunks.grid().chunks_max().into_iter().map(|count| count.unwrap_or(0)).product(),
            has_fixed: false,
            rank: catalog.chunks.grid().rank() as u64,
            chunks: description.chunks_per_frame(),
            dense: is_dense(description),
            columns: widths.len() as u64,
            row_bytes: widths.into_iter().sum(),
            counts_all: catalog.layout.is_some(),
            frames: catalog.frames(),
            tree: 0,
        };
        Room { shape, free: Vec::new(), applied: Brought::default(), pending: Brought::default() }
    }

    /// Of one commit, after which there is none: it takes no more than it needs.
    pub(crate) fn of_last(catalog: &mut Catalog) -> Room {
        let mut room = Room::new(catalog);
        room.shape.goes_on = false;
        room
    }

    /// Sees to it that these entries can be published.
    ///
    /// # Errors
    /// If there is no room: they must not be acknowledged.
    pub(crate) fn expect(&mut self, space: Space<'_>, entries: &[Entry]) -> io::Result<()> {
        for entry in entries {
            match entry {
                Entry::Slab(slab) => {
                    self.pending.chunks = true;
                    slab.frames.iter().for_each(|frame| self.note(frame.number));
                }
                Entry::Scalars { frame, .. } | Entry::Duplicate { frame } | Entry::Damaged { frame } => {
                    self.note(*frame)
                }
                Entry::Column { name, kind } => {
                    self.shape.columns += 1;
                    self.shape.row_bytes += kind.fill().len() as u64;
                    self.pending.columns += COLUMN_BYTES + name.len() as u64;
                }
                Entry::Durable { .. } => {}
            }
        }
        let mut both = Brought::default();
        both.add(&self.applied);
        both.add(&self.pending);
        self.cover(space, &[self.shape.columns_bytes(&both), self.shape.tree_bytes(&both)])
    }

    fn note(&mut self, frame: u64) {
        if self.shape.counts_all && frame > self.shape.frames {
            for chunk in self.shape.frames / CHUNK_ROWS..frame / CHUNK_ROWS {
                self.pending.frames.entry(chunk).or_default();
            }
        }
        self.shape.frames = self.shape.frames.max(frame + 1);
        self.pending.note(frame);
    }

    /// All that was entered so far will be of the next commit.
    pub(crate) fn apply(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.applied.add(&pending);
    }

    /// Where a commit of all that was applied goes, whose columns take `columns` bytes. Nothing is taken if there would
    /// then be no room for what is pending: a later commit brings both.
    ///
    /// # Errors
    /// If there is no room.
    pub(crate) fn begin(&mut self, space: Space<'_>, columns: u64) -> io::Result<Place> {
        if !self.shape.goes_on {
            return Ok(Place { columns: self.take(space, columns)?, tree: 0..0 });
        }
        let tree = self.shape.tree_bytes(&self.applied);
        if self.pending.is_empty() {
            self.cover(space, &[columns, tree])?;
        } else {
            // The tree of the commit after it is that of this one, and what is pending.
            let mut both = Brought::default();
            both.add(&self.applied);
            both.add(&self.pending);
            let next = [self.shape.columns_bytes(&self.pending), self.shape.tree_bytes(&both)];
            self.cover(space, &[columns, tree, next[0], next[1]])?;
        }
        let place = Place { columns: self.take(space, columns)?, tree: self.take(space, tree)? };
        self.shape.tree = tree;
        self.shape.has_fixed |= self.applied.chunks;
        self.applied = Brought::default();
        Ok(place)
    }

    /// The part of `place` that a tree of `bytes` takes; the rest is free again.
    pub(crate) fn settle(&mut self, space: Space<'_>, place: Range<u64>, bytes: u64) -> io::Result<Range<u64>> {
        self.shape.tree = bytes;
        let bytes = rounded(bytes);
        if place.end - place.start < bytes {
            self.give_back(place);
            return self.take(space, bytes);
        }
        self.give_back(place.start + bytes..place.end);
        Ok(place.start..place.start + bytes)
    }

    fn give_back(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let at = self.free.partition_point(|free| free.start < range.start);
        self.free.insert(at, range);
        self.free.dedup_by(|after, before| {
            let touch = before.end == after.start;
            if touch {
                before.end = after.end;
            }
            touch
        });
    }

    /// Sees to free pieces for all of `sizes` at once.
    fn cover(&mut self, space: Space<'_>, sizes: &[u64]) -> io::Result<()> {
        let mut sizes: Vec<u64> = sizes.iter().map(|bytes| rounded(*bytes)).collect();
        sizes.sort_unstable();
        let mut free = self.free.clone();
        for bytes in sizes.into_iter().rev() {
            if cut(&mut free, bytes).is_none() {
                self.give_back(set_aside(space, bytes.max(PIECE_BYTES_MIN))?);
            }
        }
        Ok(())
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

/// Cuts `bytes` off the smallest piece that has them.
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
        // A store that sets nothing aside says that it is full when it is written to.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(room),
        Err(error) => Err(error.into()),
    }
}

/// Whether the dataset's array has no gaps between the frames, as it has where the scan's inner sides may grow.
fn is_dense(description: &Description) -> bool {
    description.scan_max.as_ref().is_none_or(|max| max[1..] == description.scan[1..])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::image;
    use crate::description::{ScalarKind, Structure};
    use crate::hdf5::ElementType;
    use crate::journal::{ChunkEntry, FrameEntry, SlabEntry};
    use crate::layout::Layout;
    use proptest::prelude::*;

    const LAYOUT: &str = "<hdf5_layout><group name='entry'><dataset name='data' source='detector' det_default='true'/>\
                          <group name='performance'><dataset name='timestamp'/></group></group></hdf5_layout>";

    fn descriptions() -> Vec<Description> {
        let with = |change: &dyn Fn(&mut Description)| {
            let mut description = Description::new(ElementType::U16, vec![8, 6]);
            change(&mut description);
            description.check().expect("a description");
            description
        };
        vec![
            with(&|_| {}),
            with(&|run| run.scan = vec![Some(4000)]),
            with(&|run| run.scan = vec![Some(2000), Some(10)]),
            with(&|run| run.scan = vec![None, Some(7)]),
            with(&|run| run.chunk = Some(vec![2, 3])),
            with(&|run| run.chunk = Some(vec![4, 8, 6])),
            with(&|run| (run.scan, run.scan_max) = (vec![None, Some(5)], Some(vec![None, None]))),
            with(&|run| (run.scan, run.scan_max) = (vec![Some(4000), Some(5)], Some(vec![Some(5000), Some(30)]))),
            with(&|run| run.structure = Structure::Nexus),
            with(&|run| run.structure = Structure::Layout(Layout::parse(LAYOUT).expect("a layout"))),
        ]
    }

    fn entry(description: &Description, frame: u64, what: u8) -> Entry {
        match what {
            0..5 => {
                let chunk = ChunkEntry { address: 1 << 40, size: 96, mask: 0, checksum: 0 };
                let (slab, _) = description.slab_of(frame);
                let frames = vec![FrameEntry { number: frame, times: [1; 4], missing: Vec::new() }];
                let chunks = vec![chunk; description.chunks_per_frame() as usize];
                Entry::Slab(SlabEntry { slab, epoch: 0, again: true, frames, chunks })
            }
            5 => Entry::Damaged { frame },
            6 => Entry::Column { name: format!("column {frame}"), kind: ScalarKind::Float },
            _ => Entry::Duplicate { frame },
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Whatever frames come in whatever order, there is room for their commit before it begins.
        #[test]
        fn a_commit_takes_no_more_than_was_expected(
            which in 0..10_usize,
            rounds in prop::collection::vec((prop::collection::vec((0..700_u64, 0..8_u8), 0..60), 0..4_u64, 0..60_usize), 1..6),
        ) {
            let description = descriptions().swap_remove(which);
            let file = tempfile::tempfile().expect("a file");
            let (length, allocator) = (Length::new(1 << 20), Allocator::new(1 << 20));
            let space = Space { file: &file, length: &length, allocator: &allocator };
            let mut catalog = Catalog::new(description.clone());
            let mut room = Room::new(&mut catalog);
            room.shape.tree = image(&catalog, 0).expect("a tree").0.len() as u64;
            let mut known: Vec<String> = Vec::new();
            for (frames, far, early) in rounds {
                let entries: Vec<Entry> = frames
                    .iter()
                    .map(|(frame, what)| entry(&description, frame + far * 900, *what))
                    .filter(|entry| match entry {
                        Entry::Column { name, .. } => !known.contains(name) && { known.push(name.clone()); true },
                        _ => true,
                    })
                    .collect();
                let (applied, pending) = entries.split_at(early.min(entries.len()));
                room.expect(space, applied).expect("room");
                room.apply();
                room.expect(space, pending).expect("room");
                applied.iter().for_each(|entry| catalog.apply(entry, 2));
                let columns = catalog.changed_bytes();
                let expected = room.shape.columns_bytes(&room.applied);
                prop_assert!(columns <= expected, "{columns} bytes of columns with room for {expected}");
                let place = room.begin(space, columns).expect("room");
                catalog.store(place.columns.start);
                let bytes = image(&catalog, 0).expect("a tree").0.len() as u64;
                let tree = place.tree.end - place.tree.start;
                prop_assert!(bytes <= tree, "{bytes} bytes of a tree with room for {tree}");
                room.settle(space, place.tree, bytes).expect("room");
                room.apply();
                pending.iter().for_each(|entry| catalog.apply(entry, 2));
            }
        }
    }
}
