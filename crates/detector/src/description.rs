//! What is said of a run before it starts: shape, type, chunks, filter, structure. It is checked as a whole, so that a run
//! that starts can be written to its end.

pub mod nxmx;

use crate::filters::Filter;
use crate::hdf5::{ElementType, Grid};
use crate::layout::Layout;
use crate::structure;
use nxmx::Nxmx;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// HDF5's own limit is 32 dimensions; detectors have frames of two or three, and a scan rarely more than three.
const RANK_MAX: usize = 8;
/// HDF5's limit for one chunk is 4 GiB; and LZ4 takes no block of 2 GiB.
const CHUNK_BYTES_MAX: u64 = 1 << 30;
/// An object header takes attributes and links below 64 KiB each; names are far below.
const NAME_BYTES_MAX: usize = 255;
const COLUMNS_MAX: usize = 1024;
/// As an attribute it must fit a message of an object header, which has less than 64 KiB with the name.
pub const VALUE_BYTES_MAX: usize = 60_000;

/// One run. In JSON, with unknown keys refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    pub element: ElementType,
    /// Sides of a frame in elements, the slowest first.
    pub frame: Vec<u64>,
    /// Sides of the scan, the slowest first; `null` where it has no end, which only the first may have. Absent: one
    /// side without end.
    #[serde(default = "endless")]
    pub scan: Vec<Option<u64>>,
    /// Sides of a chunk within a frame; absent: the frame.
    #[serde(default)]
    pub chunk: Option<Vec<u64>>,
    #[serde(default = "bslz4")]
    pub filter: Filter,
    /// What missing elements read as, converted to `element`; absent: zero.
    #[serde(default)]
    pub fill: Option<f64>,
    #[serde(default)]
    pub structure: Structure,
    /// Names of the scalars of each frame, in the order in which they come.
    #[serde(default)]
    pub scalars: Vec<String>,
    /// What holds for the whole run, by name; a layout's NDAttributes that are no scalars.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, RunValue>,
    /// What NXmx wants to know, for the structure `nexus`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nxmx: Option<Nxmx>,
    #[serde(default)]
    pub allocate: Allocate,
}

fn endless() -> Vec<Option<u64>> {
    vec![None]
}

fn bslz4() -> Filter {
    Filter::BSLZ4
}

/// The groups and datasets of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Structure {
    /// `/data` and what belongs to it, at the root.
    #[default]
    Raw,
    /// NXentry, NXinstrument, NXdetector, NXdata.
    Nexus,
    /// As a layout file says; in JSON its text.
    Layout(Layout),
}

/// What holds for the whole run, as long as nobody says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum RunValue {
    Integer(i64),
    Float(f64),
    Text(String),
}

/// How chunks get their addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Allocate {
    /// One after the other, so that many go to the file in one write.
    #[default]
    Packed,
    /// Each at the space that it takes uncompressed; what is not written stays a hole.
    Sparse,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run cannot start: {0}")]
pub struct BadDescription(pub String);

/// Whether a group's member may have this name.
pub fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name != "." && !name.contains(['/', '\0'])
}

impl Description {
    /// A description with everything by default.
    pub fn new(element: ElementType, frame: Vec<u64>) -> Description {
        Description {
            element,
            frame,
            scan: endless(),
            chunk: None,
            filter: bslz4(),
            fill: None,
            structure: Structure::default(),
            scalars: Vec::new(),
            values: BTreeMap::new(),
            nxmx: None,
            allocate: Allocate::default(),
        }
    }

    /// # Errors
    /// If no file can be written from it; says what is wrong and what would be right.
    pub fn check(&self) -> Result<(), BadDescription> {
        let bad = |text: String| Err(BadDescription(text));
        if !(1..=3).contains(&self.frame.len()) || self.frame.contains(&0) {
            return bad(format!("`frame` is {:?}; give one to three sides above 0", self.frame));
        }
        if self.scan.is_empty() || self.scan.len() + self.frame.len() > RANK_MAX || self.scan.contains(&Some(0)) {
            return bad(format!(
                "`scan` has {} sides; give 1 to {}, none 0",
                self.scan.len(),
                RANK_MAX - self.frame.len()
            ));
        }
        if self.scan[1..].contains(&None) {
            return bad("a side of `scan` other than the first is null; only the first may have no end".into());
        }
        let chunk = self.chunk();
        if chunk.len() != self.frame.len()
            || chunk.iter().zip(&self.frame).any(|(chunk, side)| *chunk == 0 || chunk > side)
        {
            return bad(format!(
                "`chunk` is {chunk:?}; give a side from 1 to the frame's for each of {:?}",
                self.frame
            ));
        }
        let size = self.element.size() as u64;
        let bytes = |sides: &[u64]| sides.iter().try_fold(size, |bytes, side| bytes.checked_mul(*side));
        if bytes(&chunk).is_none_or(|bytes| bytes > CHUNK_BYTES_MAX) {
            return bad(format!(
                "a chunk of {chunk:?} has more than {CHUNK_BYTES_MAX} bytes; give smaller sides in `chunk`"
            ));
        }
        if bytes(&self.frame).is_none_or(|bytes| bytes > CHUNK_BYTES_MAX) {
            return bad(format!("a frame of {:?} has more than {CHUNK_BYTES_MAX} bytes", self.frame));
        }
        let frames = self.scan.iter().flatten().try_fold(1_u64, |all, side| all.checked_mul(*side));
        let chunks = frames.and_then(|frames| frames.checked_mul(self.chunks_per_frame()));
        if chunks.is_none_or(|chunks| chunks > u64::from(u32::MAX)) {
            return bad(format!("`scan` {:?} has more than 2^32 chunks", self.scan));
        }
        self.check_names()?;
        if let Some(nxmx) = &self.nxmx {
            nxmx.check(&self.frame)?;
            if self.structure != Structure::Nexus {
                return bad("`nxmx` is for the structure `nexus`; a layout file names its own datasets".into());
            }
        }
        structure::check(self).map_err(|why| BadDescription(why.to_string()))
    }

