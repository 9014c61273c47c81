//! Batches in their order of arrival, with an index of the newest row of each key for lookups.
//!
//! Most rows are never looked up here, because their writer has them in memory. So lookups build the index, some
//! batches at a time to limit their wait, and, while lookups continue, each new batch adds to it.

use crate::log::format::{decode_batch, find_in_batch};
use bytes::Bytes;
use slatedb::{RowEntry, ValueDeletable};
use std::collections::HashMap;
use std::sync::Arc;
use varve_env::key_hash::KeyHashing;

/// Limit on batches that a lookup indexes, and that a push indexes: about a millisecond, and a microsecond.
const GATHERED_A_STEP: usize = 1000;
const GATHERED_A_BATCH: usize = 2;

#[derive(Default)]
pub(super) struct Batches {
    /// Bodies of records of the log.
    bodies: Arc<Vec<Bytes>>,
    bytes: usize,
    newest: NewestRows,
    /// A lookup happened, in these batches and in the ones before.
    looked_for: bool,
    looked_for_before: bool,
}

/// The newest rows of the first `batches`.
#[derive(Default)]
struct NewestRows {
    rows: HashMap<Bytes, Option<Bytes>, KeyHashing>,
    batches: usize,
}

impl Batches {
    pub fn is_empty(&self) -> bool {
        self.bodies.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a batch. No other owner may share the batches yet.
    pub fn push(&mut self, body: Bytes) {
        self.bytes += body.len();
        Arc::make_mut(&mut self.bodies).push(body);
        if self.looked_for || self.looked_for_before {
            self.newest.gather(&self.bodies, GATHERED_A_BATCH);
        }
    }

    /// The row of `key`: `Some(None)` if it is deleted.
    pub fn find(&mut self, key: &[u8]) -> Option<Option<Bytes>> {
        self.looked_for = true;
        self.newest.gather(&self.bodies, GATHERED_A_STEP);
        let later = &self.bodies[self.newest.batches..];
        let found = later.iter().rev().find_map(|body| find_in_batch(body, key).expect(ENCODED_HERE)).map(row_of);
        found.or_else(|| self.newest.rows.get(key).cloned())
    }

    /// Takes all batches and leaves none.
    pub fn take(&mut self) -> Batches {
        let next = Batches { looked_for_before: self.looked_for, ..Batches::default() };
        std::mem::replace(self, next)
    }

    pub fn shared(&self) -> Arc<Vec<Bytes>> {
        Arc::clone(&self.bodies)
    }
}

impl NewestRows {
    /// Indexes the next `batches` batches.
    fn gather(&mut self, bodies: &[Bytes], batches: usize) {
        let end = bodies.len().min(self.batches + batches);
        for row in bodies[self.batches..end].iter().flat_map(rows_of) {
            self.rows.insert(row.key, row_of(row.value));
        }
        self.batches = end;
    }
}

const ENCODED_HERE: &str = "a body that was encoded here can be decoded";

pub(super) fn rows_of(body: &Bytes) -> Vec<RowEntry> {
    decode_batch(body).expect(ENCODED_HERE)
}

fn row_of(value: ValueDeletable) -> Option<Bytes> {
    match value {
        ValueDeletable::Value(value) | ValueDeletable::Merge(value) => Some(value),
        ValueDeletable::Tombstone => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::format::{BatchRows, encode_batch};
    use bytes::BytesMut;

    fn body(rows: &[(&str, Option<&str>)]) -> Bytes {
        let mut encoded = BatchRows::default();
        for (key, row) in rows {
            match row {
                Some(row) => encoded.put(|out| out.extend(key.bytes()), |out| out.extend(row.bytes())),
                None => encoded.delete(|out| out.extend(key.bytes())),
            }
        }
        let mut record = BytesMut::new();
        let body = encode_batch(&encoded, 1, 1, 0, &mut record).unwrap();
        record.freeze().slice(body..)
    }

    fn found(batches: &mut Batches, key: &str) -> Option<Option<String>> {
        let row = batches.find(key.as_bytes())?;
        Some(row.map(|row| String::from_utf8(row.to_vec()).unwrap()))
    }

    /// Promise: a lookup finds the newest row of a key, whenever it runs.
    #[test]
    fn the_newest_row_is_found() {
        let mut batches = Batches::default();
        assert_eq!(found(&mut batches, "a"), None);
        batches.push(body(&[("a", Some("1")), ("b", Some("1"))]));
        batches.push(body(&[("a", Some("2")), ("a", None), ("c", None), ("c", Some("2"))]));
        assert_eq!(found(&mut batches, "a"), Some(None));
        assert_eq!(found(&mut batches, "b"), Some(Some("1".into())));
        batches.push(body(&[("b", None), ("a", Some("3"))]));
        for (key, row) in [("a", Some(Some("3".into()))), ("b", Some(None)), ("c", Some(Some("2".into()))), ("d", None)]
        {
            assert_eq!(found(&mut batches, key), row);
        }
    }

    /// Promise: a lookup finds the newest row even when not all batches are indexed yet, whichever they are.
    #[test]
    fn the_newest_row_is_found_before_all_are_gathered() {
        let mut batches = Batches::default();
        let many = 2 * GATHERED_A_STEP + 500;
        for number in 0..many {
            let (own, row) = (format!("own {number}"), number.to_string());
            batches.push(body(&[("shared", Some(&row)), (&own, Some(&row))]));
        }
        let last = (many - 1).to_string();
        for look in 0..4 {
            assert_eq!(found(&mut batches, "shared"), Some(Some(last.clone())));
            assert_eq!(batches.newest.batches, many.min((look + 1) * GATHERED_A_STEP));
        }
        for own in [0, many / 2, many - 1] {
            assert_eq!(found(&mut batches, &format!("own {own}")), Some(Some(own.to_string())));
        }
    }

    /// Promise: no batch is indexed until a lookup; while lookups continue, new batches are indexed.
    #[test]
    fn rows_are_gathered_on_read() {
        let mut batches = Batches::default();
        let next = |look: bool| {
            (0..3).for_each(|_| batches.push(body(&[("a", Some("1"))])));
            let gathered = batches.newest.batches;
            if look {
                assert!(batches.find(b"a").is_some());
            }
            let mut taken = batches.take();
            assert!(batches.is_empty() && batches.bytes() == 0 && taken.bytes() > 0 && taken.shared().len() == 3);
            assert_eq!(taken.find(b"a"), Some(Some(Bytes::from_static(b"1"))));
            gathered
        };
        assert_eq!([false, true, true, false, false].map(next), [0, 0, 3, 3, 0]);
    }
}
