//! The tree: its directories by number, level by level as in a heap, and the items in them.

use super::MdtestOptions;
use crate::{Error, Result};

/// More directories a client take hours to make.
const DIRECTORIES_MAX: u64 = 10_000_000;
/// More items a client do not fit the inodes of most file systems.
const ITEMS_MAX: u64 = 1 << 32;
/// Larger contents belong to `bench data`.
const ITEM_BYTES_MAX: u64 = 64 << 20;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TreeShape {
    branch: u64,
    /// Directories of one tree, with its root.
    pub directories: u64,
    /// The first directory that has items: the root, or the first leaf.
    first: u64,
    pub items_per_directory: u64,
}

impl TreeShape {
    pub(super) fn of(options: &MdtestOptions) -> Result<TreeShape> {
        let fail = |text: &str| Err(Error::Usage(text.to_owned()));
        if options.files_only && options.directories_only {
            return fail("-F and -D exclude each other");
        }
        if options.branch == 0 {
            return fail("-b: a directory of the tree has at least one branch");
        }
        if options.write_bytes > ITEM_BYTES_MAX {
            return fail("-w: at most 64 MiB a file; use bench data for larger ones");
        }
        if options.read_bytes > options.write_bytes && !options.selects_phases() {
            return fail("-e: more than -w writes");
        }
        let (mut directories, mut level) = (1_u64, 1_u64);
        for _ in 0..options.depth {
            level = level.saturating_mul(options.branch);
            directories = directories.saturating_add(level);
            if directories > DIRECTORIES_MAX {
                return fail("-z and -b make a tree of more than 10,000,000 directories");
            }
        }
        let first = if options.leaf_only { directories - level } else { 0 };
        let holders = directories - first;
        let items_per_directory = match (options.items, options.items_per_directory) {
            (Some(_), Some(_)) => return fail("give either -n or -I"),
            (None, None) => return fail("give the number of items: -n for each client, or -I for each directory"),
            (Some(items), None) => items / holders,
            (None, Some(items)) => items,
        };
        if items_per_directory == 0 {
            return fail("there are fewer items than directories of the tree: raise -n or -I, or lower -z or -b");
        }
        if items_per_directory.saturating_mul(holders) > ITEMS_MAX {
            return fail("at most 4,294,967,296 items a client");
        }
        Ok(TreeShape { branch: options.branch, directories, first, items_per_directory })
    }

    /// Items of each client.
    pub(super) fn items(&self) -> u64 {
        self.items_per_directory * (self.directories - self.first)
    }

    /// The directory that has an item.
    pub(super) fn holder(&self, item: u64) -> u64 {
        self.first + item / self.items_per_directory
    }

    /// Writes the path of a directory of `tree`, with a slash at its end.
    pub(super) fn directory(&self, tree: usize, number: u64, path: &mut String) {
        path.clear();
        let mut ancestors = Vec::new();
        let mut at = number;
        while at > 0 {
            ancestors.push(at);
            at = (at - 1) / self.branch;
        }
        path.push_str(&format!("mdtest_tree.{tree}/"));
        for ancestor in ancestors.iter().rev() {
            path.push_str(&format!("mdtest_tree.{tree}.{ancestor}/"));
        }
    }
}
