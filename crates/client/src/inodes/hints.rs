//! The last known names of files whose numbers a file handle may still name: those that the frontend has dropped, and
//! those that a search for another file found. A wrong hint costs one lookup.

use std::collections::HashMap;
use varve_env::key_hash::KeyHashing;
use varve_types::{InodeId, Name};

/// Names per generation. Both generations take about 12 MiB with names of 30 bytes, and 40 MiB with the longest.
const NAMES_MAX: usize = 64 * 1024;

/// When `recent` is full, it replaces `older`.
#[derive(Default)]
pub(super) struct NameHints {
    recent: HashMap<InodeId, (InodeId, Name), KeyHashing>,
    older: HashMap<InodeId, (InodeId, Name), KeyHashing>,
}

impl NameHints {
    pub fn add(&mut self, inode: InodeId, parent: InodeId, name: Name) {
        if self.recent.len() >= NAMES_MAX {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(inode, (parent, name));
    }

    pub fn get(&self, inode: InodeId) -> Option<(InodeId, Name)> {
        self.recent.get(&inode).or_else(|| self.older.get(&inode)).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: the number of remembered names is bounded, and the newest are kept.
    #[test]
    fn name_hints_are_bounded_and_keep_the_newest() {
        let mut hints = NameHints::default();
        let name = |number: u64| Name::new(format!("f{number}").as_bytes()).unwrap();
        let all = 3 * NAMES_MAX as u64;
        (0..all).for_each(|number| hints.add(InodeId(number), InodeId::ROOT, name(number)));
        assert!(hints.recent.len() + hints.older.len() <= 2 * NAMES_MAX);
        assert_eq!(hints.get(InodeId(all - 1)), Some((InodeId::ROOT, name(all - 1))));
        assert_eq!(hints.get(InodeId(all - NAMES_MAX as u64)), Some((InodeId::ROOT, name(all - NAMES_MAX as u64))));
        assert_eq!(hints.get(InodeId(0)), None);
    }
}
