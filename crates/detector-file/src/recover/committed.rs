//! The file's last commit as a source for recovery. Its index has the chunks of frames whose journal records are lost.
//! A third-party HDF5 reader is used, because it is independent of the journal.

use super::stored::read_stored;
use hdf5_reader::chunk_index::{
    ChunkEntry as Indexed, collect_implicit_chunk_entries, collect_v2_chunk_entries_storage,
};
use hdf5_reader::extensible_array::collect_extensible_array_chunk_entries_storage;
use hdf5_reader::fixed_array::collect_fixed_array_chunk_entries_storage;
use hdf5_reader::messages::HdfMessage;
use hdf5_reader::messages::layout::{ChunkIndexing, DataLayout};
use hdf5_reader::{Dataset, Datatype, Hdf5File};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use varve_detector_dataset::catalog::Catalog;
use varve_detector_dataset::dataset_spec::{ScalarColumn, ScalarKind, Structure};
use varve_detector_dataset::frame::FrameStatus;
use varve_detector_dataset::geometry::unravel;
use varve_detector_dataset::journal_entry::{ChunkEntry, ChunkGroupEntry, FrameEntry, JournalEntry};
use varve_detector_dataset::structure;
use varve_detector_dataset::time::Nanoseconds;
use varve_detector_hdf5::superblock::{self, Superblock};
use varve_detector_hdf5::{ChunkMap, ChunkRecord, Group, Storage, TreeNode};
use xxhash_rust::xxh3::xxh3_64;

/// Width of addresses and lengths in files of this writer.
const WIDTH: u8 = 8;

type Read<T> = Result<T, hdf5_reader::error::Error>;

/// The last commit of a file.
pub(super) struct LastCommit {
    file: Hdf5File,
    /// Status by frame number.
    status: Vec<u8>,
    /// Chunks by chunk group, row-major within a frame.
    chunk_groups: BTreeMap<u64, Vec<ChunkRecord>>,
}

/// Path of the run's dataset that has these chunks.
fn path_of(catalog: &Catalog, chunks: &ChunkMap) -> Option<String> {
    fn find(group: &Group<'_>, path: &str, wanted: &ChunkMap) -> Option<String> {
        group.members.iter().find_map(|(name, node)| {
            let below = format!("{path}/{name}");
            match node {
                TreeNode::Group(group) => find(group, &below, wanted),
                TreeNode::Dataset(dataset) => match &dataset.storage {
                    Storage::Chunked { chunks, .. } if std::ptr::eq(*chunks, wanted) => Some(below),
                    _ => None,
                },
                TreeNode::HardLink(_) | TreeNode::SoftLink(_) => None,
            }
        })
    }
    find(&structure::tree(catalog), "", chunks)
}

/// Names of the members of the group at `path`, in order.
fn members(catalog: &Catalog, path: &str) -> Vec<String> {
    let mut group = structure::tree(catalog);
    for step in path.split('/').skip(1) {
        let below = group.members.into_iter().find_map(|(name, node)| match node {
            TreeNode::Group(group) if name == step => Some(group),
            _ => None,
        });
        let Some(below) = below else { return Vec::new() };
        group = below;
    }
    group.members.into_iter().map(|(name, _)| name).collect()
}

