//! What repairs a finding.

use bytes::Bytes;
use varve_types::{InodeId, Name, PartitionIndex, ShardId};

/// Fixes kept of each stage in one round; the others wait for the next, which finds them again.
pub const FIXES_MAX: usize = 20_000;

/// The order of repair: what a stage does rests on what those before it have put right, so that a stage is carried out
/// only when nothing of an earlier one is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairStage {
    /// Rows by themselves, counters, changes under way: what everything else is read from.
    Rows,
    /// Which partitions make up each directory.
    Partitions,
    /// Directories and their names.
    Directories,
    /// Files, their names and xattrs.
    Files,
    /// Backing files.
    Data,
    /// Counts and copies.
    Counts,
}

/// The bytes that a file had at least, and those that are left of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub expected: u64,
    pub found: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// Makes the volume file from its copy.
    MakeVolumeFile,
    /// Makes the copy from the volume file.
    MakeVolumeCopy,
    /// Makes the volume another key.
    MakeKey,
    /// Applies what is decided and drops the rest, as the next server would.
    Resolve,
    /// Keeps the bytes in a file outside of the table and removes the row.
    SetAside {
        shard: ShardId,
        key: Bytes,
        row: Bytes,
    },
    /// Ends the log where its last owner's is torn, as the next server would.
    EndLog {
        shard: ShardId,
    },
    MoveRow {
        from: ShardId,
        to: ShardId,
        key: crate::tables::Key,
    },
    DropRow {
        shard: ShardId,
        key: crate::tables::Key,
    },
    RaiseCounter {
        shard: ShardId,
        above: u64,
    },
    MakeRoot,
    /// Makes or corrects a partition row: live, of this depth.
    MakePartition {
        directory: InodeId,
        index: PartitionIndex,
        depth: u8,
    },
    /// Moves the names of a partition that overlaps others to where they belong, and removes it.
    DissolvePartition {
        directory: InodeId,
        index: PartitionIndex,
    },
    /// Removes a partition whose names count elsewhere.
    DropPartition {
        directory: InodeId,
        index: PartitionIndex,
    },
    SetLive {
        directory: InodeId,
        index: PartitionIndex,
    },
    /// Removes an entry that no lookup finds, or brings it to lost+found if nothing else leads to what it names.
    Stray {
        shard: ShardId,
        directory: InodeId,
        name: Name,
        known: bool,
    },
    MakeDirectoryRow {
        directory: InodeId,
        parent: InodeId,
    },
    /// Removes the rows of an empty directory without a name.
    DropDirectory {
        directory: InodeId,
    },
    /// Gives a directory its one name in lost+found; names that it has elsewhere go.
    AttachDirectory {
        directory: InodeId,
    },
    /// Leaves a directory one of its names: in `keep`.
    OneName {
        directory: InodeId,
        keep: InodeId,
    },
    SetParent {
        directory: InodeId,
        parent: InodeId,
    },
    SetMap {
        directory: InodeId,
    },
    /// Parts files that have one id.
    Duplicate {
        inode: InodeId,
    },
    /// Removes names that lead nowhere, unless there is a backing file, which gets its row again.
    DropReferences {
        inode: InodeId,
    },
    SetLinks {
        inode: InodeId,
        links: u32,
    },
    AttachFile {
        inode: InodeId,
    },
    DropOrphan {
        inode: InodeId,
    },
    /// Removes the backing file of a removed file, and the row that asks for it.
    DropGarbage {
        shard: ShardId,
        inode: InodeId,
    },
    /// Makes a file's row agree with itself.
    CorrectNode {
        inode: InodeId,
        at: Option<(InodeId, Name)>,
    },
    CorrectReference {
        directory: InodeId,
        name: Name,
    },
    Unlist {
        inode: InodeId,
        name: Bytes,
    },
    /// Lists an extended attribute with its file, or removes it if there is no such file.
    StrayXattr {
        inode: InodeId,
        name: Bytes,
    },
    /// The row's size becomes the backing file's, or that one is cut as was begun.
    RecordSize {
        inode: InodeId,
        cut: Option<Cut>,
    },
    /// Moves a file whose content is gone to lost+found, empty.
    Bereaved {
        inode: InodeId,
    },
    /// Gives content without a file a name in lost+found.
    AttachData {
        inode: InodeId,
    },
    SetCounts {
        directory: InodeId,
        index: PartitionIndex,
        entries: u64,
        subdirectories: u64,
    },
    CopyMode {
        directory: InodeId,
        index: PartitionIndex,
    },
}

impl Fix {
    pub fn stage(&self) -> RepairStage {
        match self {
            Fix::MakeVolumeFile
            | Fix::MakeVolumeCopy
            | Fix::MakeKey
            | Fix::Resolve
            | Fix::SetAside { .. }
            | Fix::EndLog { .. }
            | Fix::MoveRow { .. }
            | Fix::DropRow { .. }
            | Fix::RaiseCounter { .. } => RepairStage::Rows,
            Fix::MakeRoot
            | Fix::MakePartition { .. }
            | Fix::DissolvePartition { .. }
            | Fix::DropPartition { .. }
            | Fix::SetLive { .. } => RepairStage::Partitions,
            Fix::Stray { .. }
            | Fix::MakeDirectoryRow { .. }
            | Fix::DropDirectory { .. }
            | Fix::AttachDirectory { .. }
            | Fix::OneName { .. }
            | Fix::SetParent { .. }
            | Fix::SetMap { .. } => RepairStage::Directories,
            Fix::Duplicate { .. }
            | Fix::DropReferences { .. }
            | Fix::SetLinks { .. }
            | Fix::AttachFile { .. }
            | Fix::DropOrphan { .. }
            | Fix::CorrectNode { .. }
            | Fix::CorrectReference { .. }
            | Fix::Unlist { .. }
            | Fix::StrayXattr { .. } => RepairStage::Files,
            Fix::DropGarbage { .. } | Fix::RecordSize { .. } | Fix::Bereaved { .. } | Fix::AttachData { .. } => {
                RepairStage::Data
            }
            Fix::SetCounts { .. } | Fix::CopyMode { .. } => RepairStage::Counts,
        }
    }
}
