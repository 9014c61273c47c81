//! The summary that is kept of the rows while they are read.

use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use varve_schema::{DirectoryRow, PartitionRow};
use varve_types::{FileKind, InodeId, Name, NameHash, PartitionIndex, ShardCount, ShardId, VolumeSettings};

/// Uses ordered collections, so that two checks of one volume give the same report.
pub struct Census {
    pub shards: ShardCount,
    pub directories: BTreeMap<InodeId, DirectoryRecord>,
    pub partitions: BTreeMap<(InodeId, PartitionIndex), PartitionRecord>,
    /// Files with an inode row.
    pub inodes: BTreeMap<InodeId, InodeRecord>,
    pub orphans: BTreeSet<InodeId>,
    /// Inodes whose backing files are to be removed, with the shard that has the row.
    pub garbage: BTreeMap<InodeId, ShardId>,
    /// Partitions that their directories lack.
    pub missing: Vec<MissingPartition>,
    /// Names of extended attributes that rows list and that were not read yet.
    pub xattrs_listed: BTreeMap<InodeId, BTreeSet<Bytes>>,
    /// Entries outside of their shard's partitions.
    pub stray: Vec<Stray>,
    /// The first free inode counter of each shard.
    pub inodes_end: Vec<u64>,
    /// Ids of files whose attributes are in their entries.
    pub single_named: Vec<InodeId>,
    pub backing: Vec<BackedFile>,
    /// All ids in use, sorted, once they have been compared.
    pub ids: Vec<InodeId>,
}

pub struct DirectoryRecord {
    /// `None`: an entry refers to it, and it has no row.
    pub row: Option<DirectoryRow>,
    /// Number of entries that refer to it, and the directory of one of them: its parent, if one of them is there.
    pub names: u32,
    pub named_in: Option<InodeId>,
}

/// An entry that no lookup finds.
pub struct Stray {
    pub shard: ShardId,
    pub directory: InodeId,
    pub name: Name,
    pub inode: InodeId,
}

pub struct PartitionRecord {
    pub row: PartitionRow,
    /// Whether it is part of its directory: then its entries count.
    pub live: bool,
    pub entries: u64,
    pub subdirectories: u64,
}

pub struct MissingPartition {
    pub directory: InodeId,
    pub index: PartitionIndex,
    /// Its former depth, as far as it can be determined.
    pub depth: u8,
}

pub struct InodeRecord {
    /// `None`: a reference to it exists, and it has no row.
    pub row: Option<InodeSummary>,
    pub references: u32,
    /// One of the entries that refer to it.
    pub named: Option<(InodeId, String)>,
}

#[derive(Clone, Copy)]
pub struct InodeSummary {
    pub kind: FileKind,
    pub nlink: u32,
}

/// A file whose content is in a backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackedFile {
    pub inode: InodeId,
    /// `None`: the backing file's own size is authoritative.
    pub size: Option<u64>,
    /// Minimum size, unless something else has truncated it.
    pub at_least: u64,
    /// The file is being truncated to `size`; the truncation may not have happened yet.
    pub pending: bool,
}

impl Census {
    pub fn new(settings: &VolumeSettings) -> Census {
        Census {
            shards: settings.shards,
            directories: BTreeMap::new(),
            partitions: BTreeMap::new(),
            inodes: BTreeMap::new(),
            orphans: BTreeSet::new(),
            garbage: BTreeMap::new(),
            missing: Vec::new(),
            xattrs_listed: BTreeMap::new(),
            stray: Vec::new(),
            inodes_end: vec![FIRST_COUNTER; usize::from(settings.shards.get())],
            single_named: Vec::new(),
            backing: Vec::new(),
            ids: Vec::new(),
        }
    }

    /// The shard to which the partition `index` of `directory` belongs.
    pub fn shard_of(&self, directory: InodeId, index: PartitionIndex) -> ShardId {
        index.shard(directory.shard(), self.shards)
    }

    /// The live partition of `directory` that holds `hash`, and its shard.
    pub fn place(&self, directory: InodeId, hash: NameHash) -> Option<(ShardId, PartitionIndex)> {
        let mut index = PartitionIndex::holding(hash, self.shards.depth_max());
        loop {
            let live = self.partitions.get(&(directory, index)).is_some_and(|partition| partition.live);
            if live {
                return Some((self.shard_of(directory, index), index));
            }
            if index == PartitionIndex::FIRST {
                return None;
            }
            index = index.cut_from();
        }
    }

    pub fn has_live(&self, directory: InodeId) -> bool {
        self.partitions.get(&(directory, PartitionIndex::FIRST)).is_some_and(|partition| partition.live)
    }

    /// Number of names in the live partitions of `directory`.
    pub fn entries_of(&self, directory: InodeId) -> u64 {
        let indexes = (0..self.shards.get()).map(PartitionIndex);
        let partitions = indexes.filter_map(|index| self.partitions.get(&(directory, index)));
        partitions.filter(|partition| partition.live).map(|partition| partition.entries).sum()
    }

    pub fn list_xattrs(&mut self, inode: InodeId, names: &[Bytes]) {
        if !names.is_empty() {
            self.xattrs_listed.entry(inode).or_default().extend(names.iter().cloned());
        }
    }

    pub fn directory(&mut self, inode: InodeId) -> &mut DirectoryRecord {
        self.directories.entry(inode).or_insert(DirectoryRecord { row: None, names: 0, named_in: None })
    }

    pub fn inode(&mut self, inode: InodeId) -> &mut InodeRecord {
        self.inodes.entry(inode).or_insert(InodeRecord { row: None, references: 0, named: None })
    }
}

/// First counter of a shard that has not created an inode.
const FIRST_COUNTER: u64 = 2;
