//! Rows of other shards that one run of a verb depends on, as they were fetched.

use super::opens_elsewhere::file_in;
use super::peers::ForeignRow;
use std::collections::HashMap;
use varve_env::key_hash::KeyHashing;
use varve_posix::KeyState;
use varve_schema::Key;
use varve_types::InodeId;

#[derive(Default)]
pub(super) struct Foreign(HashMap<Key, ForeignRow, KeyHashing>);

impl Foreign {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn seen(&self, key: &Key) -> KeyState<'_> {
        match self.0.get(key) {
            None => KeyState::Unknown,
            Some(None) => KeyState::Absent,
            Some(Some(row)) => KeyState::Present(row),
        }
    }

    pub fn insert(&mut self, key: Key, row: ForeignRow) {
        self.0.insert(key, row);
    }

    pub fn fetched(&self) -> impl Iterator<Item = (&Key, &ForeignRow)> {
        self.0.iter()
    }

    /// The keys of fetched rows that have the attributes of the file `inode`.
    pub fn rows_of(&self, inode: InodeId) -> impl Iterator<Item = &Key> {
        let of =
            move |(key, row): &(&Key, &ForeignRow)| row.as_ref().is_some_and(|row| file_in(key, row) == Some(inode));
        self.0.iter().filter(of).map(|(key, _)| key)
    }

    /// The directory was split further than this shard knew: names and partition rows fetched before may be in another
    /// shard.
    pub fn forget_names(&mut self, directory: InodeId) {
        self.0.retain(|key, _| !matches!(key, Key::Entry(id, _) | Key::Partition(id, _) if *id == directory));
    }
}
