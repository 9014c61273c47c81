//! Creates a directory.

use super::access;
use super::get_attributes::directory_node;
use super::names::NameSlot;
use super::node::Node;
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal, commit};
use varve_schema::{Change, DirectoryRow, EntryBody, Key, PartitionRow, PartitionState, Row};
use varve_types::{Attributes, FileKind, InodeId, Mode, Name, PartitionIndex, PartitionMap, ShardCount};

/// Creates the directory `name` in `parent`. Its home is the shard of the context's new inode id. `mode` has the
/// caller's umask applied; of its upper bits only sticky counts, and set-group-id comes from the parent. EEXIST if the
/// name exists.
#[derive(Clone, Debug)]
pub struct MakeDirectory {
    pub parent: InodeId,
    pub name: Name,
    pub mode: Mode,
}

impl Rule for MakeDirectory {
    type Outcome = Node;
    type Rows<'a> = NameSlot<'a>;

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<NameSlot<'a>> {
        NameSlot::look(self.parent, &self.name, reader)
    }

    fn rule(&self, slot: NameSlot<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let parent = slot.vacant(context.caller)?;
        let mode = self.mode.without(Mode::SET_UID | Mode::SET_GID);
        let (gid, mode) = access::inherit(parent, FileKind::Directory, mode, context.caller);
        let (uid, now, inode) = (context.caller.uid, context.now, context.fresh);
        let made = Attributes {
            kind: FileKind::Directory,
            mode,
            uid,
            gid,
            nlink: 2,
            size: 0,
            rdev: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let (directory, partition) = first_rows(self.parent, &made, context.shards);
        let node = directory_node(inode, &directory, Some(&partition));
        let changes = vec![
            Change::put(Key::Directory(inode), Row::Directory(directory)),
            Change::put(Key::Partition(inode, PartitionIndex::FIRST), Row::Partition(partition)),
            slot.put(inode, EntryBody::Directory(node.attributes)),
            slot.tally(1, 1, now),
        ];
        Ok(commit(changes, node))
    }
}

/// The directory row and the row of the first partition of an empty directory in `parent` that was created with the
/// attributes `made`.
pub(super) fn first_rows(parent: InodeId, made: &Attributes, shards: ShardCount) -> (DirectoryRow, PartitionRow) {
    let map = PartitionMap::whole(shards);
    let &Attributes { mode, uid, gid, atime, mtime, ctime, btime, .. } = made;
    let directory =
        DirectoryRow { parent, mode, uid, gid, atime, mtime, ctime, btime, map: map.clone(), xattrs: Vec::new() };
    let partition = PartitionRow {
        index: PartitionIndex::FIRST,
        depth: 0,
        state: PartitionState::Live,
        mode,
        uid,
        gid,
        entries: 0,
        subdirectories: 0,
        mtime,
        map,
    };
    (directory, partition)
}
