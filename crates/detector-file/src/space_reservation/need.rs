//! Upper limit for the size of a commit, from the shape of the run and the commit's frames. Pure.

use std::collections::BTreeMap;
use varve_detector_dataset::catalog::Catalog;
use varve_detector_dataset::column::CHUNK_ROWS;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_hdf5::index::{Element, IndexKind, NODE_BYTES, NodeShape};

/// Growth of the tree without new columns between two commits: counts and times in attributes.
const TREE_GROWTH_BYTES: u64 = 1 << 10;
/// Size of an index of a few elements, and of the first blocks of every column's index.
const INDEX_BYTES_MIN: u64 = 512;
/// An array element with a size of eight bytes and a filter mask.
const ELEMENT_BYTES: u64 = 20;
/// Arrays with more elements are divided into pages.
const PAGE_ELEMENTS: u64 = 1 << 10;
/// Levels of a small B-tree; and bits of the number of frames for which a larger one has one more level, since a node has
/// eight children at least on average.
const LEVELS_MIN: u64 = 2;
const LEVEL_BITS: u64 = 3;
/// Header, messages and link of a column's dataset, without its name.
pub(super) const COLUMN_BYTES: u64 = 2 << 10;

/// State that determines the size of a commit, apart from its input.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    /// Whether more commits follow; otherwise nothing is reserved.
    pub goes_on: bool,
    pub index: IndexKind,
    /// Elements of a fixed array, which is written as a whole as soon as it has a chunk.
    pub fixed: u64,
    /// Whether the fixed array has been written.
    pub has_fixed: bool,
    /// Records of a leaf of a B-tree.
    pub leaf: u64,
    /// Levels of a B-tree at most.
    pub levels: u64,
    /// Number of chunks that a frame has or shares.
    pub chunks: u64,
    /// Whether the index's elements are in the order of frames without gaps.
    pub dense: bool,
    /// Whether no frame shares chunks with another.
    pub alone: bool,
    pub columns: u64,
    /// Total for all columns.
    pub row_bytes: u64,
    /// Whether columns have values for missing frames, too.
    pub counts_all: bool,
    /// One past the highest frame.
    pub frames: u64,
    /// Bytes of the last commit's tree.
    pub tree: u64,
    /// Bytes of the indexes of the last commit, without the nodes of a B-tree.
    pub indexes: u64,
}

/// The frames of a commit.
#[derive(Debug, Default)]
pub(super) struct CommitInput {
    /// Number of frames by column chunk.
    pub frames: BTreeMap<u64, u64>,
    /// Whether the frames have chunks.
    pub chunks: bool,
    /// Bytes that new columns add to the tree.
    pub columns: u64,
}

impl CommitInput {
    /// Adds a frame of a run with this shape.
    pub fn note(&mut self, frame: u64, shape: &mut Shape) {
        if shape.counts_all && frame > shape.frames {
            for chunk in shape.frames / CHUNK_ROWS..frame / CHUNK_ROWS {
                self.frames.entry(chunk).or_default();
            }
        }
        shape.frames = shape.frames.max(frame + 1);
        *self.frames.entry(frame / CHUNK_ROWS).or_default() += 1;
    }

    pub fn add(&mut self, other: &CommitInput) {
        for (chunk, frames) in &other.frames {
            *self.frames.entry(*chunk).or_default() += frames;
        }
        self.chunks |= other.chunks;
        self.columns += other.columns;
    }

    pub fn is_empty(&self) -> bool {
        self.frames.is_empty() && self.columns == 0
    }
}

impl Shape {
    /// For a run that continues.
    pub fn of(catalog: &mut Catalog) -> Shape {
        let widths = catalog.widths();
        let description = &catalog.description;
        let element = Element::new(!description.is_unfiltered(), description.chunk_bytes() as u64);
        let nodes = NodeShape::new(&element, catalog.chunks.grid().rank());
        Shape {
            goes_on: true,
            index: description.index_kind(),
            fixed: catalog.chunks.grid().chunks_max().into_iter().map(|count| count.unwrap_or(0)).product(),
            has_fixed: false,
            leaf: nodes.leaf_records(),
            levels: nodes.levels_max(catalog.chunks.count()),
            chunks: description.chunks_per_frame(),
            dense: is_dense(description),
            alone: description.chunk_group_frames() == 1,
            columns: widths.len() as u64,
            row_bytes: widths.into_iter().sum(),
            counts_all: catalog.layout.is_some(),
            frames: catalog.frames(),
            tree: 0,
            indexes: 0,
        }
    }

