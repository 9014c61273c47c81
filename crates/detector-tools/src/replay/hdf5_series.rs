//! Frames from datasets in an HDF5 file. A third-party reader is used, because the file may come from any writer, in
//! any of the older layouts and with any of the filters that detectors use.

use super::error::{ReplayError, unfit};
use super::linked_files::LinkedFiles;
use hdf5_reader::{ByteOrder, Dataset, Datatype, FilterRegistry, Hdf5File, OpenOptions, SliceInfo, SliceInfoElem};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_detector_dataset::dataset_spec::static_array::ARRAY_BYTES_MAX;
use varve_detector_dataset::frame::FrameStatus;
use varve_detector_dataset::geometry::unravel;
use varve_detector_filters::{Compression, Decoder, Filter};
use varve_detector_hdf5::ElementType;

/// Usual paths of frames in files of NeXus, of this project, and of simple programs.
const PLACES: [&str; 4] = ["/entry/data/data", "/entry/instrument/detector/data", "/data", "/data/data"];
/// DECTRIS's file writer splits a series into `data_000001`, `data_000002`, …, linked from a master file.
const PARTS_MAX: u32 = 999_999;

pub struct Hdf5Series {
    path: PathBuf,
    /// The datasets in order, each with the number of its first frame.
    parts: Vec<(u64, Dataset)>,
    /// Number of dimensions of the scan: all but the last two of a part.
    rank: usize,
    /// Status of each frame, if this project wrote the file. Frames beyond it were not received.
    status: Option<Vec<u8>>,
}

type Opened = (Hdf5Series, ElementType, Vec<u64>, u64);

impl Hdf5Series {
    pub fn open(path: &Path, dataset: Option<&str>) -> Result<Opened, ReplayError> {
        let file = open(path).or_else(|error| unfit(path, error))?;
        let found = match dataset {
            Some(name) => vec![file.dataset(name).or_else(|error| unfit(path, format!("{name}: {error}")))?],
            None => find(&file).or_else(|error| unfit(path, error))?,
        };
        let Some(first) = found.first() else { return unfit(path, "it has no frames") };
        let (shape, datatype) = (first.shape().to_vec(), first.dtype().clone());
        let Some(element) = element(&datatype) else {
            return unfit(path, "the dataset's elements are no little-endian integers or floats");
        };
        if shape.len() < 3 || shape.contains(&0) {
            return unfit(path, format!("the dataset has the shape {shape:?}; replay needs two-dimensional frames"));
        }
        let frame = shape[shape.len() - 2..].to_vec();
        let (mut parts, mut frames) = (Vec::new(), 0);
        for part in found {
            if part.shape().len() != shape.len() || !part.shape().ends_with(&frame) || *part.dtype() != datatype {
                return unfit(path, "its datasets have different shapes or types");
            }
            let count: u64 = part.shape()[..shape.len() - 2].iter().product();
            parts.push((frames, part));
            frames += count;
        }
        let status = match status(&file, dataset) {
            Some(status) => Some(status.read_raw_bytes().or_else(|error| unfit(path, error))?),
            None => None,
        };
        let rank = shape.len() - 2;
        Ok((Hdf5Series { path: path.to_owned(), parts, rank, status }, element, frame, frames))
    }

    /// Whether the file marks the frame as missing or damaged; its elements then are the fill value.
    pub fn is_missing(&self, number: u64) -> bool {
        const ABSENT: [u8; 2] = [FrameStatus::Missing as u8, FrameStatus::Damaged as u8];
        let reported = |status: &Vec<u8>| status.get(number as usize).is_none_or(|status| ABSENT.contains(status));
        self.status.as_ref().is_some_and(reported)
    }

    pub fn frame_into(&self, number: u64, element: ElementType, bytes: &mut Vec<u8>) -> Result<(), ReplayError> {
        let part = self.parts.partition_point(|(first, _)| *first <= number) - 1;
        let (first, dataset) = &self.parts[part];
        let at = unravel(number - first, &dataset.shape()[..self.rank]);
        let whole = SliceInfoElem::Slice { start: 0, end: u64::MAX, step: 1 };
        let mut selections: Vec<SliceInfoElem> = at.into_iter().map(SliceInfoElem::Index).collect();
        selections.extend([whole.clone(), whole]);
        let slice = SliceInfo { selections };
        macro_rules! read {
            ($kind:ty) => {
                dataset.read_slice::<$kind>(&slice).map(|array| {
                    bytes.clear();
                    bytes.extend(array.iter().flat_map(|value| value.to_le_bytes()));
                })
            };
        }
        match element {
            ElementType::U8 => read!(u8),
            ElementType::U16 => read!(u16),
            ElementType::U32 => read!(u32),
            ElementType::U64 => read!(u64),
            ElementType::I8 => read!(i8),
            ElementType::I16 => read!(i16),
            ElementType::I32 => read!(i32),
            ElementType::I64 => read!(i64),
            ElementType::F32 => read!(f32),
            ElementType::F64 => read!(f64),
            ElementType::F16 => return unfit(&self.path, "cannot replay frames of half precision"),
        }
        .or_else(|error| unfit(&self.path, error))
    }
}

