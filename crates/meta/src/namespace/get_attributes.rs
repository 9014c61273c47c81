//! What stat shows.

use super::locate::Found;
use super::reader::Reader;
use super::{At, Context, Decision, Node, NodeContent, Refusal, Rule};
use crate::tables::{DirectoryRow, PartitionRow};
use varve_types::{Attributes, FileKind, InodeId, LayoutGeneration, PartitionIndex, PartitionMap};

/// Attributes of a file or directory; nobody needs a permission on the file itself.
#[derive(Clone, Debug)]
pub struct GetAttributes {
    pub at: At,
}

impl Rule for GetAttributes {
    type Outcome = Node;
    type Rows<'a> = (Found<'a>, Option<&'a PartitionRow>);

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Self::Rows<'a>> {
        look_with_home(&self.at, reader)
    }

    fn rule(&self, (found, home): Self::Rows<'_>, _: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        match found {
            Found::File(file) => Ok(Decision::Answer(file.node())),
            Found::Directory(inode, row) => Ok(Decision::Answer(directory_node(inode, row, home))),
            Found::Nothing => Err(Refusal::NotHere),
        }
    }
}

/// What `at` leads to and, of a directory, partition 0, which is at its home too.
pub(super) fn look_with_home<'a>(at: &'a At, reader: &Reader<'a>) -> Option<(Found<'a>, Option<&'a PartitionRow>)> {
    let found = Found::look(at, reader)?;
    let home = match found {
        Found::Directory(inode, _) => reader.partition(inode, PartitionIndex::FIRST)?,
        Found::File(_) | Found::Nothing => None,
    };
    Some((found, home))
}

/// Attributes of a directory, and what its other partitions are asked for.
#[derive(Clone, Debug)]
pub struct GetDirectory {
    pub directory: InodeId,
}

/// A directory with the counts of partition 0 alone: who wants all adds the other partitions' (and takes the latest
/// mtime and ctime).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryNode {
    pub node: Node,
    pub parent: InodeId,
    pub map: PartitionMap,
    pub entries: u64,
    pub subdirectories: u64,
}

impl Rule for GetDirectory {
    type Outcome = DirectoryNode;
    type Rows<'a> = (Option<&'a DirectoryRow>, Option<&'a PartitionRow>);

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Self::Rows<'a>> {
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
            node: directory_node(self.directory, row, home),
            parent: row.parent,
            map,
            entries: home.map_or(0, |home| home.entries),
            subdirectories: home.map_or(0, |home| home.subdirectories),
        }))
    }
}

/// A directory as stat shows it, as far as its row and one partition tell. Its size is the number of its entries, as
/// directories here have no bytes; its mtime and ctime are at least the latest change of a name.
pub(super) fn directory_node(inode: InodeId, row: &DirectoryRow, partition: Option<&PartitionRow>) -> Node {
    let changed = partition.map_or(row.mtime, |partition| partition.mtime);
    let subdirectories = partition.map_or(0, |partition| partition.subdirectories);
    let attributes = Attributes {
        kind: FileKind::Directory,
        mode: row.mode,
        uid: row.uid,
        gid: row.gid,
        nlink: u32::try_from(subdirectories.saturating_add(2)).unwrap_or(u32::MAX),
        size: partition.map_or(0, |partition| partition.entries),
        rdev: 0,
        atime: row.atime,
        mtime: row.mtime.max(changed),
        ctime: row.ctime.max(changed),
        btime: row.btime,
    };
    Node { inode, attributes, content: NodeContent::None, generation: LayoutGeneration::default(), by_inode: true }
}
