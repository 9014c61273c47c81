//! Arrays from files: HDF5, NumPy's npy (version 1 to 3), TIFF.

use crate::replay::hdf5_array;
use std::io::{Cursor, Read};
use std::path::Path;
use tiff::decoder::{Decoder, DecodingResult};
use varve_detector_dataset::dataset_spec::static_array::ARRAY_BYTES_MAX;
use varve_detector_hdf5::ElementType;

pub struct FileArray {
    pub element: ElementType,
    pub shape: Vec<u64>,
    /// Row-major, little-endian.
    pub bytes: Vec<u8>,
}

/// Headers of other formats are shorter than their arrays.
const FILE_BYTES_MAX: u64 = ARRAY_BYTES_MAX + (1 << 20);

/// The format follows from the file's first bytes.
pub fn read(path: &Path, dataset: Option<&str>) -> Result<FileArray, String> {
    let text = |error: std::io::Error| error.to_string();
    let mut head = Vec::new();
    let file = std::fs::File::open(path).map_err(text)?;
    (&file).take(8).read_to_end(&mut head).map_err(text)?;
    if head == *b"\x89HDF\r\n\x1a\n" {
        let dataset = dataset.ok_or("an HDF5 file needs its dataset: FILE:/DATASET")?;
        let (element, shape, bytes) = hdf5_array(path, dataset)?;
        return Ok(FileArray { element, shape, bytes });
    }
    if dataset.is_some() {
        return Err("it is no HDF5 file, and has no datasets".into());
    }
    if file.metadata().map_err(text)?.len() > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes"));
    }
    let bytes = std::fs::read(path).map_err(text)?;
    match head.get(..4) {
        Some(b"\x93NUM") => npy(&bytes),
        Some(b"II*\0" | b"MM\0*" | b"II+\0" | b"MM\0+") => tiff(&bytes),
        _ => Err("it is neither HDF5, nor npy, nor TIFF".into()),
    }
}

/// Magic, version, length of the header, header: a dictionary of Python; then the elements.
fn npy(bytes: &[u8]) -> Result<FileArray, String> {
    let short = || "it is truncated".to_owned();
    let version = *bytes.get(6).ok_or_else(short)?;
    let (length, start) = match version {
        1 => (u32::from(u16::from_le_bytes(*bytes.get(8..).and_then(<[u8]>::first_chunk).ok_or_else(short)?)), 10),
        2 | 3 => (u32::from_le_bytes(*bytes.get(8..).and_then(<[u8]>::first_chunk).ok_or_else(short)?), 12),
        other => return Err(format!("npy of version {other} is not supported")),
    };
    let header = bytes.get(start..start + length as usize).ok_or_else(short)?;
    let header = String::from_utf8_lossy(header);
    let entry = |key: &str| header.split_once(key).map(|(_, rest)| rest.trim_start_matches(['\'', '"', ':', ' ']));
    let descr = entry("descr").and_then(|rest| rest.split(['\'', '"']).next()).ok_or("it has no `descr`")?;
    let shape = entry("shape").and_then(|rest| rest.strip_prefix('(')?.split_once(')')).ok_or("it has no `shape`")?;
    let sides = shape.0.split(',').map(str::trim).filter(|side| !side.is_empty());
    let shape =
        sides.map(str::parse).collect::<Result<Vec<u64>, _>>().map_err(|_| "its shape is no list of numbers")?;
    if entry("fortran_order").is_some_and(|rest| rest.starts_with("True")) && shape.len() > 1 {
        return Err("its elements are in Fortran's order; save numpy.ascontiguousarray of it".into());
    }
    let (order, kind) = descr.split_at_checked(1).ok_or("it has no type")?;
    let kind = if kind == "b1" { "u1" } else { kind };
    let name =
        kind.split_at_checked(1).and_then(|(letter, size)| Some(format!("{letter}{}", 8 * size.parse::<u32>().ok()?)));
    let element = name.and_then(|name| ElementType::named(&name));
    let element =
        element.ok_or_else(|| format!("elements of type `{descr}` are not supported; give integers or floats"))?;
    let mut data = bytes[start + length as usize..].to_vec();
    if order == ">" {
        data.chunks_exact_mut(element.size()).for_each(<[u8]>::reverse);
    }
    let wanted = shape.iter().try_fold(element.size() as u64, |bytes, side| bytes.checked_mul(*side));
    if wanted != Some(data.len() as u64) {
        return Err(short());
    }
    Ok(FileArray { element, shape, bytes: data })
}

fn tiff(bytes: &[u8]) -> Result<FileArray, String> {
    let text = |error: tiff::TiffError| error.to_string();
    let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(text)?;
    let (width, height) = decoder.dimensions().map_err(text)?;
    macro_rules! array {
        ($element:ident, $values:ident) => {
            (ElementType::$element, $values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())
        };
    }
    let (element, data) = match decoder.read_image().map_err(text)? {
        DecodingResult::U8(values) => array!(U8, values),
        DecodingResult::U16(values) => array!(U16, values),
        DecodingResult::U32(values) => array!(U32, values),
        DecodingResult::U64(values) => array!(U64, values),
        DecodingResult::I8(values) => array!(I8, values),
        DecodingResult::I16(values) => array!(I16, values),
        DecodingResult::I32(values) => array!(I32, values),
        DecodingResult::I64(values) => array!(I64, values),
        DecodingResult::F32(values) => array!(F32, values),
        DecodingResult::F64(values) => array!(F64, values),
        _ => return Err("its samples have a type that HDF5 files of frames do not have".into()),
    };
    let shape = vec![u64::from(height), u64::from(width)];
    if data.len() as u64 != shape.iter().product::<u64>() * element.size() as u64 {
        return Err("it has several samples a pixel; give an image in greyscale".into());
    }
    Ok(FileArray { element, shape, bytes: data })
}
