//! mdtest's options, under their letters.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MdtestOptions {
    /// `-n`: items of each client, in all directories of the tree.
    pub items: Option<u64>,
    /// `-I`: items of each client in each directory of the tree.
    pub items_per_directory: Option<u64>,
    /// `-z`
    pub depth: u32,
    /// `-b`
    pub branch: u64,
    /// `-F`
    pub files_only: bool,
    /// `-D`
    pub directories_only: bool,
    /// `-u`: a tree a client.
    pub unique: bool,
    /// `-L`
    pub leaf_only: bool,
    /// `-w`
    pub write_bytes: u64,
    /// `-e`
    pub read_bytes: u64,
    /// `-C`, `-T`, `-E`, `-r`: only these phases. None of them: all.
    pub create_only: bool,
    pub stat_only: bool,
    pub read_only: bool,
    pub remove_only: bool,
    /// `-N`: the distance to the client whose items are handled; 0: the own ones.
    pub stride: usize,
}

impl Default for MdtestOptions {
    fn default() -> MdtestOptions {
        MdtestOptions {
            items: None,
            items_per_directory: None,
            depth: 0,
            branch: 1,
            files_only: false,
            directories_only: false,
            unique: false,
            leaf_only: false,
            write_bytes: 0,
            read_bytes: 0,
            create_only: false,
            stat_only: false,
            read_only: false,
            remove_only: false,
            stride: 0,
        }
    }
}

impl MdtestOptions {
    /// Only some phases run, so that files of an earlier run are used or files are left for a later one.
    pub fn selects_phases(&self) -> bool {
        self.create_only || self.stat_only || self.read_only || self.remove_only
    }

    pub fn creates(&self) -> bool {
        self.create_only || !self.selects_phases()
    }

    pub fn stats(&self) -> bool {
        self.stat_only || !self.selects_phases()
    }

    pub fn reads(&self) -> bool {
        self.read_only || !self.selects_phases()
    }

    /// Renamed items have other names, which a later run would not find.
    pub fn renames(&self) -> bool {
        !self.selects_phases()
    }

    pub fn removes(&self) -> bool {
        self.remove_only || !self.selects_phases()
    }

    /// The owner of the items that `rank` handles after so many strides.
    pub fn owner(&self, rank: usize, ranks: usize, strides: usize) -> usize {
        (rank + strides * self.stride) % ranks
    }
}
