//! The fixes of findings.

use bytes::Bytes;
use varve_types::{InodeId, Name, PartitionIndex, ShardId};

/// Fixes kept of each stage in one round; the next round finds the others again.
pub const FIXES_MAX: usize = 20_000;

/// The order of repair. A stage relies on the state that earlier stages have corrected, so it runs only when no fix of
/// an earlier stage is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairStage {
    /// Single rows, counters and transactions in progress: all other checks read from these.
    Rows,
    /// The partitions of each directory.
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

/// A file's expected minimum size, and the size that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    pub expected: u64,
    pub found: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fix {
    /// Writes the volume file from its copy.
    MakeVolumeFile,
    /// Writes the copy from the volume file.
    MakeVolumeCopy,
    /// Creates a new key for the volume.
    MakeKey,
    /// Applies decided transactions and drops the others, as the next server would.
    Resolve,
    /// Saves the bytes in a file outside of the table and removes the row.
    SetAside {
        shard: ShardId,
        key: Bytes,
        row: Bytes,
    },
    /// Truncates the log at the torn end that its last owner left, as the next server would.
    EndLog {
        shard: ShardId,
    },
    MoveRow {
        from: ShardId,
        to: ShardId,
        key: varve_schema::Key,
    },
    DropRow {
        shard: ShardId,
        key: varve_schema::Key,
    },
    RaiseCounter {
        shard: ShardId,
        above: u64,
    },
    MakeRoot,
    /// Creates or corrects a partition row: live, with this depth.
    MakePartition {
        directory: InodeId,
        index: PartitionIndex,
        depth: u8,
    },
    /// Moves the names of a partition that overlaps others to their right partitions, and removes it.
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
    /// Removes an entry that no lookup finds, or moves it to lost+found if no other name leads to its target.
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
    /// Gives a directory its only name in lost+found and removes its other names.
    AttachDirectory {
        directory: InodeId,
    },
    /// Keeps only one name of a directory: the one in `keep`.
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
    /// Gives files that share one id separate ids.
    Duplicate {
        inode: InodeId,
    },
    /// Removes names whose target is missing, unless there is a backing file, for which it creates a row again.
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
    /// Removes the backing file of a removed file, and the row that requests the removal.
    DropGarbage {
        shard: ShardId,
        inode: InodeId,
    },
    /// Makes a file's row consistent.
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
    /// Adds an extended attribute to its file's list, or removes it if there is no such file.
    StrayXattr {
        inode: InodeId,
        name: Bytes,
    },
    /// Sets the row's size to the backing file's, or completes a pending truncation of the backing file.
    RecordSize {
        inode: InodeId,
        cut: Option<Cut>,
    },
    /// Moves a file whose content is missing to lost+found, empty.
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
