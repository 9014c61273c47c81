//! Makes a directory.

use super::get_attributes::directory_node;
use super::names::Slot;
use super::reader::Reader;
use super::{Change, Context, Decision, Node, Refusal, Rule, access, commit};
use crate::tables::{DirectoryRow, EntryBody, Key, PartitionRow, PartitionState, Row};
use varve_types::{FileKind, InodeId, Mode, Name, PartitionIndex, PartitionMap};

/// Makes the directory `name` in `parent`: its home is the shard of the context's fresh inode id. `mode` is what is left
/// after the caller's umask; of its upper bits only sticky counts, and set-group-id comes from the parent. EEXIST where
/// the name is taken.
#[derive(Clone, Debug)]
pub struct MakeDirectory {
    pub parent: InodeId,
    pub name: Name,
    pub mode: Mode,
}

impl Rule for MakeDirectory {
    type Outcome = Node;
    type Rows<'a> = Slot<'a>;

    fn look<'a>(&'a self, reader: &Reader<'a>) -> Option<Slot<'a>> {
        Slot::look(self.parent, &self.name, reader)
    }

    fn rule(&self, slot: Slot<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let parent = slot.vacant(context.caller)?;
        let mode = self.mode.without(Mode::SET_UID | Mode::SET_GID);
        let (gid, mode) = access::inherit(parent, FileKind::Directory, mode, context.caller);
        let (uid, now, inode) = (context.caller.uid, context.now, context.fresh);
        let map = PartitionMap::whole(context.shards);
        let partition = PartitionRow {
            index: PartitionIndex::FIRST,
            depth: 0,
            state: PartitionState::Live,
            mode,
            uid,
            gid,
            entries: 0,
            subdirectories: 0,
            mtime: now,
            map: map.clone(),
        };
        let directory = DirectoryRow {
            parent: self.parent,
            mode,
            uid,
            gid,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            map,
            xattrs: Vec::new(),
        };
        let node = directory_node(inode, &directory, Some(&partition));
        let changes = vec![
            Change::Put(Key::Directory(inode), Row::Directory(directory)),
            Change::Put(Key::Partition(inode, PartitionIndex::FIRST), Row::Partition(partition)),
            slot.put(inode, EntryBody::Directory(node.attributes)),
            slot.tally(1, 1, now),
        ];
        Ok(commit(changes, node))
    }
}
