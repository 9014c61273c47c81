//! Values of the whole run.

use crate::limits::VALUE_BYTES_MAX;
use serde::{Deserialize, Serialize};
use varve_detector_hdf5::{Datatype, ElementType, Value};

/// The library reads a byte of this type as a truth value.
const TRUTH: [(&str, u8); 2] = [("FALSE", 0), ("TRUE", 1)];

/// A value that holds for the whole run unless a frame overrides it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a value of `values` must be an integer of at most 64 bits, a number, a text, true or false, or a list of \
                 values of one kind"
)]
pub enum RunValue {
    Bool(bool),
    Integer(i64),
    /// Above the highest signed integer.
    Unsigned(u64),
    Float(f64),
    Text(String),
    List(Vec<RunValue>),
}

impl RunValue {
    /// # Errors
    /// If the value cannot be stored. The error completes a sentence about it.
    pub fn check(&self) -> Result<(), String> {
        let texts = match self {
            RunValue::Text(text) => text.len(),
            RunValue::List(values) if values.iter().any(|value| matches!(value, RunValue::List(_))) => {
                return Err("is a list of lists; give it as an array of --metadata".into());
            }
            RunValue::List(values) if values.is_empty() => return Err("is an empty list".into()),
            RunValue::List(values) if of_one_kind(values).is_none() => {
                return Err("is a list of different kinds; give all its members as numbers, as texts, or as true or \
                            false; an integer above 2^53 is exact only beside integers"
                    .into());
            }
            RunValue::List(values) => 8 * values.len(),
            _ => 0,
        };
        match texts.max(self.value().data.len()) <= VALUE_BYTES_MAX {
            true => Ok(()),
            false => Err(format!("has more than {VALUE_BYTES_MAX} bytes")),
        }
    }

    /// The value in the file.
    pub fn value(&self) -> Value {
        match self {
            RunValue::Bool(value) => truth(&[*value], Vec::new()),
            RunValue::Integer(value) => Value::integer(*value),
            RunValue::Unsigned(value) => Value::unsigned(*value),
            RunValue::Float(value) => Value::float(*value),
            RunValue::Text(value) => Value::text(value),
            RunValue::List(values) => of_one_kind(values).unwrap_or_else(|| Value::texts(&[])),
        }
    }
}

fn truth(values: &[bool], dims: Vec<u64>) -> Value {
    let data = values.iter().map(|value| u8::from(*value)).collect();
    Value { datatype: Datatype::Enumeration(TRUTH.to_vec()), dims, data }
}

/// An array of a list's values; `None` if they have no common type that represents all of them exactly.
fn of_one_kind(values: &[RunValue]) -> Option<Value> {
    let dims = vec![values.len() as u64];
    let array = |element, data: Vec<[u8; 8]>| Value {
        datatype: Datatype::Number(element),
        dims: dims.clone(),
        data: data.concat(),
    };
    let texts = |value: &RunValue| match value {
        RunValue::Text(text) => Some(text.clone()),
        _ => None,
    };
    let whole = |value: &RunValue| match value {
        RunValue::Integer(value) => Some(i128::from(*value)),
        RunValue::Unsigned(value) => Some(i128::from(*value)),
        _ => None,
    };
    let float = |value: &RunValue| match value {
        RunValue::Float(value) => Some(*value),
        value => whole(value).filter(|whole| (*whole as f64) as i128 == *whole).map(|whole| whole as f64),
    };
    let bools = |value: &RunValue| match value {
        RunValue::Bool(value) => Some(*value),
        _ => None,
    };
    if let Some(texts) = values.iter().map(texts).collect::<Option<Vec<_>>>() {
        return Some(Value::texts(&texts.iter().map(String::as_str).collect::<Vec<_>>()));
    }
    if let Some(values) = values.iter().map(bools).collect::<Option<Vec<_>>>() {
        return Some(truth(&values, dims));
    }
    if let Some(wholes) = values.iter().map(whole).collect::<Option<Vec<_>>>() {
        let signed: Result<Vec<_>, _> =
            wholes.iter().map(|whole| i64::try_from(*whole).map(i64::to_le_bytes)).collect();
        let unsigned = wholes.iter().map(|whole| u64::try_from(*whole).map(u64::to_le_bytes));
        return match signed {
            Ok(data) => Some(array(ElementType::I64, data)),
            Err(_) => unsigned.collect::<Result<Vec<_>, _>>().ok().map(|data| array(ElementType::U64, data)),
        };
    }
    let floats = values.iter().map(float).collect::<Option<Vec<_>>>()?;
    Some(array(ElementType::F64, floats.into_iter().map(f64::to_le_bytes).collect()))
}

#[cfg(test)]
mod tests;
