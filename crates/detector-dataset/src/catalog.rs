//! State of all frames of a run, from which commits are written. Pure; journal entries are applied in any order.

use crate::column::Column;
use crate::commit_data::CommitData;
use crate::dataset_spec::{DatasetSpec, Scalar, ScalarColumn, Structure};
use crate::frame::{FrameCounts, FrameStatus, Times};
use crate::geometry::unravel;
use crate::journal_entry::{ChunkGroupEntry, FrameEntry, JournalEntry};
use crate::layout_columns::LayoutColumns;
use crate::time::Nanoseconds;
use std::collections::BTreeSet;
use varve_detector_hdf5::{ChunkMap, ChunkRecord, Datatype, ElementType, index};

#[derive(Debug)]
pub struct Catalog {
    pub description: DatasetSpec,
    pub chunks: ChunkMap,
    /// Indexed by frame number, like all columns.
    pub status: Column,
    /// In the order of [`Times::NAMES`].
    pub times: [Column; 5],
    pub scalars: Vec<(ScalarColumn, Column)>,
    /// Columns that a layout file may request for every frame.
    pub layout: Option<LayoutColumns>,
    /// When the first and the last frame were taken.
    span: Option<(Nanoseconds, Nanoseconds)>,
    /// One past the highest frame number received. For a complete run: all frames of a bounded scan.
    frames: u64,
    /// One past the highest frame number with scalars.
    rows: u64,
    /// Number of frames by status.
    counted: [u64; FrameStatus::NAMES.len()],
    /// Frames that came again before their first arrival was applied.
    repeated: BTreeSet<u64>,
    /// Frame counts and times of past publications, both rising. They decide whether a frame is late.
    published: Vec<(u64, Nanoseconds)>,
}

impl Catalog {
    pub fn new(description: DatasetSpec) -> Catalog {
        let chunks = ChunkMap::new(description.grid(0), !description.is_unfiltered());
        let status = Datatype::Enumeration(FrameStatus::NAMES.to_vec());
        let time = |_| Column::new(Datatype::Number(ElementType::U64), vec![0; 8]);
        let laid_out = matches!(description.structure, Structure::Layout(_));
        let mut catalog = Catalog {
            layout: laid_out.then(LayoutColumns::new),
            span: None,
            chunks,
            status: Column::new(status, vec![FrameStatus::Missing as u8]),
            times: Times::NAMES.map(time),
            scalars: Vec::new(),
            frames: 0,
            rows: 0,
            counted: [0; FrameStatus::NAMES.len()],
            repeated: BTreeSet::new(),
            published: Vec::new(),
            description,
        };
        for column in catalog.description.scalars.clone() {
            catalog.column(column);
        }
        catalog
    }

    fn column(&mut self, column: ScalarColumn) {
        let values = Column::new(column.kind.datatype(), column.kind.fill());
        self.scalars.push((column, values));
    }

    /// Nanoseconds since 1970 at which the first and the last frame were taken. Falls back to the receive time if the
    /// detector reports none. `None` before the first frame.
    pub fn span(&self) -> Option<(Nanoseconds, Nanoseconds)> {
        self.span
    }

    /// One past the highest frame number received.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Applies a journal entry that was synced at `durable`.
    pub fn apply(&mut self, entry: &JournalEntry, durable: Nanoseconds) {
        match entry {
            JournalEntry::ChunkGroup(chunk_group) => self.chunk_group(chunk_group, durable),
            JournalEntry::Durable { .. } | JournalEntry::Granted { .. } => {}
            JournalEntry::Damaged { frame } => self.damage(*frame),
            JournalEntry::Column { name, kind } => self.column(ScalarColumn { name: name.clone(), kind: *kind }),
            JournalEntry::Scalars { frame, values } => self.row(*frame, values),
            JournalEntry::Duplicate { frame } => match self.status_of(*frame) {
                FrameStatus::Received | FrameStatus::Late => self.set_status(*frame, FrameStatus::Duplicate),
                // The first copy arrived earlier, but its entry is applied later.
                FrameStatus::Missing | FrameStatus::Damaged => {
                    self.repeated.insert(*frame);
                }
                FrameStatus::Partial | FrameStatus::Duplicate => {}
            },
        }
    }

