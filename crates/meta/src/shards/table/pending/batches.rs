//! Batches in the order in which they came, and the newest row of each key in them, for whoever looks for one.
//!
//! Most are never looked for here: whoever changed them has them in memory. So rows are told apart when one is looked for,
//! and, while that goes on, as they come.

use crate::shards::log::format::decode_batch;
use bytes::Bytes;
use slatedb::{RowEntry, ValueDeletable};
use std::collections::HashMap;
use std::sync::Arc;
use varve_world::key_hash::KeyHashing;

#[derive(Default)]
pub(super) struct Batches {
    /// Bodies of records of the log.
    bodies: Arc<Vec<Bytes>>,
    bytes: usize,
    newest: Newest,
    /// One was looked for, in these and in those before.
    looked_for: bool,
    looked_for_before: bool,
}

/// The newest rows of the first `batches`.
#[derive(Default)]
struct Newest {
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

    /// Adds a batch to those that nobody shares yet.
    pub fn push(&mut self, body: Bytes) {
        self.bytes += body.len();
        Arc::make_mut(&mut self.bodies).push(body);
        if self.looked_for || self.looked_for_before {
            self.newest.read(&self.bodies);
        }
    }

    /// The row of `key`: `Some(None)` if it is deleted.
    pub fn find(&mut self, key: &[u8]) -> Option<Option<Bytes>> {
        if self.bodies.is_empty() {
            return None;
        }
        self.looked_for = true;
        self.newest.read(&self.bodies);
        self.newest.rows.get(key).cloned()
    }

    /// All of them, and none are left.
    pub fn take(&mut self) -> Batches {
        let next = Batches { looked_for_before: self.looked_for, ..Batches::default() };
        std::mem::replace(self, next)
    }

    pub fn shared(&self) -> Arc<Vec<Bytes>> {
        Arc::clone(&self.bodies)
    }
}

impl Newest {
    fn read(&mut self, bodies: &[Bytes]) {
        for row in bodies[self.batches..].iter().flat_map(rows_of) {
            let value = match row.value {
                ValueDeletable::Value(value) | ValueDeletable::Merge(value) => Some(value),
                ValueDeletable::Tombstone => None,
            };
            self.rows.insert(row.key, value);
        }
        self.batches = bodies.len();
    }
}

/// The rows of a batch that was made here.
pub(super) fn rows_of(body: &Bytes) -> Vec<RowEntry> {
    decode_batch(body).expect("a body that was encoded a moment ago")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shards::log::format::{BatchRows, encode_batch};
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

    /// Promise: of a key's rows the newest is found, whenever it is looked for.
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

    /// Promise: rows are told apart when one is looked for, and as they come while that goes on.
    #[test]
    fn rows_are_told_apart_for_who_looks() {
        let mut batches = Batches::default();
        let mut next = |look: bool| {
            (0..3).for_each(|_| batches.push(body(&[("a", Some("1"))])));
            let before = batches.newest.batches;
            if look {
                assert!(batches.find(b"a").is_some());
            }
            let mut taken = batches.take();
            assert!(batches.is_empty() && batches.bytes() == 0 && taken.bytes() > 0 && taken.shared().len() == 3);
            assert_eq!(taken.find(b"a"), Some(Some(Bytes::from_static(b"1"))));
            before
        };
        assert_eq!([false, true, true, false, false].map(|look| next(look)), [0, 0, 3, 3, 0]);
    }
}
