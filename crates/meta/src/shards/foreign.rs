//! Rows of other shards that one run of a verb has fetched.

use super::peers::ForeignRow;
use crate::namespace::Seen;
use crate::tables::Key;
use std::collections::HashMap;
use varve_types::InodeId;
use varve_world::key_hash::KeyHashing;

#[derive(Default)]
pub(super) struct Foreign {
    rows: HashMap<Key, ForeignRow, KeyHashing>,
}

impl Foreign {
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub fn seen(&self, key: &Key) -> Seen<'_> {
        match self.rows.get(key) {
            None => Seen::Unknown,
            Some(None) => Seen::Absent,
            Some(Some(row)) => Seen::Present(row),
        }
    }

    pub fn insert(&mut self, key: Key, row: ForeignRow) {
        self.rows.insert(key, row);
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Key, &ForeignRow)> {
        self.rows.iter()
    }

    /// The directory was cut further than was known: what was fetched of its names may lie elsewhere.
    pub fn forget_names(&mut self, directory: InodeId) {
        self.rows.retain(|key, _| !matches!(key, Key::Entry(id, _) | Key::Partition(id, _) if *id == directory));
    }
}
