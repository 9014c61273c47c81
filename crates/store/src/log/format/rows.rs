//! The rows of a batch, as encoded in its record.

use super::fields::{BATCH_PREFIX_BYTES, Fields, LogFormatError};
use bytes::Bytes;
use slatedb::{RowEntry, ValueDeletable};
use std::ops::Range;

const KIND_MASK: u8 = 0b11;
const VALUE: u8 = 0;
const TOMBSTONE: u8 = 1;
const MERGE: u8 = 2;
const HAS_CREATED: u8 = 0b0100;
const HAS_EXPIRES: u8 = 0b1000;

/// Flags and lengths, before key and value.
const HEAD_BYTES: usize = 9;

/// Rows written together, in order: of two rows with the same key the later one is valid.
#[derive(Default)]
pub struct BatchRows {
    bytes: Vec<u8>,
    /// End of the complete rows.
    end: usize,
    count: u32,
}

impl BatchRows {
    /// Adds a row with the key and the value that the closures append.
    pub fn put(&mut self, key: impl FnOnce(&mut Vec<u8>), value: impl FnOnce(&mut Vec<u8>)) {
        self.push(VALUE, key, value);
    }

    /// Deletes the row of a key.
    pub fn delete(&mut self, key: impl FnOnce(&mut Vec<u8>)) {
        self.push(TOMBSTONE, key, |_| ());
    }

    fn push(&mut self, flags: u8, key: impl FnOnce(&mut Vec<u8>), value: impl FnOnce(&mut Vec<u8>)) {
        let head = self.end;
        // The last append may not have completed.
        self.bytes.truncate(head);
        self.bytes.extend_from_slice(&[0; HEAD_BYTES]);
        key(&mut self.bytes);
        let key_end = self.bytes.len();
        value(&mut self.bytes);
        let (key_bytes, value_bytes) = (key_end - head - HEAD_BYTES, self.bytes.len() - key_end);
        let head = &mut self.bytes[head..head + HEAD_BYTES];
        head[0] = flags;
        head[1..5].copy_from_slice(&(key_bytes as u32).to_le_bytes());
        head[5..].copy_from_slice(&(value_bytes as u32).to_le_bytes());
        self.end = self.bytes.len();
        self.count += 1;
    }

    /// The rows as they follow the prefix of a record's body.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.end]
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Returns an empty batch that reuses this one's memory, if that is at most `bytes_max`.
    pub fn cleared(mut self, bytes_max: usize) -> BatchRows {
        if self.bytes.capacity() > bytes_max {
            return BatchRows::default();
        }
        self.bytes.clear();
        BatchRows { end: 0, count: 0, ..self }
    }

    /// The rows of `entries`, with all fields that a row may have.
    #[cfg(test)]
    pub fn of(entries: &[RowEntry]) -> BatchRows {
        let mut rows = BatchRows::default();
        for entry in entries {
            let (kind, value): (_, &[u8]) = match &entry.value {
                ValueDeletable::Value(value) => (VALUE, value),
                ValueDeletable::Tombstone => (TOMBSTONE, &[]),
                ValueDeletable::Merge(value) => (MERGE, value),
            };
            let created = if entry.create_ts.is_some() { HAS_CREATED } else { 0 };
            let expires = if entry.expire_ts.is_some() { HAS_EXPIRES } else { 0 };
            let head = rows.bytes.len();
            rows.push(kind | created | expires, |out| out.extend_from_slice(&entry.key), |out| out.extend(value));
            let times = entry.create_ts.iter().chain(&entry.expire_ts).flat_map(|time| time.to_le_bytes());
            rows.bytes.splice(head + HEAD_BYTES..head + HEAD_BYTES, times);
            rows.end = rows.bytes.len();
        }
        rows
    }
}

/// The sequence number in a batch's body.
fn decode_sequence(body: &[u8]) -> Result<u64, LogFormatError> {
    if body.len() < BATCH_PREFIX_BYTES {
        return Err(LogFormatError::Length);
    }
    Ok(Fields(body).u64())
}

