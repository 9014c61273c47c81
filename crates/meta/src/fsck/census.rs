//! What is kept of the rows while they are read.

use crate::tables::{DirectoryRow, PartitionRow};
use bytes::Bytes;
use std::collections::{HashMap, HashSet};
use varve_types::{FileKind, InodeId, PartitionIndex, ShardCount, ShardId, VolumeSettings};

pub struct Census {
    pub shards: ShardCount,
    pub inline_limit: u64,
    pub directories: HashMap<InodeId, Directory>,
    pub partitions: HashMap<(InodeId, PartitionIndex), Partition>,
    /// Files with an inode row.
    pub inodes: HashMap<InodeId, Inode>,
    pub orphans: HashSet<InodeId>,
    /// Names of extended attributes that rows list and that have not been met yet.
    pub xattrs_listed: HashMap<InodeId, HashSet<Bytes>>,
    /// Of each shard: the counter from which on ids are free.
    pub inodes_end: Vec<u64>,
    /// Ids of files whose attributes are in their entries.
    pub single_named: Vec<InodeId>,
    /// References and directory entries to what has no row (yet known).
    pub backing: Vec<Backing>,
}

pub struct Directory {
    /// `None`: an entry names it, and it has no row.
    pub row: Option<DirectoryRow>,
    /// Entries that name it, and where the last of them is.
    pub names: u32,
    pub named_in: Option<InodeId>,
}

pub struct Partition {
    pub row: PartitionRow,
    /// Part of its directory: its entries count.
    pub live: bool,
    pub entries: u64,
    pub subdirectories: u64,
}

pub struct Inode {
    /// `None`: a reference names it, and it has no row.
    pub row: Option<InodeSummary>,
    pub references: u32,
    /// One of the entries that name it.
    pub named: Option<(InodeId, String)>,
}

#[derive(Clone, Copy)]
pub struct InodeSummary {
    pub kind: FileKind,
    pub nlink: u32,
}

/// A file whose content is in a backing file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Backing {
    pub inode: InodeId,
    /// `None`: the backing file's own size counts.
    pub size: Option<u64>,
    /// `size` is to be, and may not be yet.
    pub pending: bool,
}

impl Census {
    pub fn new(settings: &VolumeSettings) -> Census {
        Census {
            shards: settings.shards,
            inline_limit: u64::from(settings.inline_limit),
            directories: HashMap::new(),
            partitions: HashMap::new(),
            inodes: HashMap::new(),
            orphans: HashSet::new(),
            xattrs_listed: HashMap::new(),
            inodes_end: vec![FIRST_COUNTER; usize::from(settings.shards.get())],
            single_named: Vec::new(),
            backing: Vec::new(),
        }
    }

    /// Where the partition `index` of `directory` has to be.
    pub fn shard_of(&self, directory: InodeId, index: PartitionIndex) -> ShardId {
        index.shard(directory.shard(), self.shards)
    }

    pub fn list_xattrs(&mut self, inode: InodeId, names: &[Bytes]) {
        if !names.is_empty() {
            self.xattrs_listed.entry(inode).or_default().extend(names.iter().cloned());
        }
    }

    pub fn directory(&mut self, inode: InodeId) -> &mut Directory {
        self.directories.entry(inode).or_insert(Directory { row: None, names: 0, named_in: None })
    }

    pub fn inode(&mut self, inode: InodeId) -> &mut Inode {
        self.inodes.entry(inode).or_insert(Inode { row: None, references: 0, named: None })
    }
}

/// A shard that never gave an id begins with this counter.
const FIRST_COUNTER: u64 = 2;