    /// The shape after a commit with this input.
    pub fn after(&self, brought: &CommitInput) -> Shape {
        let indexes = self.indexes + self.index_growth(brought);
        Shape { tree: self.tree_bytes(brought), indexes, has_fixed: self.has_fixed | brought.chunks, ..*self }
    }

    /// Upper limit for the tree.
    pub fn tree_bytes(&self, brought: &CommitInput) -> u64 {
        self.tree + TREE_GROWTH_BYTES + brought.columns
    }

    /// Upper limit for the chunks of columns and the indexes that a commit writes.
    pub fn data_bytes(&self, brought: &CommitInput) -> u64 {
        const ALIGN: u64 = 8;
        let columns = brought.frames.len() as u64 * (CHUNK_ROWS * self.row_bytes + ALIGN * self.columns);
        columns + self.indexes + self.index_growth(brought) + self.node_bytes(brought)
    }

    /// Upper limit for the growth of the indexes, without the nodes of a B-tree. It grows in steps, so that not every
    /// frame needs a slightly larger reservation.
    fn index_growth(&self, brought: &CommitInput) -> u64 {
        let touched = brought.frames.len() as u64;
        let index = match self.index {
            IndexKind::Implicit { .. } | IndexKind::BtreeV2 => 0,
            IndexKind::FixedArray if self.has_fixed || !brought.chunks => 0,
            IndexKind::FixedArray => ELEMENT_BYTES * self.fixed,
            IndexKind::ExtensibleArray => ELEMENT_BYTES * self.elements(brought),
        };
        // The columns have indexes as well; a chunk adds at most one block.
        let blocks = touched * self.columns * ELEMENT_BYTES * widest_block(self.frames / CHUNK_ROWS);
        let least = INDEX_BYTES_MIN * (1 + self.columns);
        index + index / 16 + blocks + least
    }

    /// Upper limit for the nodes of a B-tree that this input changes.
    fn node_bytes(&self, brought: &CommitInput) -> u64 {
        if self.index != IndexKind::BtreeV2 {
            return 0;
        }
        let levels = self.levels.max(LEVELS_MIN) + u64::from(step(self.frames).ilog2()) / LEVEL_BITS;
        // The records of a frame are adjacent. Each split of a node changes two, and one in each level above.
        let frame = 2 * (2 * self.chunks / self.leaf + 3) + 2 * levels;
        // A leaf is at least half full, or adjacent to a full one.
        let together = 5 * CHUNK_ROWS * self.chunks / self.leaf + 4 + 2 * levels;
        let of = |frames: &u64| match self.dense && self.alone {
            true => (step(*frames) * frame).min(together),
            false => step(*frames) * frame,
        };
        NODE_BYTES as u64 * (1 + brought.frames.values().map(of).sum::<u64>())
    }

    /// Upper limit for the elements that this input adds to an extensible array.
    fn elements(&self, brought: &CommitInput) -> u64 {
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

/// The next power of two, but at least a minimum.
fn step(frames: u64) -> u64 {
    const LEAST: u64 = 32;
    frames.max(LEAST).next_power_of_two()
}

/// Elements of the largest block of an extensible array with `elements` elements.
fn widest_block(elements: u64) -> u64 {
    const BLOCK_ELEMENTS_MIN: u64 = 16;
    4 * elements.isqrt().next_power_of_two() + BLOCK_ELEMENTS_MIN
}

/// Whether the dataset's array has no gaps between frames; gaps occur where the scan's inner sides may grow.
fn is_dense(description: &DatasetSpec) -> bool {
    description.scan_max.as_ref().is_none_or(|max| max[1..] == description.scan[1..])
}
