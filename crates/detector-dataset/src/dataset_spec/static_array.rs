//! Arrays of the whole run, such as a pixel mask or a flatfield. They lie in the file before its first frame and are
//! written once, before anything is acknowledged.

use super::{Allocate, DatasetSpec};
use crate::limits::{BadDatasetSpec, is_name};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use varve_detector_filters::{Compression, Decoder, Encoder, Filter};
use varve_detector_hdf5::{ElementType, superblock};

/// The group for arrays that NXmx has no place for.
pub const SPECIFIC: &str = "detectorSpecific";
/// Ends the names of the groups of a detector's channels.
pub const CHANNEL_SUFFIX: &str = "_channel";
pub const PIXEL_MASK: &str = "pixel_mask";
/// NXmx's names for arrays of a detector or of one of its channels.
const NXMX: [&str; 6] = [
    PIXEL_MASK,
    "flatfield",
    "flatfield_error",
    "flatfield_errors",
    "angular_calibration",
    "countrate_correction_lookup_table",
];
/// The dataset that the run writes into the group of a channel.
pub(crate) const CHANNEL_ENERGY: &str = "threshold_energy";
/// Mask, flatfield and a table for each of sixteen channels.
const ARRAYS_MAX: usize = 64;
/// Limit for one array before compression; a flatfield of the largest detectors has 72 MB.
pub const ARRAY_BYTES_MAX: u64 = 1 << 28;
const RANK_MAX: usize = 4;
/// Blocks of a file system: an array's blocks of zeros stay holes.
const ALIGN: u64 = 4096;

/// One array. Its JSON form may contain the elements, compressed by bitshuffle+LZ4, as base64.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "ArrayForm", into = "ArrayForm")]
pub struct StaticArray {
    /// Path below the detector's group: `pixel_mask`, `threshold_2_channel/flatfield`, `detectorSpecific/NAME`.
    pub path: String,
    pub element: ElementType,
    /// Sides, slowest first.
    pub shape: Vec<u64>,
    /// Row-major, little-endian. `None`: they are in the run's file.
    pub data: Option<Arc<Vec<u8>>>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "an array: an object with `path`, `element`, `shape` and `data`")]
struct ArrayForm {
    path: String,
    element: ElementType,
    shape: Vec<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
}

impl TryFrom<ArrayForm> for StaticArray {
    type Error = String;

    fn try_from(form: ArrayForm) -> Result<StaticArray, String> {
        let ArrayForm { path, element, shape, data } = form;
        let mut array = StaticArray { path, element, shape, data: None };
        if let Some(data) = data {
            let bytes = array.bytes().filter(|bytes| *bytes <= ARRAY_BYTES_MAX);
            let bytes = bytes.ok_or_else(|| format!("the array `{}` is too large", array.path))?;
            let damaged = |why: String| format!("the data of the array `{}` are damaged: {why}", array.path);
            let packed = STANDARD.decode(data).map_err(|error| damaged(error.to_string()))?;
            if Compression::BitshuffleLz4.plain_bytes(&packed) != Some(bytes as usize) {
                return Err(damaged("they have another length than the array".into()));
            }
            let decoder = Decoder { filter: Filter::BSLZ4, element_bytes: element.size() };
            let plain = decoder.decode(&packed, bytes as usize).map_err(|error| damaged(error.to_string()))?;
            array.data = Some(Arc::new(plain));
        }
        Ok(array)
    }
}

impl From<StaticArray> for ArrayForm {
    fn from(array: StaticArray) -> ArrayForm {
        let StaticArray { path, element, shape, data } = array;
        let pack = |plain: Arc<Vec<u8>>| {
            let mut packed = Vec::new();
            let mut encoder = Encoder::new(Filter::BSLZ4, element.size()).expect("bitshuffle takes 1 to 8 bytes");
            encoder.encode(&plain, &mut packed).expect("LZ4 takes any array");
            STANDARD.encode(packed)
        };
        ArrayForm { path, element, shape, data: data.map(pack) }
    }
}

impl StaticArray {
    /// An array with its elements; `name` is a name of NXmx, another name, or `CHANNEL/NAME`.
    pub fn named(name: &str, element: ElementType, shape: Vec<u64>, data: Vec<u8>) -> StaticArray {
        let path = match name.split_once('/') {
            Some((channel, name)) => format!("{channel}{CHANNEL_SUFFIX}/{name}"),
            None if NXMX.contains(&name) => name.to_owned(),
            None => format!("{SPECIFIC}/{name}"),
        };
        StaticArray { path, element, shape, data: Some(Arc::new(data)) }
    }

