//! The fill value of missing elements.

use crate::half::half;
use serde::{Deserialize, Serialize};
use std::fmt;
use varve_detector_hdf5::ElementType;

/// A fill value as given, independent of the element type. In JSON a number, or `"nan"`, `"inf"`, `"-inf"`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(try_from = "FillForm", into = "FillForm")]
pub enum Fill {
    /// At least -2^63 and below 2^64, the range of integers in JSON.
    Whole(i128),
    /// Not an integer, or outside that range.
    Float(f64),
}

/// Compares the values as given: NaN equals itself.
impl PartialEq for Fill {
    fn eq(&self, other: &Fill) -> bool {
        match (self, other) {
            (Fill::Whole(one), Fill::Whole(other)) => one == other,
            (Fill::Float(one), Fill::Float(other)) => one.to_bits() == other.to_bits(),
            _ => false,
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(untagged, expecting = "`fill` must be a number, or \"nan\", \"inf\" or \"-inf\"")]
enum FillForm {
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(String),
}

impl From<f64> for Fill {
    fn from(value: f64) -> Fill {
        const WHOLE: std::ops::Range<f64> = -9_223_372_036_854_775_808.0..18_446_744_073_709_551_616.0;
        if WHOLE.contains(&value) && value.fract() == 0.0 { Fill::Whole(value as i128) } else { Fill::Float(value) }
    }
}

impl TryFrom<FillForm> for Fill {
    type Error = String;

    fn try_from(form: FillForm) -> Result<Fill, String> {
        Ok(match form {
            FillForm::Unsigned(value) => Fill::Whole(value.into()),
            FillForm::Signed(value) => Fill::Whole(value.into()),
            FillForm::Float(value) => value.into(),
            FillForm::Text(text) => match text.as_str() {
                "nan" => Fill::Float(f64::NAN),
                "inf" => Fill::Float(f64::INFINITY),
                "-inf" => Fill::Float(f64::NEG_INFINITY),
                _ => return Err(format!("`fill` is {text:?}; give a number, or \"nan\", \"inf\" or \"-inf\"")),
            },
        })
    }
}

impl From<Fill> for FillForm {
    fn from(fill: Fill) -> FillForm {
        match fill {
            Fill::Whole(value) => match u64::try_from(value) {
                Ok(value) => FillForm::Unsigned(value),
                Err(_) => FillForm::Signed(value as i64),
            },
            Fill::Float(value) if value.is_finite() => FillForm::Float(value),
            Fill::Float(value) => FillForm::Text(value.to_string().to_lowercase()),
        }
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fill::Whole(value) => value.fmt(f),
            Fill::Float(value) => value.fmt(f),
        }
    }
}

impl Fill {
    fn as_f64(self) -> f64 {
        match self {
            Fill::Whole(value) => value as f64,
            Fill::Float(value) => value,
        }
    }

    /// Whether the element's bits are all zero.
    pub fn is_zero(self) -> bool {
        self == Fill::Whole(0)
    }

    /// # Errors
    /// If no element has this value, or for floats a value near it. The error says which values are allowed.
    pub fn check(self, element: ElementType) -> Result<(), String> {
        let why = match (range(element), self) {
            (Some((least, most)), Fill::Whole(value)) if (least..=most).contains(&value) => return Ok(()),
            (Some((least, most)), _) => format!("give a whole number from {least} to {most}"),
            (None, fill) => {
                let (value, largest) = (fill.as_f64(), largest(element));
                if !value.is_finite() || value.abs() <= largest {
                    return Ok(());
                }
                format!("give a number from -{largest:e} to {largest:e}")
            }
        };
        Err(format!("`fill` is {self}, which is not a value of type {}; {why}", element.name()))
    }

    /// This number if the element type can represent it, else the nearest one.
    pub fn nearest(self, element: ElementType) -> Fill {
        match (range(element), self) {
            (None, _) if self.check(element).is_ok() => self,
            (None, _) => Fill::Float(f64::INFINITY.copysign(self.as_f64())),
            (Some((least, most)), Fill::Whole(value)) => Fill::Whole(value.clamp(least, most)),
            (Some((least, most)), Fill::Float(value)) => Fill::Whole((value as i128).clamp(least, most)),
        }
    }

    /// The bytes of the element nearest to this number.
    pub fn element(self, element: ElementType) -> Vec<u8> {
        let nearest = self.nearest(element);
        let value = nearest.as_f64();
        match (element, nearest) {
            (ElementType::F16, _) => half(value).to_le_bytes().to_vec(),
            (ElementType::F32, _) => (value as f32).to_le_bytes().to_vec(),
            (ElementType::F64, _) => value.to_le_bytes().to_vec(),
            (_, Fill::Whole(value)) => value.to_le_bytes()[..element.size()].to_vec(),
            (_, Fill::Float(_)) => unreachable!("what is nearest of whole numbers is one"),
        }
    }
}

/// The least and the largest element; `None` for floats.
fn range(element: ElementType) -> Option<(i128, i128)> {
    let bits = 8 * element.size() as u32;
    match element {
        ElementType::U8 | ElementType::U16 | ElementType::U32 | ElementType::U64 => Some((0, (1 << bits) - 1)),
        ElementType::I8 | ElementType::I16 | ElementType::I32 | ElementType::I64 => {
            Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1))
        }
        ElementType::F16 | ElementType::F32 | ElementType::F64 => None,
    }
}

/// The largest finite float.
fn largest(element: ElementType) -> f64 {
    const HALF_MAX: f64 = 65_504.0;
    match element {
        ElementType::F16 => HALF_MAX,
        ElementType::F32 => f64::from(f32::MAX),
        _ => f64::MAX,
    }
}
