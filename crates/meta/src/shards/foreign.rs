//! Rows of other shards that one run of a verb depends on: fetched copies, or rows read in place.

use super::peers::ForeignRow;
use super::shard::ShardState;
use std::collections::HashMap;
use varve_env::key_hash::KeyHashing;
use varve_posix::KeyState;
use varve_schema::Key;
use varve_types::InodeId;

#[derive(Default)]
pub(super) struct Foreign<'n> {
    rows: HashMap<Key, ForeignRow, KeyHashing>,
    near: Option<Near<'n>>,
}

/// Rows that a shard of the same worker has prepared for this run.
struct Near<'n> {
    state: &'n ShardState,
    keys: &'n [Key],
}

impl<'n> Foreign<'n> {
    /// The rows of `keys`, which are prepared in `state`.
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

    /// The fetched rows. Rows of a near shard are locked, so they need no second check.
    pub fn fetched(&self) -> impl Iterator<Item = (&Key, &ForeignRow)> {
        self.rows.iter()
    }

    /// The directory was split further than this shard knew: names and partition rows fetched before may be in another
    /// shard.
    pub fn forget_names(&mut self, directory: InodeId) {
        self.rows.retain(|key, _| !matches!(key, Key::Entry(id, _) | Key::Partition(id, _) if *id == directory));
    }
}
