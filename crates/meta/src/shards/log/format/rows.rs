//! The rows of a batch as they stand in its record.

use super::{BATCH_PREFIX_BYTES, Fields, FormatError};
use bytes::Bytes;
use slatedb::{RowEntry, ValueDeletable};

const KIND_MASK: u8 = 0b11;
const VALUE: u8 = 0;
const TOMBSTONE: u8 = 1;
const MERGE: u8 = 2;
const HAS_CREATED: u8 = 0b0100;
const HAS_EXPIRES: u8 = 0b1000;

/// Before key and value: flags and their lengths.
const HEAD_BYTES: usize = 9;

/// Rows that are written together, in their order: of two of one key the later one holds.
#[derive(Default)]
pub struct BatchRows {
    bytes: Vec<u8>,
    count: u32,
}

impl BatchRows {
    /// A row with the key and the value that are appended.
    pub fn put(&mut self, key: impl FnOnce(&mut Vec<u8>), value: impl FnOnce(&mut Vec<u8>)) {
        self.push(VALUE, key, value);
    }

    /// The row of a key is deleted.
    pub fn delete(&mut self, key: impl FnOnce(&mut Vec<u8>)) {
        self.push(TOMBSTONE, key, |_| ());
    }

    fn push(&mut self, flags: u8, key: impl FnOnce(&mut Vec<u8>), value: impl FnOnce(&mut Vec<u8>)) {
        let head = self.bytes.len();
        self.bytes.extend_from_slice(&[0; HEAD_BYTES]);
        key(&mut self.bytes);
        let key_end = self.bytes.len();
        value(&mut self.bytes);
        let (key_bytes, value_bytes) = (key_end - head - HEAD_BYTES, self.bytes.len() - key_end);
        let head = &mut self.bytes[head..head + HEAD_BYTES];
        head[0] = flags;
        head[1..5].copy_from_slice(&(key_bytes as u32).to_le_bytes());
        head[5..].copy_from_slice(&(value_bytes as u32).to_le_bytes());
        self.count += 1;
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub fn count(&self) -> u32 {
        self.count
    }

    /// Room for the next rows in place of these, if it is not more than `bytes_max`.
    pub fn cleared(mut self, bytes_max: usize) -> BatchRows {
        if self.bytes.capacity() > bytes_max {
            return BatchRows::default();
        }
        self.bytes.clear();
        BatchRows { count: 0, ..self }
    }

    /// Those of `entries`, with all that a row may have.
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
        }
        rows
    }
}

/// The sequence number of a batch's body.
fn decode_sequence(body: &[u8]) -> Result<u64, FormatError> {
    if body.len() < BATCH_PREFIX_BYTES {
        return Err(FormatError::Length);
    }
    Ok(Fields(body).u64())
}

/// The rows of a batch's body, which share its memory.
pub fn decode_batch(body: &Bytes) -> Result<Vec<RowEntry>, FormatError> {
    let seq = decode_sequence(body)?;
    let count = Fields(&body[8..]).u32();
    let mut rows = Vec::with_capacity((count as usize).min(body.len() / HEAD_BYTES));
    let mut at = BATCH_PREFIX_BYTES;
    for _ in 0..count {
        let mut take = |length: usize| {
            let begin = at;
            at = begin.checked_add(length).filter(|end| *end <= body.len()).ok_or(FormatError::Length)?;
            Ok(begin..at)
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
        let value = match flags & KIND_MASK {
            _ if flags & !(KIND_MASK | HAS_CREATED | HAS_EXPIRES) != 0 => return Err(FormatError::Flags),
            VALUE => ValueDeletable::Value(body.slice(value)),
            TOMBSTONE if value.is_empty() => ValueDeletable::Tombstone,
            MERGE => ValueDeletable::Merge(body.slice(value)),
            _ => return Err(FormatError::Flags),
        };
        rows.push(RowEntry { key: body.slice(key), value, seq, create_ts, expire_ts });
    }
    if at != body.len() || rows.is_empty() {
        return Err(FormatError::Length);
    }
    Ok(rows)
}
