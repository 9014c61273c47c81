//! Scalars of each frame: the columns and their values.

use serde::{Deserialize, Serialize};
use std::fmt;
use varve_detector_hdf5::{Datatype, ElementType};

/// Default size of a text in bytes.
const TEXT_BYTES: usize = 64;
/// Limit that keeps a column's chunk of texts small.
pub const TEXT_BYTES_MAX: usize = 4096;

/// One scalar column. In JSON its name alone (then a float), or an object with `name`, `type` (`f64`, `i64`, `u64` or
/// `text`) and, for texts, the maximum size in `bytes`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "ScalarForm", into = "ScalarForm")]
pub struct ScalarColumn {
    pub name: String,
    pub kind: ScalarKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScalarKind {
    /// NaN where a frame has no value.
    Float,
    /// The lowest integer where a frame has no value.
    Integer,
    /// UTF-8 of at most this many bytes; empty where a frame has no value.
    Text(usize),
    /// The highest integer where a frame has no value. Journals store the kind as a number, so new kinds are appended.
    Unsigned,
}

#[derive(Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a scalar must be its name, or an object with `name`, `type` (f64, i64, u64, text) and, of a text, `bytes`"
)]
enum ScalarForm {
    Name(String),
    Full {
        name: String,
        #[serde(rename = "type")]
        kind: KindName,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<usize>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum KindName {
    F64,
    I64,
    U64,
    Text,
}

impl From<ScalarForm> for ScalarColumn {
    fn from(form: ScalarForm) -> ScalarColumn {
        match form {
            ScalarForm::Name(name) => ScalarColumn { name, kind: ScalarKind::Float },
            ScalarForm::Full { name, kind, bytes } => {
                let kind = match kind {
                    KindName::F64 => ScalarKind::Float,
                    KindName::I64 => ScalarKind::Integer,
                    KindName::U64 => ScalarKind::Unsigned,
                    KindName::Text => ScalarKind::Text(bytes.unwrap_or(TEXT_BYTES)),
                };
                ScalarColumn { name, kind }
            }
        }
    }
}

impl From<ScalarColumn> for ScalarForm {
    fn from(column: ScalarColumn) -> ScalarForm {
        let name = column.name;
        match column.kind {
            ScalarKind::Float => ScalarForm::Name(name),
            ScalarKind::Integer => ScalarForm::Full { name, kind: KindName::I64, bytes: None },
            ScalarKind::Unsigned => ScalarForm::Full { name, kind: KindName::U64, bytes: None },
            ScalarKind::Text(bytes) => ScalarForm::Full { name, kind: KindName::Text, bytes: Some(bytes) },
        }
    }
}

impl From<&str> for ScalarColumn {
    fn from(name: &str) -> ScalarColumn {
        ScalarColumn { name: name.to_owned(), kind: ScalarKind::Float }
    }
}

impl From<String> for ScalarColumn {
    fn from(name: String) -> ScalarColumn {
        ScalarColumn { name, kind: ScalarKind::Float }
    }
}

impl ScalarKind {
    pub fn datatype(self) -> Datatype {
        match self {
            ScalarKind::Float => Datatype::Number(ElementType::F64),
            ScalarKind::Integer => Datatype::Number(ElementType::I64),
            ScalarKind::Unsigned => Datatype::Number(ElementType::U64),
            ScalarKind::Text(bytes) => Datatype::Text(bytes),
        }
    }

    /// Value of a frame without one.
    pub fn fill(self) -> Vec<u8> {
        match self {
            ScalarKind::Float => f64::NAN.to_le_bytes().to_vec(),
            ScalarKind::Integer => i64::MIN.to_le_bytes().to_vec(),
            ScalarKind::Unsigned => u64::MAX.to_le_bytes().to_vec(),
            ScalarKind::Text(bytes) => vec![0; bytes],
        }
    }

    /// Converts `value` to an element of this kind; `Err` says what is wrong with it. Integers are accepted in columns
    /// of floats, and floats without a fraction in columns of integers, if the conversion is exact.
    pub fn element(self, value: &Scalar) -> Result<Vec<u8>, String> {
        match (self, value) {
            (ScalarKind::Float, Scalar::Float(value)) => Ok(value.to_le_bytes().to_vec()),
            (ScalarKind::Float, Scalar::Integer(whole)) if (*whole as f64) as i128 == i128::from(*whole) => {
                Ok((*whole as f64).to_le_bytes().to_vec())
            }
            (ScalarKind::Float, Scalar::Unsigned(whole)) if (*whole as f64) as i128 == i128::from(*whole) => {
                Ok((*whole as f64).to_le_bytes().to_vec())
            }
            (ScalarKind::Integer | ScalarKind::Unsigned, value) => self.whole(value),
            (ScalarKind::Text(bytes), Scalar::Text(text)) if text.len() <= bytes => {
                let mut element = text.clone().into_bytes();
                element.resize(bytes, 0);
                Ok(element)
            }
            (ScalarKind::Text(bytes), Scalar::Text(text)) => {
                Err(format!("its text has {} bytes, the column at most {bytes}", text.len()))
            }
            (kind, value) => Err(kind.refuses(value)),
        }
    }

    /// Converts an element of this kind to its value; `None` if the frame has no value.
    pub fn value(self, element: &[u8]) -> Option<Scalar> {
        let number = || element.first_chunk().map(|bytes| u64::from_le_bytes(*bytes));
        match self {
            _ if element == self.fill() => None,
            ScalarKind::Float => number().map(|bits| Scalar::Float(f64::from_bits(bits))),
            ScalarKind::Integer => number().map(|bits| Scalar::Integer(bits as i64)),
            ScalarKind::Unsigned => number().map(Scalar::Unsigned),
            ScalarKind::Text(_) => {
                let end = element.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                Some(Scalar::Text(String::from_utf8_lossy(&element[..end]).into_owned()))
            }
        }
    }

    /// Converts to an element of an integer column.
    fn whole(self, value: &Scalar) -> Result<Vec<u8>, String> {
        let whole = match value {
            Scalar::Integer(value) => Some(i128::from(*value)),
            Scalar::Unsigned(value) => Some(i128::from(*value)),
            // Below this limit every integer has an exact float.
            Scalar::Float(value) if value.fract() == 0.0 && value.abs() < 9e15 => Some(*value as i128),
            Scalar::Float(_) | Scalar::Text(_) => None,
        };
        let bytes = whole.and_then(|whole| match self {
            ScalarKind::Unsigned => u64::try_from(whole).ok().map(u64::to_le_bytes),
            _ => i64::try_from(whole).ok().map(i64::to_le_bytes),
        });
        bytes.map(Vec::from).ok_or_else(|| self.refuses(value))
    }

    fn refuses(self, value: &Scalar) -> String {
        format!("{value} is not a value of a column of {self}")
    }
}

impl fmt::Display for ScalarKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScalarKind::Float => f.write_str("type f64"),
            ScalarKind::Integer => f.write_str("type i64"),
            ScalarKind::Unsigned => f.write_str("type u64"),
            ScalarKind::Text(bytes) => write!(f, "texts of {bytes} bytes"),
        }
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Float(value) => write!(f, "{value}"),
            Scalar::Integer(value) => write!(f, "{value}"),
            Scalar::Unsigned(value) => write!(f, "{value}"),
            Scalar::Text(text) => write!(f, "\"{text}\""),
        }
    }
}

/// A value of one frame.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Scalar {
    Float(f64),
    Integer(i64),
    Text(String),
    /// Journals store the kind as a number, so new kinds are appended.
    Unsigned(u64),
}

impl From<f64> for Scalar {
    fn from(value: f64) -> Scalar {
        Scalar::Float(value)
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Scalar {
        Scalar::Integer(value)
    }
}

impl From<u64> for Scalar {
    fn from(value: u64) -> Scalar {
        Scalar::Unsigned(value)
    }
}

impl From<String> for Scalar {
    fn from(value: String) -> Scalar {
        Scalar::Text(value)
    }
}

impl From<&str> for Scalar {
    fn from(value: &str) -> Scalar {
        Scalar::Text(value.to_owned())
    }
}
