//! The attributes that stat(2) returns.

use super::locate::LocatedRow;
use super::node::{At, Node, NodeContent};
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal};
use varve_schema::{DirectoryRow, PartitionRow};
use varve_types::{Attributes, FileKind, InodeId, LayoutGeneration, PartitionIndex, PartitionMap, Timestamp};

/// Returns the attributes of a file or directory. It requires no permission on the file itself.
#[derive(Clone, Debug)]
pub struct GetAttributes {
    pub at: At,
}

impl Rule for GetAttributes {
    type Outcome = Node;
    type Rows<'a> = (LocatedRow<'a>, Option<&'a PartitionRow>);

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        look_with_home(&self.at, reader)
    }

    fn rule(&self, (found, home): Self::Rows<'_>, _: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        match found {
            LocatedRow::File(file) => Ok(Decision::Answer(file.node())),
            LocatedRow::Directory(inode, row) => Ok(Decision::Answer(directory_node(inode, row, home))),
            LocatedRow::Nothing => Err(Refusal::NotHere),
        }
    }
}

/// Finds the row at `at` and, for a directory, its partition 0, which is in the same home shard.
pub(super) fn look_with_home<'a>(
    at: &'a At,
    reader: &RowReader<'a>,
) -> Option<(LocatedRow<'a>, Option<&'a PartitionRow>)> {
    let found = LocatedRow::look(at, reader)?;
    let home = match found {
        LocatedRow::Directory(inode, _) => reader.partition(inode, PartitionIndex::FIRST)?,
        LocatedRow::File(_) | LocatedRow::Nothing => None,
    };
    Some((found, home))
}

/// Returns a directory's row and the state of its home shard.
#[derive(Clone, Debug)]
pub struct GetDirectory {
    pub directory: InodeId,
}

/// A directory as its home shard knows it: the counts are those of partition 0, until those of the other partitions are
/// added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryNode {
    pub inode: InodeId,
    pub row: DirectoryRow,
    /// As far as the home shard knows.
    pub map: PartitionMap,
    /// Depth of partition 0, which determines the partitions that were split off it.
    pub depth: u8,
    pub counts: PartitionTotals,
}

impl DirectoryNode {
    pub fn node(&self) -> Node {
        shown(self.inode, &self.row, &self.counts)
    }
}

/// The totals over partitions of a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PartitionTotals {
    pub entries: u64,
    pub subdirectories: u64,
    /// Time of the latest change of a name since an mtime was set.
    pub changed: Option<Timestamp>,
    /// A partition cannot be read and is not included.
    pub unread: bool,
}

impl PartitionTotals {
    pub fn add(&mut self, partition: &PartitionRow) {
        self.entries = self.entries.saturating_add(partition.entries);
        self.subdirectories = self.subdirectories.saturating_add(partition.subdirectories);
        let changed = (partition.mtime != Timestamp::NEVER).then_some(partition.mtime);
        self.changed = self.changed.max(changed);
    }

    fn of(partition: Option<&PartitionRow>) -> PartitionTotals {
        let mut counts = PartitionTotals::default();
        partition.into_iter().for_each(|partition| counts.add(partition));
        counts
    }
}

impl Rule for GetDirectory {
    type Outcome = DirectoryNode;
    type Rows<'a> = (Option<&'a DirectoryRow>, Option<&'a PartitionRow>);

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        let row = reader.directory(self.directory);
        let home = reader.partition(self.directory, PartitionIndex::FIRST);
        Some((row?, home?))
    }

    fn rule(&self, (row, home): Self::Rows<'_>, _: &Context<'_>) -> Result<Decision<DirectoryNode>, Refusal> {
        let row = row.ok_or(Refusal::NotHere)?;
        let mut map = row.map.clone();
        if let Some(home) = home {
            map.merge(&home.map);
        }
        Ok(Decision::Answer(DirectoryNode {
            inode: self.directory,
            row: row.clone(),
            map,
            depth: home.map_or(0, |home| home.depth),
            counts: PartitionTotals::of(home),
        }))
    }
}

/// A directory's node from its row and one partition.
pub(super) fn directory_node(inode: InodeId, row: &DirectoryRow, partition: Option<&PartitionRow>) -> Node {
    shown(inode, row, &PartitionTotals::of(partition))
}

/// A directory's attributes as stat(2) shows them. The size is the number of entries, because directories here have no
/// bytes. The mtime is the time of the latest change of a name or, if no name has changed since an mtime was set, that
/// mtime. The ctime is at least the time of the latest change of a name.
///
/// If a partition cannot be read, the values are those of the other partitions, so that paths through the directory to
/// undamaged files still work. The link count is then 1, which means, as on file systems that do not count
/// subdirectories, that the number is unknown.
fn shown(inode: InodeId, row: &DirectoryRow, counts: &PartitionTotals) -> Node {
    let subdirectories = u32::try_from(counts.subdirectories.saturating_add(2)).unwrap_or(u32::MAX);
    let attributes = Attributes {
        kind: FileKind::Directory,
        mode: row.mode,
        uid: row.uid,
        gid: row.gid,
        nlink: if counts.unread { Attributes::NLINK_UNKNOWN } else { subdirectories },
        size: counts.entries,
        rdev: 0,
        atime: row.atime,
        mtime: counts.changed.unwrap_or(row.mtime),
        ctime: row.ctime.max(counts.changed.unwrap_or(row.ctime)),
        btime: row.btime,
    };
    Node { inode, attributes, content: NodeContent::None, generation: LayoutGeneration::default(), by_inode: true }
}
