//! Recreates the rows of a directory that were lost in a power failure.

use super::get_attributes::directory_node;
use super::make_directory::first_rows;
use super::names::NameSlot;
use super::node::Node;
use super::reader::RowReader;
use super::rule::Rule;
use super::verb::{Context, Decision, Refusal, commit};
use varve_schema::{Change, DirectoryRow, EntryBody, Key, PartitionRow, Row};
use varve_types::{Errno, InodeId, Name, PartitionIndex};

/// Recreates the directory that `name` in `parent` refers to, empty and with its original attributes, if it has no
/// directory row.
///
/// A directory's rows are written before its entry, but to another log. If power fails before either log is fsynced,
/// the entry alone may survive. Everything that was ever in the directory is lost with its rows, because its first
/// partition was in the same log. A directory that has its row is returned unchanged, so the call is always safe.
/// ENOENT if the name does not exist, ENOTDIR if it does not refer to a directory.
#[derive(Clone, Debug)]
pub struct ReviveDirectory {
    pub parent: InodeId,
    pub name: Name,
}

type Home<'a> = (Option<&'a DirectoryRow>, Option<&'a PartitionRow>);

impl Rule for ReviveDirectory {
    type Outcome = Node;
    type Rows<'a> = (NameSlot<'a>, Option<Home<'a>>);

    fn look<'a>(&'a self, reader: &RowReader<'a>) -> Option<Self::Rows<'a>> {
        let slot = NameSlot::look(self.parent, &self.name, reader)?;
        let home = match slot.entry {
            Some(entry) => {
                let row = reader.directory(entry.inode);
                let first = reader.partition(entry.inode, PartitionIndex::FIRST);
                Some((row?, first?))
            }
            None => None,
        };
        Some((slot, home))
    }

    fn rule(&self, (slot, home): Self::Rows<'_>, context: &Context<'_>) -> Result<Decision<Node>, Refusal> {
        let entry = slot.search(context.caller)?.ok_or(Errno::ENOENT)?;
        let EntryBody::Directory(made) = &entry.body else { return Err(Errno::ENOTDIR.into()) };
        let inode = entry.inode;
        let (row, first) = home.unwrap_or_default();
        if let Some(row) = row {
            return Ok(Decision::Answer(directory_node(inode, row, first)));
        }
        let (directory, partition) = first_rows(self.parent, made, context.shards);
        let node = directory_node(inode, &directory, first.or(Some(&partition)));
        let mut changes = vec![Change::put(Key::Directory(inode), Row::Directory(directory))];
        if first.is_none() {
            changes.push(Change::put(Key::Partition(inode, PartitionIndex::FIRST), Row::Partition(partition)));
        }
        Ok(commit(changes, node))
    }
}
