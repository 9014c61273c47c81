//! Items of any kind: user data, and fields that the format's description does not have.

use super::{BadStream2Message, DATE, OTHER_BYTES_MAX, bad};
use crate::cbor::{CborItem, CborReader, DEPTH_MAX};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use varve_detector_dataset::dataset_spec::Scalar;

/// Any item, as JSON. Bytes are base64, tagged values objects with `tag` and `value`.
pub fn any(reader: &mut CborReader<'_>) -> Result<Option<serde_json::Value>, BadStream2Message> {
    let mut after = reader.clone();
    after.skip()?;
    if after.at() - reader.at() > OTHER_BYTES_MAX {
        return bad(format!("it has more than {OTHER_BYTES_MAX} bytes"));
    }
    let item = reader.item()?;
    Ok(Some(json(item, reader, DEPTH_MAX)?))
}

fn json(item: CborItem<'_>, reader: &mut CborReader<'_>, depth: usize) -> Result<serde_json::Value, BadStream2Message> {
    use serde_json::Value;
    let Some(depth) = depth.checked_sub(1) else { return bad("items are nested too deeply") };
    Ok(match item {
        CborItem::Unsigned(value) => value.into(),
        CborItem::Negative(value) => i64::try_from(value).map_or_else(|_| value.to_string().into(), Value::from),
        CborItem::Float(value) => value.into(),
        CborItem::Bool(value) => value.into(),
        CborItem::Text(text) => text.into(),
        CborItem::Bytes(bytes) => serde_json::json!({ "base64": STANDARD.encode(bytes) }),
        CborItem::Simple => Value::Null,
        CborItem::Tag(tag) => {
            let item = reader.item()?;
            match (tag, json(item, reader, depth)?) {
                (DATE, Value::String(date)) => Value::String(date),
                (tag, value) => serde_json::json!({ "tag": tag, "value": value }),
            }
        }
        CborItem::Array(mut left) => {
            let mut values = Vec::new();
            while left != Some(0) {
                match reader.item()? {
                    CborItem::Break if left.is_none() => break,
                    item => values.push(json(item, reader, depth)?),
                }
                left = left.map(|left| left - 1);
            }
            Value::Array(values)
        }
        CborItem::Map(mut left) => {
            let mut members = serde_json::Map::new();
            while left != Some(0) {
                let key = match reader.item()? {
                    CborItem::Break if left.is_none() => break,
                    CborItem::Text(key) => key.to_owned(),
                    item => json(item, reader, depth)?.to_string(),
                };
                let item = reader.item()?;
                members.insert(key, json(item, reader, depth)?);
                left = left.map(|left| left - 1);
            }
            Value::Object(members)
        }
        CborItem::Break => return bad("an end without a beginning"),
    })
}

/// A value of one image; null has none.
pub fn scalar(value: serde_json::Value) -> Option<Scalar> {
    use serde_json::Value;
    Some(match value {
        Value::Null => return None,
        Value::Bool(value) => Scalar::Integer(value.into()),
        Value::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Scalar::Integer(value),
            (None, Some(value)) => Scalar::Unsigned(value),
            (None, None) => Scalar::Float(number.as_f64()?),
        },
        Value::String(text) => Scalar::Text(text),
        other => Scalar::Text(other.to_string()),
    })
}