    /// Values were checked on receipt; values of a damaged journal that fit no column are skipped.
    fn row(&mut self, frame: u64, values: &[(u32, Scalar)]) {
        for (number, value) in values {
            if let Some((column, elements)) = self.scalars.get_mut(*number as usize)
                && let Ok(element) = column.kind.element(value)
            {
                elements.set(frame, &element);
                self.rows = self.rows.max(frame + 1);
            }
        }
    }

    /// One of a frame's [`Times`]; 0 where unknown.
    pub fn time_of(&self, frame: u64, which: usize) -> Nanoseconds {
        u64::from_le_bytes(self.times[which].get(frame).try_into().expect("a time has 8 bytes"))
    }

    pub fn status_of(&self, frame: u64) -> FrameStatus {
        FrameStatus::from_byte(self.status.get(frame)[0])
    }

    /// Ends the run: frames of the scan that did not arrive are missing. An unbounded scan has no such frames.
    pub fn complete(&mut self) {
        if let Some(frames) = self.description.frames_max() {
            self.reach(frames);
        }
    }

    /// Ends the run: frames that have only scalars are missing and keep their scalars. Frames that never came in the
    /// last row of the data are missing, too.
    pub fn keep_rows(&mut self) {
        self.reach(self.rows);
        self.reach(self.frames.next_multiple_of(self.description.row_frames()));
    }

    /// Raises the frame count to at least `frames`; new frames are missing until they arrive.
    fn reach(&mut self, frames: u64) {
        if frames <= self.frames {
            return;
        }
        self.counted[FrameStatus::Missing as usize] += frames - self.frames;
        if let Some(layout) = &mut self.layout {
            layout.number(self.frames..frames);
        }
        self.frames = frames;
        self.chunks.grow(self.description.grid(frames).dims());
    }

    fn set_status(&mut self, frame: u64, status: FrameStatus) {
        self.reach(frame + 1);
        self.counted[self.status_of(frame) as usize] -= 1;
        self.counted[status as usize] += 1;
        self.status.set(frame, &[status as u8]);
    }

    fn chunk_group(&mut self, entry: &ChunkGroupEntry, durable: Nanoseconds) {
        let came = |catalog: &Catalog, frame: u64| {
            !matches!(catalog.status_of(frame), FrameStatus::Missing | FrameStatus::Damaged)
        };
        // Our writer never writes an entry that does not fit, as with scalars.
        if !entry.fits(&self.description) {
            return;
        }
        // A frame that has arrived is not overwritten, unless the same writer has combined it with parts that came
        // later.
        if !entry.again && entry.frames.iter().any(|frame| came(self, frame.number)) {
            for frame in &entry.frames {
                self.apply(&JournalEntry::Duplicate { frame: frame.number }, durable);
            }
            return;
        }
        for frame in &entry.frames {
            if came(self, frame.number) && self.status_of(frame.number) != FrameStatus::Partial {
                continue;
            }
            let status = match frame.missing.is_empty() {
                false => FrameStatus::Partial,
                // A frame that readers already found in part is not late.
                true if self.repeated.remove(&frame.number) => FrameStatus::Duplicate,
                true if !came(self, frame.number) && self.is_late(frame) => FrameStatus::Late,
                true => FrameStatus::Received,
            };
            self.set_status(frame.number, status);
            let [detector, received, compressed, written] = frame.times;
            let times = Times { detector, received, compressed, written, durable };
            let taken = if detector == 0 { received } else { detector };
            let (first, last) = self.span.unwrap_or((taken, taken));
            self.span = Some((first.min(taken), last.max(taken)));
            for (column, time) in self.times.iter_mut().zip(times.as_array()) {
                column.set(frame.number, &time.to_le_bytes());
            }
            if let Some(layout) = &mut self.layout {
                layout.set(frame.number, &times);
            }
        }
        let counts = self.description.chunk_counts();
        for (number, chunk) in entry.chunks.iter().enumerate() {
            let mut coordinates = self.description.cell(entry.chunk_group);
            coordinates.extend(unravel(number as u64, &counts));
            let record = ChunkRecord { address: chunk.address, size: chunk.size, mask: chunk.mask };
            self.chunks.set(&coordinates, record);
        }
    }

