//! Frames in the normative type NTNDArray.

use crate::field::{FieldType, PvNumber, StructureType};
use crate::value::PvValue;
use crate::{BadPva, bad};
use varve_detector_hdf5::ElementType;

/// HDF5 and areaDetector have at most this many dimensions.
const DIMENSIONS_MAX: usize = 10;

#[derive(Clone, Debug, PartialEq)]
pub struct PvaFrame {
    pub unique_id: i64,
    /// Sides in elements, slowest first.
    pub shape: Vec<u64>,
    pub element: ElementType,
    pub codec: PvaCodec,
    /// The elements, little-endian; or what the codec made of them.
    pub bytes: Vec<u8>,
    /// When the frame was taken, in nanoseconds since 1970; 0 if unknown.
    pub taken: u64,
    /// The driver's own time stamp in seconds.
    pub driver_time: f64,
    pub attributes: Vec<(String, PvValue)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PvaCodec {
    Plain,
    Lz4,
    BitshuffleLz4,
    /// One that the service's filters do not have.
    Other(String),
}

/// Takes the frame out of the value of a subscription; `None` if it has no elements, as before the first acquisition.
///
/// # Errors
/// If it is not an NTNDArray, or contradicts itself.
pub fn take(structure: &StructureType, value: &mut PvValue) -> Result<Option<PvaFrame>, BadPva> {
    let mut parts = Parts::of(structure, value)?;
    let (number, mut bytes) = match parts.part("value")? {
        PvValue::Numbers(number, bytes) => (*number, std::mem::take(bytes)),
        PvValue::Absent => return Ok(None),
        _ => return bad("`value` is not an array of numbers"),
    };
    if bytes.is_empty() {
        return Ok(None);
    }
    let (codec, number) = codec(&mut parts, number)?;
    let shape = shape(parts.part("dimension")?, structure)?;
    let element = element(number);
    let elements = shape.iter().try_fold(1_u64, |product, side| product.checked_mul(*side));
    let plain = elements.and_then(|elements| elements.checked_mul(element.size() as u64));
    if codec == PvaCodec::Plain {
        if plain != Some(bytes.len() as u64) {
            return bad(format!("{} bytes are not a frame of {shape:?} {}", bytes.len(), element.name()));
        }
    } else {
        // The array may be longer than what the codec made.
        let compressed = parts.part("compressedSize")?.integer().and_then(|size| usize::try_from(size).ok());
        match compressed {
            Some(size) if size > 0 && size <= bytes.len() => bytes.truncate(size),
            _ => return bad(format!("`compressedSize` is not within the {} bytes of the array", bytes.len())),
        }
    }
    let unique_id =
        parts.part("uniqueId")?.integer().ok_or_else(|| BadPva("`uniqueId` is not an integer".to_owned()))?;
    let (taken, driver_time) = (parts.time("timeStamp"), parts.time("dataTimeStamp"));
    let taken = taken.filter(|(seconds, _)| *seconds > 0).map_or(0, |(seconds, nanoseconds)| {
        (seconds as u64).saturating_mul(1_000_000_000).saturating_add(nanoseconds.max(0) as u64)
    });
    let driver_time = driver_time.map_or(0.0, |(seconds, nanoseconds)| seconds as f64 + nanoseconds as f64 / 1e9);
    let attributes = parts.attributes()?;
    Ok(Some(PvaFrame { unique_id, shape, element, codec, bytes, taken, driver_time, attributes }))
}

/// Fields of a structure, by name.
struct Parts<'s, 'v> {
    structure: &'s StructureType,
    values: &'v mut Vec<PvValue>,
}

impl<'s, 'v> Parts<'s, 'v> {
    fn of(structure: &'s StructureType, value: &'v mut PvValue) -> Result<Parts<'s, 'v>, BadPva> {
        match value {
            PvValue::Structure(values) if values.len() == structure.fields.len() => Ok(Parts { structure, values }),
            _ => bad("the PV has no value"),
        }
    }

    fn part(&mut self, name: &str) -> Result<&mut PvValue, BadPva> {
        let at = self.structure.position(name);
        at.and_then(|at| self.values.get_mut(at))
            .ok_or_else(|| BadPva(format!("the PV is no NTNDArray: it has no field `{name}`")))
    }

