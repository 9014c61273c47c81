//! One file from several: the frames that a virtual dataset shows are copied to a new file, chunk by chunk, without being
//! decompressed.
//!
//! [`mapping`] reads where the frames lie, [`raw_chunks`] reads chunks as they are stored. Entry: [`weld`].

mod mapping;
mod raw_chunks;

use mapping::{FrameMapping, VirtualDataset};
use raw_chunks::{RawChunk, RawChunks};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use varve_detector_dataset::dataset_spec::DatasetSpec;
use varve_detector_dataset::frame::{Blob, Frame, Payload};
use varve_detector_file::run_files;
use varve_detector_filters::{Encoder, Filter};
use varve_detector_hdf5::ElementType;
use varve_detector_writer::{Finished, Settings, WriteError, Writer};

/// Limit of the wait for one frame. Only a store that hangs takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum WeldError {
    #[error("{path}: {why}")]
    Unfit { path: PathBuf, why: String },
    #[error(transparent)]
    Write(#[from] WriteError),
}

fn unfit<T>(path: &Path, why: impl ToString) -> Result<T, WeldError> {
    Err(WeldError::Unfit { path: path.to_owned(), why: why.to_string() })
}

/// Writes the frames of the virtual dataset in `master` to the new file `out`. `dataset`: the name of the dataset in the
/// files that it shows, if `master` has several virtual datasets of frames. `adapt` may change the spec of the new file.
///
/// # Errors
/// If the virtual dataset cannot be read, its files differ in type, shape, chunks or filter, or `out` cannot be written.
pub fn weld(
    master: &Path,
    dataset: Option<&str>,
    out: &Path,
    adapt: impl FnOnce(&mut DatasetSpec),
) -> Result<Finished, WeldError> {
    let virtual_dataset = VirtualDataset::read(master, dataset)?;
    let mut sources = Vec::new();
    let mut form: Option<Form> = None;
    for mapping in &virtual_dataset.mappings {
        let mut chunks = RawChunks::open(&mapping.file, &mapping.dataset)?;
        let own = Form { element: chunks.element, chunk: chunks.chunk.clone(), filter: chunks.filter()? };
        let form = form.get_or_insert_with(|| own.clone());
        form.filter = form.filter.or(own.filter);
        if (Form { filter: own.filter.or(form.filter), ..own }) != *form {
            return unfit(&mapping.file, "its dataset has another type, chunk or filter than the first file");
        }
        let place = Placement::new(mapping, &chunks)?;
        sources.push(Source { chunks, place, next: None });
    }
    let Some(form) = form else { return unfit(master, "its virtual dataset shows no file") };
    let mut description = DatasetSpec::new(form.element, virtual_dataset.frame.clone());
    description.scan = vec![Some(virtual_dataset.frames)];
    description.chunk = Some(form.chunk.clone());
    description.filter = form.filter.unwrap_or(Filter::RAW);
    adapt(&mut description);
    copy(description, &mut sources, virtual_dataset.frames, out)
}

/// Properties that all files must have in common.
#[derive(Clone, PartialEq, Eq)]
struct Form {
    element: ElementType,
    /// Sides of a chunk within a frame.
    chunk: Vec<u64>,
    /// `None`: no chunk was seen yet.
    filter: Option<Filter>,
}

/// Where the chunks of one file lie in the virtual dataset.
struct Placement {
    /// The virtual frame of each frame of the file.
    frames: BTreeMap<u64, u64>,
    /// Offset of the file's window in the virtual frame, in chunks.
    shift: Vec<i64>,
    /// The first chunk of the file's window, and the chunk after the last one.
    window: Vec<(u64, u64)>,
}

impl Placement {
    fn new(mapping: &FrameMapping, chunks: &RawChunks) -> Result<Placement, WeldError> {
        let whole = || chunks.shape.iter().map(|side| (0, *side)).collect();
        let source_window: Vec<(u64, u64)> = mapping.source.window.clone().unwrap_or_else(whole);
        let target_window = mapping.target.window.clone().unwrap_or_else(|| source_window.clone());
        let numbers: Vec<u64> = match &mapping.source.frames {
            Some(ranges) => ranges.iter().cloned().flatten().collect(),
            None => (0..chunks.frames).collect(),
        };
        let targets: Vec<u64> = match &mapping.target.frames {
            Some(ranges) => ranges.iter().cloned().flatten().collect(),
            None => (0..numbers.len() as u64).collect(),
        };
        let sides = |window: &[(u64, u64)]| window.iter().map(|(_, side)| *side).collect::<Vec<_>>();
        if numbers.len() != targets.len() || sides(&source_window) != sides(&target_window) {
            return unfit(&mapping.file, "the virtual dataset shows its frames in another shape");
        }
        let (mut shift, mut window) = (Vec::new(), Vec::new());
        for (((from, side), (to, _)), chunk) in source_window.iter().zip(&target_window).zip(&chunks.chunk) {
            // The last chunk of a frame may be cut off by the frame's side.
            if from % chunk != 0 || to % chunk != 0 {
                return unfit(&mapping.file, "the virtual dataset cuts through its chunks");
            }
            shift.push((to / chunk) as i64 - (from / chunk) as i64);
            window.push((from / chunk, (from + side).div_ceil(*chunk)));
        }
        Ok(Placement { frames: numbers.into_iter().zip(targets).collect(), shift, window })
    }