    /// Marks a frame as late when the caller saw it arrive late; journal entries do not record publication times.
    pub fn mark_late(&mut self, frame: u64) {
        if self.status_of(frame) == FrameStatus::Received {
            self.set_status(frame, FrameStatus::Late);
        }
    }

    /// Marks a frame as damaged: it arrived incomplete, or its bytes in the file are wrong.
    fn damage(&mut self, frame: u64) {
        if self.status_of(frame) == FrameStatus::Missing {
            self.set_status(frame, FrameStatus::Damaged);
        }
    }

    fn columns(&mut self) -> impl Iterator<Item = &mut Column> {
        let scalars = self.scalars.iter_mut().map(|(_, column)| column);
        let layout = self.layout.iter_mut().flat_map(LayoutColumns::columns);
        [&mut self.status].into_iter().chain(&mut self.times).chain(scalars).chain(layout)
    }

    /// Bytes per row of each column.
    pub fn widths(&mut self) -> Vec<u64> {
        self.columns().map(|column| column.row_bytes()).collect()
    }

    /// Upper limit for the block that [`Catalog::store`] returns.
    pub fn changed_bytes(&mut self) -> u64 {
        let index = index::changed_bytes(self.description.index_kind(), &self.chunks);
        index + self.columns().map(|column| column.changed_bytes()).sum::<u64>()
    }

    /// Returns the changed parts of all columns and indexes, to be written at `base` before the tree that refers to
    /// them. Afterwards all columns are as long as the number of frames.
    pub fn store(&mut self, base: u64) -> CommitData {
        let frames = self.frames;
        let mut data = CommitData::new(base);
        for column in self.columns() {
            column.store(frames, &mut data);
        }
        data.append_index(self.description.index_kind(), &mut self.chunks);
        data
    }

    /// Bytes of all that is stored in the file but the tree.
    pub fn stored_bytes(&mut self) -> u64 {
        let frames = self.chunks.present().map(|chunk| chunk.size).sum::<u64>() + self.chunks.whole_index_bytes();
        frames + self.columns().map(|column| column.stored_bytes()).sum::<u64>()
    }

    /// Gives the frames' chunks the addresses in another file, in which nothing else is stored yet.
    pub fn relocate(&mut self, address: &mut dyn FnMut(&ChunkRecord) -> u64) {
        self.chunks.relocate(address);
        self.columns().for_each(Column::forget_stored);
    }

    /// Bytes of the stored indexes, without the nodes of B-trees.
    pub fn index_bytes(&mut self) -> u64 {
        self.chunks.index_bytes() + self.columns().map(|column| column.chunks().index_bytes()).sum::<u64>()
    }

    /// Notes that all frames so far were published at `now`.
    pub fn publish(&mut self, now: Nanoseconds) {
        if self.published.last().is_none_or(|(frames, _)| *frames < self.frames) {
            self.published.push((self.frames, now));
        }
    }

    /// Whether a higher frame had been published when this one was received. Being overtaken by unpublished frames does
    /// not count.
    fn is_late(&self, frame: &FrameEntry) -> bool {
        let [_, received, ..] = frame.times;
        // A publication of exactly `number + 1` frames has no higher frame; it may have this one, marked as damaged.
        let at = self.published.partition_point(|(frames, _)| *frames <= frame.number + 1);
        self.published.get(at).is_some_and(|(_, time)| *time < received)
    }

    pub fn counts(&self) -> FrameCounts {
        let of = |status: FrameStatus| self.counted[status as usize];
        FrameCounts {
            frames: self.frames,
            received: of(FrameStatus::Received),
            missing: of(FrameStatus::Missing),
            damaged: of(FrameStatus::Damaged),
            duplicate: of(FrameStatus::Duplicate),
            late: of(FrameStatus::Late),
            partial: of(FrameStatus::Partial),
        }
    }
}