fn open(path: &Path) -> Result<Hdf5File, hdf5_reader::error::Error> {
    let options = OpenOptions::default()
        .with_filter_registry(filters())
        .with_external_link_resolver(Arc::new(LinkedFiles::beside(path)));
    Hdf5File::open_with_options(path, options)
}

/// A whole dataset: type, shape, and its elements as little-endian bytes.
///
/// # Errors
/// If it cannot be read, or is too large. The error says why.
pub fn hdf5_array(path: &Path, dataset: &str) -> Result<(ElementType, Vec<u64>, Vec<u8>), String> {
    let text = |error: hdf5_reader::error::Error| error.to_string();
    let found = open(path).and_then(|file| file.dataset(dataset)).map_err(text)?;
    let element = element(found.dtype()).ok_or("its elements are no little-endian integers or floats")?;
    let shape = found.shape().to_vec();
    let bytes = shape.iter().try_fold(element.size() as u64, |bytes, side| bytes.checked_mul(*side));
    if bytes.is_none_or(|bytes| bytes > ARRAY_BYTES_MAX) {
        return Err(format!("the dataset {dataset} of {shape:?} has more than {ARRAY_BYTES_MAX} bytes"));
    }
    Ok((element, shape, found.read_raw_bytes().map_err(text)?))
}

/// The parts of a DECTRIS master file, which may have a virtual dataset of them besides, or the frames' dataset.
fn find(file: &Hdf5File) -> Result<Vec<Dataset>, String> {
    let part = |part: u32| file.dataset(&format!("/entry/data/data_{part:06}"));
    let parts: Vec<Dataset> = (1..=PARTS_MAX).map_while(|number| part(number).ok()).collect();
    if !parts.is_empty() {
        return Ok(parts);
    }
    match (PLACES.iter().find_map(|place| file.dataset(place).ok()), part(1)) {
        (Some(whole), _) => Ok(vec![whole]),
        (None, Ok(first)) => Ok(vec![first]),
        (None, Err(error)) => {
            let places = PLACES.join(", ");
            Err(format!("no frames at {places}; give their dataset; /entry/data/data_000001: {error}"))
        }
    }
}

/// The frame status in files of this project: beside the frames' dataset, or in the detector's group.
fn status(file: &Hdf5File, dataset: Option<&str>) -> Option<Dataset> {
    let beside = dataset.and_then(|name| name.rsplit_once('/')).map(|(group, _)| format!("{group}/frame_status"));
    let usual = ["/entry/instrument/detector/frame_status", "/frame_status"].map(str::to_owned);
    beside.into_iter().chain(usual).filter_map(|place| file.dataset(&place).ok()).find(|found| {
        let Datatype::Enum { members, .. } = found.dtype() else { return false };
        members.iter().map(|member| member.name.as_str()).eq(FrameStatus::NAMES.map(|(name, _)| name))
    })
}

pub fn element(datatype: &Datatype) -> Option<ElementType> {
    let name = match datatype {
        Datatype::FixedPoint { size, signed, byte_order: ByteOrder::LittleEndian, .. } => {
            format!("{}{}", if *signed { 'i' } else { 'u' }, u32::from(*size) * 8)
        }
        Datatype::FloatingPoint { size, byte_order: ByteOrder::LittleEndian, .. } => {
            format!("f{}", u32::from(*size) * 8)
        }
        _ => return None,
    };
    ElementType::named(&name)
}

/// Filters of detector files that HDF5 readers do not have by default.
pub fn filters() -> FilterRegistry {
    let mut registry = FilterRegistry::new();
    let mut add = |id: u16, compression: Compression| {
        registry.register(
            id,
            Box::new(move |description, chunk, element_bytes| {
                // Bitshuffle's fifth value is its codec: 2 LZ4, 3 zstd.
                let compression = match (compression, description.client_data.get(4)) {
                    (Compression::BitshuffleLz4, Some(3)) => Compression::BitshuffleZstd { level: 0 },
                    (other, _) => other,
                };
                let decoder = Decoder { filter: Filter { shuffle: false, compression }, element_bytes };
                let length = compression.plain_bytes(chunk).filter(|length| *length <= LENGTH_MAX);
                let length = length.ok_or_else(|| broken("a chunk has no length"))?;
                decoder.decode(chunk, length).map_err(|error| broken(&error.to_string()))
            }),
        );
    };
    add(32004, Compression::Lz4);
    add(32008, Compression::BitshuffleLz4);
    add(32015, Compression::Zstd { level: 0 });
    registry
}

/// HDF5 limits a chunk to 4 GiB; frames here are limited to a quarter of it.
const LENGTH_MAX: usize = 1 << 30;

fn broken(why: &str) -> hdf5_reader::error::Error {
    hdf5_reader::error::Error::InvalidData(why.to_owned())
}