    fn check_names(&self) -> Result<(), BadDescription> {
        if self.scalars.len() > COLUMNS_MAX || self.values.len() > COLUMNS_MAX {
            let (scalars, values) = (self.scalars.len(), self.values.len());
            return Err(BadDescription(format!(
                "{scalars} scalars and {values} values; {COLUMNS_MAX} at most of each"
            )));
        }
        for (number, name) in self.scalars.iter().enumerate() {
            if !is_name(name) || self.scalars[..number].contains(name) {
                return Err(BadDescription(format!(
                    "the scalar `{name}` has a name that is empty, too long, given twice, or contains `/`"
                )));
            }
        }
        for (name, value) in &self.values {
            let long = matches!(value, RunValue::Text(text) if text.len() > VALUE_BYTES_MAX);
            if !is_name(name) || self.scalars.contains(name) || long {
                return Err(BadDescription(format!(
                    "the value `{name}` has a name that is empty, too long, a scalar's, or contains `/`; \
                     or a text of more than {VALUE_BYTES_MAX} bytes"
                )));
            }
        }
        Ok(())
    }

    /// Sides of a chunk within a frame.
    pub fn chunk(&self) -> Vec<u64> {
        self.chunk.clone().unwrap_or_else(|| self.frame.clone())
    }

    /// Chunks of a frame along each side.
    pub fn chunk_counts(&self) -> Vec<u64> {
        self.frame.iter().zip(self.chunk()).map(|(side, chunk)| side.div_ceil(chunk)).collect()
    }

    pub fn chunks_per_frame(&self) -> u64 {
        self.chunk_counts().iter().product()
    }

    pub fn frame_bytes(&self) -> usize {
        self.frame.iter().product::<u64>() as usize * self.element.size()
    }

    pub fn chunk_bytes(&self) -> usize {
        self.chunk().iter().product::<u64>() as usize * self.element.size()
    }

    /// Frames that the run has at most.
    pub fn frames_max(&self) -> Option<u64> {
        self.scan.iter().copied().product()
    }

    /// Where in the scan frame `number` lies: row-major.
    pub fn place(&self, number: u64) -> Vec<u64> {
        let mut rest = number;
        let mut place: Vec<u64> = self.scan[1..]
            .iter()
            .rev()
            .map(|side| {
                let side = side.expect("checked: inner sides end");
                let at = rest % side;
                rest /= side;
                at
            })
            .collect();
        place.push(rest);
        place.reverse();
        place
    }

    /// The dataset's shape with the frames below `frames`.
    pub fn grid(&self, frames: u64) -> Grid {
        let inner: u64 = self.scan[1..].iter().map(|side| side.expect("checked: inner sides end")).product();
        let mut dims = vec![frames.div_ceil(inner)];
        dims.extend(self.scan[1..].iter().flatten());
        dims.extend(&self.frame);
        let max = self.scan.iter().copied().chain(self.frame.iter().map(|side| Some(*side))).collect();
        let chunk = self.scan.iter().map(|_| 1).chain(self.chunk()).collect();
        Grid::new(dims, max, chunk, self.element.size())
    }

    /// The fill value as one element.
    pub fn fill_element(&self) -> Vec<u8> {
        let value = self.fill.unwrap_or(0.0);
        match self.element {
            ElementType::U8 => (value as u8).to_le_bytes().to_vec(),
            ElementType::U16 => (value as u16).to_le_bytes().to_vec(),
            ElementType::U32 => (value as u32).to_le_bytes().to_vec(),
            ElementType::U64 => (value as u64).to_le_bytes().to_vec(),
            ElementType::I8 => (value as i8).to_le_bytes().to_vec(),
            ElementType::I16 => (value as i16).to_le_bytes().to_vec(),
            ElementType::I32 => (value as i32).to_le_bytes().to_vec(),
            ElementType::I64 => (value as i64).to_le_bytes().to_vec(),
            ElementType::F16 => half(value).to_le_bytes().to_vec(),
            ElementType::F32 => (value as f32).to_le_bytes().to_vec(),
            ElementType::F64 => value.to_le_bytes().to_vec(),
        }
    }
}

/// The bits of the nearest half-precision number towards zero; too large a number becomes infinite, too small a one zero.
fn half(value: f64) -> u16 {
    let bits = (value as f32).to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    if value.is_nan() {
        return sign | 0x7e00;
    }
    match (bits >> 23 & 0xff) as i32 - 112 {
        ..=0 => sign,
        31.. => sign | 0x7c00,
        exponent => sign | (exponent as u16) << 10 | (bits >> 13 & 0x3ff) as u16,
    }
}

#[cfg(test)]
mod tests;
