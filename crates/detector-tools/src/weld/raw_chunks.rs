//! Chunks as a file stores them. The reader of HDF5 files gives decompressed chunks only; filters that keep their input
//! and return bytes of the right number give it nothing to decompress.

use super::{WeldError, unfit};
use crate::replay::element;
use hdf5_reader::{DatasetChunkIterator, FilterRegistry, Hdf5File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use varve_detector_filters::{Compression, Filter, GZIP_LEVEL, ZSTD_LEVEL};
use varve_detector_hdf5::ElementType;

/// HDF5 limits a chunk to 4 GiB; frames here are limited to a quarter of it.
const CHUNK_BYTES_MAX: usize = 1 << 30;

pub struct RawChunk {
    pub frame: u64,
    /// Number of the chunk along each side of the frame.
    pub place: Vec<u64>,
    pub bytes: Vec<u8>,
}

pub struct RawChunks {
    path: PathBuf,
    pub element: ElementType,
    pub frames: u64,
    /// Sides of a frame.
    pub shape: Vec<u64>,
    /// Sides of a chunk within a frame.
    pub chunk: Vec<u64>,
    iterator: DatasetChunkIterator,
    kept: Arc<Mutex<Kept>>,
    /// Read to learn the filter, and not returned yet.
    first: Option<RawChunk>,
}

/// The input of the filters for one chunk.
#[derive(Default)]
struct Kept {
    /// The chunk as it is stored; the last filter of the pipeline gets it first.
    chunk: Option<Vec<u8>>,
    /// Number and values of the filters, in the order of reading.
    filters: Vec<(u16, Vec<u32>)>,
}

impl RawChunks {
    pub fn open(path: &Path, dataset: &str) -> Result<RawChunks, WeldError> {
        let kept = Arc::new(Mutex::new(Kept::default()));
        // The size of a chunk is known only after the dataset was opened with the filters.
        let length = Arc::new(Mutex::new(0));
        let options = OpenOptions::default()
            .with_filter_registry(keeping_filters(&kept, &length))
            .with_max_chunk_bytes(CHUNK_BYTES_MAX)
            .with_chunk_cache_bytes(0);
        let file = Hdf5File::open_with_options(path, options).or_else(|error| unfit(path, error))?;
        let found = file.dataset(dataset).or_else(|error| unfit(path, format!("{dataset}: {error}")))?;
        let Some(element) = element(found.dtype()) else {
            return unfit(path, format!("{dataset}: its elements are no little-endian integers or floats"));
        };
        let (shape, chunk) = (found.shape().to_vec(), found.chunks().unwrap_or_default());
        let chunk: Vec<u64> = chunk.into_iter().map(u64::from).collect();
        if shape.len() != 3 || chunk.len() != 3 || chunk[0] != 1 {
            return unfit(
                path,
                format!("{dataset}: it has shape {shape:?} in chunks {chunk:?}; chunks of one frame each are needed"),
            );
        }
        *length.lock().unwrap_or_else(PoisonError::into_inner) =
            chunk.iter().product::<u64>() as usize * element.size();
        let iterator = found.iter_chunks().or_else(|error| unfit(path, error))?;
        let (frames, shape, chunk) = (shape[0], shape[1..].to_vec(), chunk[1..].to_vec());
        Ok(RawChunks { path: path.to_owned(), element, frames, shape, chunk, iterator, kept, first: None })
    }

    /// The filter of the dataset; `None` if it has no chunk.
    pub fn filter(&mut self) -> Result<Option<Filter>, WeldError> {
        self.first = self.next_chunk()?;
        if self.first.is_none() {
            return Ok(None);
        }
        let filters = self.kept.lock().unwrap_or_else(PoisonError::into_inner).filters.clone();
        let level =
            |values: &[u32], at: usize, default| values.get(at).copied().filter(|level| *level > 0).unwrap_or(default);
        let filters: Vec<(u16, &[u32])> = filters.iter().map(|(id, values)| (*id, &values[..])).collect();
        let (last, shuffle) = match filters[..] {
            [] => return Ok(Some(Filter::RAW)),
            [last] => (last, false),
            [last, (SHUFFLE, _)] => (last, true),
            _ => return unfit(&self.path, "its dataset has more than two filters"),
        };
        let compression = match last {
            (GZIP, values) => Compression::Gzip { level: level(values, 0, GZIP_LEVEL).min(9) },
            (LZ4, _) => Compression::Lz4,
            (ZSTD, values) => Compression::Zstd { level: level(values, 0, ZSTD_LEVEL as u32).min(22) as i32 },
            (BITSHUFFLE, values) if values.get(4) == Some(&2) => Compression::BitshuffleLz4,
            (BITSHUFFLE, values) if values.get(4) == Some(&3) => {
                Compression::BitshuffleZstd { level: level(values, 5, ZSTD_LEVEL as u32).min(22) as i32 }
            }
            (id, _) => return unfit(&self.path, format!("filter {id} of its dataset cannot be copied")),
        };
        Ok(Some(Filter { shuffle, compression }))
    }

    pub fn next_chunk(&mut self) -> Result<Option<RawChunk>, WeldError> {
        if let Some(first) = self.first.take() {
            return Ok(Some(first));
        }
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = Kept::default();
        let Some(chunk) = self.iterator.next() else { return Ok(None) };
        let chunk = chunk.or_else(|error| unfit(&self.path, error))?;
        if chunk.filter_mask() != 0 {
            return unfit(&self.path, "a chunk was stored without its filters");
        }
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner).chunk.take();
        let bytes = kept.unwrap_or_else(|| chunk.bytes().to_vec());
        let place = chunk.offsets()[1..].iter().zip(&self.chunk).map(|(at, side)| at / side).collect();
        Ok(Some(RawChunk { frame: chunk.offsets()[0], place, bytes }))
    }
}

const GZIP: u16 = 1;
const SHUFFLE: u16 = 2;
const LZ4: u16 = 32004;
const BITSHUFFLE: u16 = 32008;
const ZSTD: u16 = 32015;

fn keeping_filters(kept: &Arc<Mutex<Kept>>, length: &Arc<Mutex<usize>>) -> FilterRegistry {
    let mut registry = FilterRegistry::new();
    for id in [GZIP, SHUFFLE, LZ4, BITSHUFFLE, ZSTD] {
        let (kept, length) = (Arc::clone(kept), Arc::clone(length));
        registry.register(
            id,
            Box::new(move |description, chunk, _| {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.filters.push((id, description.client_data.clone()));
                kept.chunk.get_or_insert_with(|| chunk.to_vec());
                Ok(vec![0; *length.lock().unwrap_or_else(PoisonError::into_inner)])
            }),
        );
    }
    registry
}