/// The rows in a batch's body, which share its memory.
///
/// # Errors
/// [`LogFormatError::Length`] and [`LogFormatError::Flags`] where the body is not what [`super::encode_batch`] makes.
pub fn decode_batch(body: &Bytes) -> Result<Vec<RowEntry>, LogFormatError> {
    let seq = decode_sequence(body)?;
    let mut rows = Vec::with_capacity((row_count(body) as usize).min(body.len() / HEAD_BYTES));
    for place in places(body) {
        let RowSpan { kind, create_ts, expire_ts, key, value } = place?;
        let (key, value) = (body.slice(key), value_of(body, kind, value));
        rows.push(RowEntry { key, value, seq, create_ts, expire_ts });
    }
    if rows.is_empty() { Err(LogFormatError::Length) } else { Ok(rows) }
}

/// The last row of `key` in a batch's body, if there is one.
///
/// # Errors
/// As [`decode_batch`].
pub fn find_in_batch(body: &Bytes, key: &[u8]) -> Result<Option<ValueDeletable>, LogFormatError> {
    decode_sequence(body)?;
    let mut last = None;
    for place in places(body) {
        let place = place?;
        if body[place.key.clone()] == *key {
            last = Some(place);
        }
    }
    Ok(last.map(|place| value_of(body, place.kind, place.value)))
}

/// The positions of a row's parts in a body.
struct RowSpan {
    kind: u8,
    create_ts: Option<i64>,
    expire_ts: Option<i64>,
    key: Range<usize>,
    value: Range<usize>,
}

fn row_count(body: &[u8]) -> u32 {
    Fields(&body[8..]).u32()
}

/// The positions of all rows of a body that has its prefix. Only rows follow the prefix.
fn places(body: &[u8]) -> impl Iterator<Item = Result<RowSpan, LogFormatError>> {
    let (mut at, mut left) = (BATCH_PREFIX_BYTES, row_count(body));
    std::iter::from_fn(move || {
        if left == 0 {
            let rest = std::mem::replace(&mut at, body.len()) != body.len();
            return rest.then_some(Err(LogFormatError::Length));
        }
        left -= 1;
        let place = place(body, &mut at);
        if place.is_err() {
            (left, at) = (0, body.len());
        }
        Some(place)
    })
}

fn place(body: &[u8], at: &mut usize) -> Result<RowSpan, LogFormatError> {
    let mut take = |length: usize| {
        let begin = *at;
        *at = begin.checked_add(length).filter(|end| *end <= body.len()).ok_or(LogFormatError::Length)?;
        Ok(begin..*at)
    };
    let mut head = Fields(&body[take(HEAD_BYTES)?]);
    let [flags] = head.array();
    let (key_bytes, value_bytes) = (head.u32(), head.u32());
    let mut time = |flag: u8| match flags & flag {
        0 => Ok(None),
        _ => take(8).map(|time| Some(Fields(&body[time]).u64() as i64)),
    };
    let (create_ts, expire_ts) = (time(HAS_CREATED)?, time(HAS_EXPIRES)?);
    let (key, value) = (take(key_bytes as usize)?, take(value_bytes as usize)?);
    match flags & KIND_MASK {
        _ if flags & !(KIND_MASK | HAS_CREATED | HAS_EXPIRES) != 0 => Err(LogFormatError::Flags),
        kind @ (VALUE | MERGE) => Ok(RowSpan { kind, create_ts, expire_ts, key, value }),
        kind @ TOMBSTONE if value.is_empty() => Ok(RowSpan { kind, create_ts, expire_ts, key, value }),
        _ => Err(LogFormatError::Flags),
    }
}

fn value_of(body: &Bytes, kind: u8, value: Range<usize>) -> ValueDeletable {
    match kind {
        TOMBSTONE => ValueDeletable::Tombstone,
        MERGE => ValueDeletable::Merge(body.slice(value)),
        _ => ValueDeletable::Value(body.slice(value)),
    }
}