    /// The virtual frame of a chunk, and its place in that frame; `None` if the virtual dataset does not show it.
    fn of(&self, chunk: &RawChunk) -> Option<(u64, Vec<u64>)> {
        let number = *self.frames.get(&chunk.frame)?;
        let place = chunk.place.iter().zip(&self.shift).zip(&self.window).map(|((at, shift), (first, end))| {
            (first..end).contains(&at).then(|| at.checked_add_signed(*shift)).flatten()
        });
        Some((number, place.collect::<Option<_>>()?))
    }
}

struct Source {
    chunks: RawChunks,
    place: Placement,
    /// The next chunk that the virtual dataset shows.
    next: Option<(u64, Vec<u64>, Vec<u8>)>,
}

impl Source {
    fn advance(&mut self) -> Result<(), WeldError> {
        self.next = None;
        while let Some(chunk) = self.chunks.next_chunk()? {
            if let Some((number, place)) = self.place.of(&chunk) {
                self.next = Some((number, place, chunk.bytes));
                return Ok(());
            }
        }
        Ok(())
    }
}

fn copy(description: DatasetSpec, sources: &mut [Source], frames: u64, out: &Path) -> Result<Finished, WeldError> {
    let filler = filler(&description, out)?;
    let writer = Writer::create(out, description.clone(), Settings::default(), Arc::new(()))?;
    let finished = match copy_frames(&description, &filler, sources, frames, &writer) {
        Ok(()) => writer.finish().map_err(WeldError::from),
        Err(error) => {
            drop(writer);
            Err(error)
        }
    };
    finished.or_else(|failure| {
        // The sources have all frames. The journal is removed last, because a file without one counts as finished.
        for path in [out, &run_files::journal_of(out)] {
            run_files::remove_if_there(path)
                .or_else(|error| unfit(path, format!("{failure}; what was written cannot be removed: {error}")))?;
        }
        Err(failure)
    })
}

fn copy_frames(
    description: &DatasetSpec,
    filler: &[u8],
    sources: &mut [Source],
    frames: u64,
    writer: &Writer,
) -> Result<(), WeldError> {
    let counts = description.chunk_counts();
    let chunks = description.chunks_per_frame() as usize;
    sources.iter_mut().try_for_each(Source::advance)?;
    for number in 0..frames {
        let mut found: Vec<Option<Blob>> = vec![None; chunks];
        for source in &mut *sources {
            while let Some((_, place, bytes)) = source.next.take_if(|(own, ..)| *own <= number) {
                let at = place.iter().zip(&counts).try_fold(0, |at, (place, count)| {
                    (place < count).then_some(at * *count as usize + *place as usize)
                });
                if let Some(at) = at {
                    found[at] = Some(bytes.into());
                }
                source.advance()?;
            }
        }
        if found.iter().all(Option::is_none) {
            continue;
        }
        let blobs = found.into_iter().map(|blob| blob.unwrap_or_else(|| filler.to_vec().into())).collect();
        writer.submit(Frame { number, taken: 0, payload: Payload::Filtered(blobs) }, PATIENCE)?;
    }
    Ok(())
}

/// The chunk of fill values that stands for a chunk that no file has.
fn filler(description: &DatasetSpec, out: &Path) -> Result<Vec<u8>, WeldError> {
    let plain = vec![0; description.chunk_bytes()];
    if description.filter == Filter::RAW {
        return Ok(plain);
    }
    let mut chunk = Vec::new();
    let encoded = Encoder::new(description.filter, description.element.size())
        .and_then(|mut encoder| encoder.encode(&plain, &mut chunk));
    encoded.or_else(|error| unfit(out, error))?;
    Ok(chunk)
}

#[cfg(test)]
mod tests;