impl LastCommit {
    /// Reads the last commit of the file at `path`, which belongs to the run of `catalog`. `None` before the first
    /// commit.
    ///
    /// # Errors
    /// If the commit cannot be read.
    pub fn read(path: &Path, file: &File, catalog: &Catalog) -> Result<Option<LastCommit>, String> {
        let mut head = [0; superblock::LENGTH];
        match file.read_exact_at(&mut head, 0) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            read => read.map_err(|error| error.to_string())?,
        }
        if head.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        Superblock::decode(&head).ok_or("its superblock is damaged")?;
        LastCommit::open(path, catalog).map(Some).map_err(|error| error.to_string())
    }

    fn open(path: &Path, catalog: &Catalog) -> Read<LastCommit> {
        let file = Hdf5File::open(path)?;
        let place = |chunks| path_of(catalog, chunks).unwrap_or_default();
        let status = file.dataset(&place(catalog.status.chunks()))?.read_raw_bytes()?;
        let frames = file.dataset(&place(&catalog.chunks))?;
        let description = &catalog.description;
        let none = vec![ChunkRecord::ABSENT; description.chunks_per_frame() as usize];
        let mut chunk_groups = BTreeMap::new();
        for chunk in index(&file, &frames, description.chunk_bytes() as u64)? {
            let Some((chunk_group, number)) = description.chunk_at(&chunk.offsets) else { continue };
            let record = ChunkRecord { address: chunk.address, size: chunk.size, mask: chunk.filter_mask };
            chunk_groups.entry(chunk_group).or_insert_with(|| none.clone())[number] = record;
        }
        Ok(LastCommit { file, status, chunk_groups })
    }

    fn status_of(&self, frame: u64) -> FrameStatus {
        let byte = self.status.get(frame as usize);
        let known = FrameStatus::NAMES.iter().find(|(_, known)| Some(known) == byte);
        known.map_or(FrameStatus::Missing, |(_, known)| FrameStatus::from_byte(*known))
    }

    /// Columns of scalars in the file that `catalog` does not have, numbered after its own.
    pub fn columns(&self, catalog: &Catalog) -> Vec<JournalEntry> {
        let group = match &catalog.description.structure {
            Structure::Raw => Some("/scalars".to_owned()),
            Structure::Nexus => Some("/entry/instrument/detector/scalars".to_owned()),
            Structure::Layout(layout) => layout.default_group(),
        };
        let more = group.and_then(|group| self.columns_in(&group, catalog).ok()).unwrap_or_default();
        more.into_iter().map(|ScalarColumn { name, kind }| JournalEntry::Column { name, kind }).collect()
    }

    /// Columns in a group that `catalog` does not have. Links, and thus columns, are in the order of the columns'
    /// numbers. Returns none if these columns do not fully explain the group's members, because then something else is
    /// unknown, too.
    fn columns_in(&self, group: &str, catalog: &Catalog) -> Read<Vec<ScalarColumn>> {
        let place = if group.is_empty() { "/" } else { group };
        let header = self.file.get_or_parse_header(self.file.group(place)?.address())?;
        let links = header.messages.iter().filter_map(|message| match message {
            HdfMessage::Link(link) => Some(link.name.clone()),
            _ => None,
        });
        let links: Vec<String> = links.collect();
        let mut description = catalog.description.clone();
        description.scalars = catalog.scalars.iter().map(|(column, _)| column.clone()).collect();
        let known = members(&Catalog::new(description.clone()), group);
        let mut columns = Vec::new();
        for name in links.iter().filter(|name| !known.contains(name)) {
            let dataset = self.file.dataset(&format!("{group}/{name}"))?;
            let kind = match dataset.dtype() {
                Datatype::FloatingPoint { .. } => ScalarKind::Float,
                Datatype::FixedPoint { signed: true, .. } => ScalarKind::Integer,
                Datatype::FixedPoint { .. } => ScalarKind::Unsigned,
                _ => ScalarKind::Text(dataset.raw_element_size()?),
            };
            columns.push(ScalarColumn { name: name.clone(), kind });
        }
        description.scalars.extend(columns.iter().cloned());
        let explained = description.check().is_ok() && members(&Catalog::new(description), group) == links;
        Ok(if explained { columns } else { Vec::new() })
    }

    /// Entries for committed frames that `catalog` does not have, each with the time at which it became durable, if
    /// known. Excludes the chunk groups in `spoiled`, whose chunks in the file have changed. `bytes` is the file with
    /// all chunks.
    pub fn beyond(
        &self,
        catalog: &Catalog,
        bytes: &File,
        spoiled: &BTreeSet<u64>,
    ) -> io::Result<Vec<(JournalEntry, Option<Nanoseconds>)>> {
        let mut entries = Vec::new();
        let mut times = None;
        for (chunk_group, chunks) in &self.chunk_groups {
            let frames: Vec<u64> = catalog.description.frames_of(*chunk_group).collect();
            let more = |frame: &u64| worth(self.status_of(*frame)) > worth(catalog.status_of(*frame));
            if spoiled.contains(chunk_group) || !frames.iter().any(more) {
                continue;
            }
            let Some(chunks_there) =
                chunks.iter().map(|chunk| stored(bytes, chunk)).collect::<io::Result<Option<Vec<_>>>>()?
            else {
                entries.extend(frames.into_iter().filter(more).map(|frame| (JournalEntry::Damaged { frame }, None)));
                continue;
            };
            let times = times.get_or_insert_with(|| self.times(catalog));
            let there = frames.into_iter().filter(|frame| worth(self.status_of(*frame)) > 0);
            let missing = self.missing(catalog, chunks);
            let time = |which: usize, frame: u64| times[which].get(frame as usize).copied().unwrap_or(0);
            let frame = |number: u64| FrameEntry {
                number,
                times: std::array::from_fn(|which| time(which, number)),
                missing: if self.status_of(number) == FrameStatus::Partial { missing.clone() } else { Vec::new() },
            };
            let frames: Vec<FrameEntry> = there.map(frame).collect();
            let durable = frames.iter().map(|frame| time(4, frame.number)).max().filter(|time| *time > 0);
            // Replaces a journal entry for a part of the same chunk group.
            let entry =
                ChunkGroupEntry { chunk_group: *chunk_group, epoch: 0, again: true, frames, chunks: chunks_there };
            entries.push((JournalEntry::ChunkGroup(entry), durable));
        }
        for (frame, known) in (0..self.status.len() as u64).map(|frame| (frame, catalog.status_of(frame))) {
            match (self.status_of(frame), known) {
                (FrameStatus::Damaged, FrameStatus::Missing) => entries.push((JournalEntry::Damaged { frame }, None)),
                (FrameStatus::Duplicate, FrameStatus::Missing | FrameStatus::Received | FrameStatus::Damaged)
                    if !spoiled.contains(&catalog.description.chunk_group_of(frame).0) =>
                {
                    entries.push((JournalEntry::Duplicate { frame }, None));
                }
                _ => {}
            }
        }
        Ok(entries)
    }

    /// Frames that were published as late; no journal record says so.
    pub fn late(&self) -> impl Iterator<Item = u64> {
        (0..self.status.len() as u64).filter(|frame| self.status_of(*frame) == FrameStatus::Late)
    }

    /// Values of scalars in the file that `catalog` does not have.
    pub fn scalars(&self, catalog: &Catalog) -> Vec<JournalEntry> {
        let mut rows: BTreeMap<u64, Vec<_>> = BTreeMap::new();
        for (number, (column, values)) in catalog.scalars.iter().enumerate() {
            let Some(bytes) = path_of(catalog, values.chunks()).and_then(|path| self.raw(&path).ok()) else { continue };
            for (frame, element) in bytes.chunks_exact(values.row_bytes() as usize).enumerate() {
                if !values.has(frame as u64)
                    && let Some(value) = column.kind.value(element)
                {
                    rows.entry(frame as u64).or_default().push((number as u32, value));
                }
            }
        }
        rows.into_iter().map(|(frame, values)| JournalEntry::Scalars { frame, values }).collect()
    }

    fn raw(&self, path: &str) -> Read<Vec<u8>> {
        self.file.dataset(path)?.read_raw_bytes()
    }

    /// The times of each frame; unreadable times are unknown.
    fn times(&self, catalog: &Catalog) -> [Vec<Nanoseconds>; 5] {
        std::array::from_fn(|which| {
            let path = path_of(catalog, catalog.times[which].chunks());
            let bytes = path.and_then(|path| self.raw(&path).ok()).unwrap_or_default();
            bytes.as_chunks().0.iter().map(|time| u64::from_le_bytes(*time)).collect()
        })
    }

    /// Sources of a partial frame that may be missing: those whose regions are not proven present by chunks that
    /// contain only them. The file does not record which regions are missing.
    fn missing(&self, catalog: &Catalog, chunks: &[ChunkRecord]) -> Vec<u32> {
        let description = &catalog.description;
        let regions = description.regions();
        let (sides, counts) = (description.chunk(), description.chunk_counts());
        let touches = |source: usize, chunk: usize| {
            let at = unravel(chunk as u64, &counts);
            let region = &regions[source];
            (0..sides.len()).all(|side| {
                let (first, offset) = (at[side] * sides[side], region.offset[side]);
                first < offset + region.shape[side] && offset < first + sides[side]
            })
        };
        let proven = |source: usize| {
            let mut own = (0..chunks.len()).filter(|chunk| touches(source, *chunk));
            let alone = |chunk| (0..regions.len()).all(|other| other == source || !touches(other, chunk));
            description.chunk_group_frames() == 1 && own.all(|chunk| !chunks[chunk].is_absent() && alone(chunk))
        };
        let missing: Vec<u32> =
            (0..regions.len()).filter(|source| !proven(*source)).map(|source| source as u32).collect();
        if missing.is_empty() { (0..regions.len() as u32).collect() } else { missing }
    }
}