    fn inner(&mut self, name: &str) -> Option<Parts<'s, '_>> {
        let at = self.structure.position(name)?;
        match (&self.structure.fields[at].1, self.values.get_mut(at)?) {
            (FieldType::Structure(structure), value) => Parts::of(structure, value).ok(),
            _ => None,
        }
    }

    fn time(&mut self, name: &str) -> Option<(i64, i64)> {
        let mut time = self.inner(name)?;
        let seconds = time.part("secondsPastEpoch").ok()?.integer()?;
        Some((seconds, time.part("nanoseconds").ok()?.integer().unwrap_or(0)))
    }

    fn attributes(&mut self) -> Result<Vec<(String, PvValue)>, BadPva> {
        let Some(at) = self.structure.position("attribute") else { return Ok(Vec::new()) };
        let FieldType::Structures(kind) = &self.structure.fields[at].1 else { return Ok(Vec::new()) };
        let PvValue::Many(attributes) = &self.values[at] else { return Ok(Vec::new()) };
        let (Some(name), Some(value)) = (kind.position("name"), kind.position("value")) else {
            return bad("attributes have no name or no value");
        };
        let pair = |attribute: &PvValue| match attribute {
            PvValue::Structure(fields) => match (&fields[name], &fields[value]) {
                (PvValue::Text(name), value) => Some((name.clone(), value.clone())),
                _ => None,
            },
            _ => None,
        };
        Ok(attributes.iter().filter_map(pair).collect())
    }
}

/// The codec, and the type of the elements before compression.
fn codec(parts: &mut Parts<'_, '_>, number: PvNumber) -> Result<(PvaCodec, PvNumber), BadPva> {
    let Some(mut codec) = parts.inner("codec") else { return Ok((PvaCodec::Plain, number)) };
    let name = match codec.part("name")? {
        PvValue::Text(name) if !name.is_empty() => name.clone(),
        _ => return Ok((PvaCodec::Plain, number)),
    };
    let original = codec.part("parameters")?.integer().and_then(|code| PvNumber::ALL.get(usize::try_from(code).ok()?));
    let Some(original) = original else { return bad(format!("codec `{name}` does not name the type of its elements")) };
    let codec = match name.as_str() {
        "lz4" => PvaCodec::Lz4,
        "bslz4" => PvaCodec::BitshuffleLz4,
        _ => PvaCodec::Other(name),
    };
    Ok((codec, *original))
}

fn shape(dimensions: &PvValue, structure: &StructureType) -> Result<Vec<u64>, BadPva> {
    let kind = structure.position("dimension").map(|at| &structure.fields[at].1);
    let (PvValue::Many(dimensions), Some(FieldType::Structures(kind))) = (dimensions, kind) else {
        return bad("`dimension` is not an array of structures");
    };
    let Some(size) = kind.position("size") else { return bad("a dimension has no size") };
    if !(1..=DIMENSIONS_MAX).contains(&dimensions.len()) {
        return bad(format!("a frame has {} dimensions; 1 to {DIMENSIONS_MAX} are possible", dimensions.len()));
    }
    let side = |dimension: &PvValue| match dimension {
        PvValue::Structure(fields) => fields[size].integer().and_then(|side| u64::try_from(side).ok()),
        _ => None,
    };
    // areaDetector names the fastest first.
    let sides: Option<Vec<u64>> = dimensions.iter().rev().map(side).collect();
    sides.ok_or_else(|| BadPva("a dimension is not positive".into()))
}

fn element(number: PvNumber) -> ElementType {
    match number {
        PvNumber::Byte => ElementType::I8,
        PvNumber::Short => ElementType::I16,
        PvNumber::Int => ElementType::I32,
        PvNumber::Long => ElementType::I64,
        PvNumber::Boolean | PvNumber::UByte => ElementType::U8,
        PvNumber::UShort => ElementType::U16,
        PvNumber::UInt => ElementType::U32,
        PvNumber::ULong => ElementType::U64,
        PvNumber::Float => ElementType::F32,
        PvNumber::Double => ElementType::F64,
    }
}