    /// The last component of the path.
    pub fn name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(&self.path)
    }

    fn bytes(&self) -> Option<u64> {
        self.shape.iter().try_fold(self.element.size() as u64, |bytes, side| bytes.checked_mul(*side))
    }

    fn check(&self, frame: &[u64]) -> Result<(), String> {
        let (path, shape) = (&self.path, &self.shape);
        let names: Vec<&str> = path.split('/').collect();
        // Two members of a group with one name would hide one of them: the frames, or their status.
        let lies = match names[..] {
            [name] => NXMX.contains(&name),
            [group, CHANNEL_ENERGY] if group.ends_with(CHANNEL_SUFFIX) => {
                return Err(format!("the array `{path}` has the name of the channel's energy; give it another name"));
            }
            [group, name] => {
                let is_group = group == SPECIFIC || group.ends_with(CHANNEL_SUFFIX);
                is_group && is_name(group) && is_name(name)
            }
            _ => false,
        };
        if !lies {
            return Err(format!(
                "the array `{path}` has no place: give `{SPECIFIC}/NAME`, `CHANNEL{CHANNEL_SUFFIX}/NAME`, or one of {}",
                NXMX.join(", ")
            ));
        }
        if shape.is_empty() || shape.len() > RANK_MAX || shape.contains(&0) {
            return Err(format!("the array `{path}` has the shape {shape:?}; give 1 to {RANK_MAX} sides above 0"));
        }
        let Some(bytes) = self.bytes().filter(|bytes| *bytes <= ARRAY_BYTES_MAX) else {
            return Err(format!("the array `{path}` of {shape:?} has more than {ARRAY_BYTES_MAX} bytes"));
        };
        if self.data.as_ref().is_some_and(|data| data.len() as u64 != bytes) {
            return Err(format!("the array `{path}` of {shape:?} does not have {bytes} bytes"));
        }
        let image = &frame[frame.len().saturating_sub(2)..];
        let is_image = [PIXEL_MASK, "flatfield", "flatfield_error", "flatfield_errors"].contains(&self.name());
        if is_image && *shape != image && *shape != frame {
            return Err(format!("the array `{path}` has the shape {shape:?}, the images have {image:?}"));
        }
        if self.name() == PIXEL_MASK && self.element != ElementType::U32 {
            return Err(format!("the array `{path}` has elements of type {}; a mask has u32", self.element));
        }
        Ok(())
    }
}

impl DatasetSpec {
    pub(crate) fn check_arrays(&self) -> Result<(), BadDatasetSpec> {
        if self.arrays.len() > ARRAYS_MAX {
            return Err(BadDatasetSpec(format!("{} arrays; {ARRAYS_MAX} at most", self.arrays.len())));
        }
        for (number, array) in self.arrays.iter().enumerate() {
            array.check(&self.frame).map_err(BadDatasetSpec)?;
            if self.arrays[..number].iter().any(|other| other.path == array.path) {
                return Err(BadDatasetSpec(format!("the array `{}` is given twice", array.path)));
            }
        }
        let regions = self.nxmx.as_ref().is_some_and(|nxmx| !nxmx.pixel_mask.is_empty());
        if regions && self.array(PIXEL_MASK).is_some() {
            return Err(BadDatasetSpec("the pixel mask is given as an array and by regions; give one of them".into()));
        }
        Ok(())
    }

    pub fn array(&self, path: &str) -> Option<&StaticArray> {
        self.arrays.iter().find(|array| array.path == path)
    }

    /// Takes the elements out of the arrays. Copies of the spec in journals and records name the arrays only, because
    /// their addresses follow from the spec.
    pub fn take_array_data(&mut self) -> Vec<Option<Arc<Vec<u8>>>> {
        self.arrays.iter_mut().map(|array| array.data.take()).collect()
    }

    /// Address of each array.
    pub fn array_addresses(&self) -> Vec<u64> {
        let mut next = self.arrays_start();
        let mut place = |array: &StaticArray| {
            let address = next.next_multiple_of(ALIGN);
            next = address + array.bytes().expect("checked: arrays are small");
            address
        };
        self.arrays.iter().map(&mut place).collect()
    }

    fn arrays_start(&self) -> u64 {
        match self.allocate {
            Allocate::Implicit => {
                self.implicit_address(self.frames_max().expect("checked: the scan ends") * self.chunks_per_frame())
            }
            Allocate::Packed | Allocate::Sparse => superblock::LENGTH as u64,
        }
    }

    /// First address that the allocator hands out.
    pub fn first_address(&self) -> u64 {
        match (self.array_addresses().last(), self.arrays.last()) {
            (Some(address), Some(array)) => {
                (address + array.bytes().expect("checked: arrays are small")).next_multiple_of(ALIGN)
            }
            _ => self.arrays_start(),
        }
    }
}

#[cfg(test)]
mod tests;