/// How complete a frame with this status is.
fn worth(status: FrameStatus) -> u8 {
    match status {
        FrameStatus::Missing | FrameStatus::Damaged => 0,
        FrameStatus::Partial => 1,
        FrameStatus::Received | FrameStatus::Duplicate | FrameStatus::Late => 2,
    }
}

/// The journal entry of a chunk of the commit; chunks were synced before the commit. `None` if the store has lost its
/// bytes.
fn stored(file: &File, chunk: &ChunkRecord) -> io::Result<Option<ChunkEntry>> {
    let ChunkRecord { address, size, mask } = *chunk;
    let bytes = match chunk.is_absent() {
        true => Some(Vec::new()),
        false => read_stored(file, address..address.saturating_add(size))?,
    };
    Ok(bytes.map(|bytes| ChunkEntry { address, size, mask, checksum: xxh3_64(&bytes) }))
}

/// The chunks of a dataset; an unfiltered chunk has `chunk_bytes`.
fn index(file: &Hdf5File, dataset: &Dataset, chunk_bytes: u64) -> Read<Vec<Indexed>> {
    let header = file.get_or_parse_header(dataset.address())?;
    let layout = header.messages.iter().find_map(|message| match message {
        HdfMessage::DataLayout(message) => Some(&message.layout),
        _ => None,
    });
    let Some(DataLayout::Chunked { address, dims, chunk_indexing: Some(kind), .. }) = layout else {
        return Ok(Vec::new());
    };
    let (storage, shape, max) = (file.storage(), dataset.shape(), dataset.max_dims());
    // The last dimension is the size of an element.
    let dims = &dims[..shape.len().min(dims.len())];
    let mut chunks = match kind {
        ChunkIndexing::FixedArray { .. } => {
            let all = max.unwrap_or(shape);
            collect_fixed_array_chunk_entries_storage(storage, *address, WIDTH, WIDTH, all, dims, None)
        }
        ChunkIndexing::ExtensibleArray { .. } => {
            collect_extensible_array_chunk_entries_storage(storage, *address, WIDTH, WIDTH, shape, max, dims, None)
        }
        ChunkIndexing::BTreeV2 => {
            collect_v2_chunk_entries_storage(storage, *address, WIDTH, WIDTH, dims.len() as u32, dims, None)
        }
        ChunkIndexing::Implicit => {
            let elements = dims.iter().map(|side| u64::from(*side)).product::<u64>().max(1);
            let element_bytes = (chunk_bytes / elements) as usize;
            collect_implicit_chunk_entries(*address, shape, dims, element_bytes, None, storage.len())
        }
        ChunkIndexing::SingleChunk { .. } => Ok(Vec::new()),
    }?;
    let (end, size_max) = (storage.len(), chunk_bytes.saturating_mul(2).max(1 << 20));
    for chunk in &mut chunks {
        // The index has no sizes for unfiltered chunks.
        chunk.size = if chunk.size == 0 { chunk_bytes } else { chunk.size };
    }
    chunks.retain(|chunk| {
        chunk.size <= size_max && chunk.address.checked_add(chunk.size).is_some_and(|after| after <= end)
    });
    Ok(chunks)
}
