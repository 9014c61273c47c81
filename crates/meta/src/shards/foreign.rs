//! Rows of other shards that one run of a verb rests on: fetched, or seen where they are.

use super::peers::ForeignRow;
use super::shard::ShardState;
use crate::namespace::KeyState;
use crate::tables::Key;
use std::collections::HashMap;
use varve_env::key_hash::KeyHashing;
use varve_types::InodeId;

#[derive(Default)]
pub(super) struct Foreign<'n> {
    rows: HashMap<Key, ForeignRow, KeyHashing>,
    near: Option<Near<'n>>,
}

/// Rows that a shard of the same worker holds for the run.
struct Near<'n> {
    state: &'n ShardState,
    keys: &'n [Key],
}

impl<'n> Foreign<'n> {
    /// The rows of `keys`, which are held in `state`.
    pub fn prepared_near(state: &'n ShardState, keys: &'n [Key]) -> Foreign<'n> {
        Foreign { near: Some(Near { state, keys }), ..Foreign::default() }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.near.is_none()
    }

    pub fn seen(&self, key: &Key) -> KeyState<'_> {
        if let Some(Near { state, keys }) = &self.near
            && keys.contains(key)
        {
            return state.resident.seen(key).0;
        }
        match self.rows.get(key) {
            None => KeyState::Unknown,
            Some(None) => KeyState::Absent,
            Some(Some(row)) => KeyState::Present(row),
        }
    }

    pub fn insert(&mut self, key: Key, row: ForeignRow) {
        self.rows.insert(key, row);
    }

    /// Those that were fetched. Near ones are held, so that nobody need check them again.
    pub fn fetched(&self) -> impl Iterator<Item = (&Key, &ForeignRow)> {
        self.rows.iter()
    }

    /// The directory was cut further than was known: what was fetched of its names may lie elsewhere.
    pub fn forget_names(&mut self, directory: InodeId) {
        self.rows.retain(|key, _| !matches!(key, Key::Entry(id, _) | Key::Partition(id, _) if *id == directory));
    }
}
