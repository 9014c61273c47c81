//! Operations on names that several verbs use: look up a name with its target, count it, and remove it.

use super::access;
use super::locate::put_inode;
use super::partitions::{self, PartitionRows};
use super::reader::RowReader;
use super::verb::{Context, Effect};
use varve_schema::{Change, Content, DirectoryRow, EntryBody, EntryRow, Key, NodeRow, OrphanRow, PartitionRow, Row};
use varve_types::{Credentials, Errno, InodeId, Mode, Name, Timestamp};

/// A name, the partition of its parent that holds it, and the entry if there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct NameSlot<'a> {
    pub(super) directory: InodeId,
    pub(super) name: &'a Name,
    pub(super) partition: Option<&'a PartitionRow>,
    pub(super) entry: Option<&'a EntryRow>,
}

impl<'a> NameSlot<'a> {
    pub(super) fn look(directory: InodeId, name: &'a Name, reader: &RowReader<'a>) -> Option<NameSlot<'a>> {
        let (partition, entry) = (reader.partition_of(directory, name), reader.entry(directory, name));
        Some(NameSlot { directory, name, partition: partition?, entry: entry? })
    }

    pub(super) fn parent(&self) -> Result<&'a PartitionRow, Errno> {
        access::parent(self.partition)
    }

    /// The entry, if the caller may search the parent.
    pub(super) fn search(&self, caller: &Credentials) -> Result<Option<&'a EntryRow>, Errno> {
        access::check_search(self.parent()?, caller)?;
        Ok(self.entry)
    }

    /// The parent, if the caller may create this name and the name is free. EEXIST comes before the check of write
    /// permission (Linux's order: `mkdir -p` on another user's directory gets EEXIST).
    pub(super) fn vacant(&self, caller: &Credentials) -> Result<&'a PartitionRow, Errno> {
        if self.search(caller)?.is_some() {
            return Err(Errno::EEXIST);
        }
        let parent = self.parent()?;
        access::check_make(parent, caller)?;
        Ok(parent)
    }

    /// Whether the parent is sticky, so that removing the name depends on the owner of its target.
    pub(super) fn is_sticky(&self) -> bool {
        self.partition.is_some_and(|partition| partition.mode.has(Mode::STICKY))
    }

    /// Adds `entries` to the parent's count of names, and `subdirectories` to its count of directories.
    pub(super) fn tally(&self, entries: i64, subdirectories: i64, at: Timestamp) -> Change {
        Change::Tally { directory: self.directory, name: self.name.clone(), entries, subdirectories, at }
    }

    pub(super) fn put(&self, inode: InodeId, body: EntryBody) -> Change {
        super::locate::put_entry(self.directory, self.name, inode, body)
    }

    pub(super) fn delete(&self) -> Change {
        Change::Delete(Key::Entry(self.directory, self.name.clone()))
    }
}

/// The target of a name, with all rows that are deleted if the name is its last.
#[derive(Clone, Debug)]
pub(super) enum NameTarget<'a> {
    /// `by_inode`: `row` is the file's inode row.
    File {
        inode: InodeId,
        row: &'a NodeRow,
        by_inode: bool,
    },
    Directory {
        inode: InodeId,
        row: &'a DirectoryRow,
        partitions: PartitionRows<'a>,
    },
    /// A name whose inode or directory row is missing.
    Torn(InodeId),
}

impl<'a> NameTarget<'a> {
    pub(super) fn look(entry: &'a EntryRow, reader: &RowReader<'a>) -> Option<NameTarget<'a>> {
        let inode = entry.inode;
        Some(match &entry.body {
            EntryBody::Node(row) => NameTarget::File { inode, row, by_inode: false },
            EntryBody::Reference(_) => reader.inode(inode)?.map_or(NameTarget::Torn(inode), |row| NameTarget::File {
                inode,
                row,
                by_inode: true,
            }),
            EntryBody::Directory(_) => {
                let row = reader.directory(inode);
                let partitions = partitions::look(inode, row.flatten(), reader);
                match (row?, partitions?) {
                    (Some(row), partitions) => NameTarget::Directory { inode, row, partitions },
                    (None, _) => NameTarget::Torn(inode),
                }
            }
        })
    }

    /// Owner and group.
    pub(super) fn owner(&self) -> Option<(u32, u32)> {
        match self {
            NameTarget::File { row, .. } => Some((row.attributes.uid, row.attributes.gid)),
            NameTarget::Directory { row, .. } => Some((row.uid, row.gid)),
            NameTarget::Torn(_) => None,
        }
    }
}

/// The consequences of removing a name.
#[derive(Debug, Default)]
pub(super) struct Removal {
    pub(super) changes: Vec<Change>,
    pub(super) effects: Vec<Effect>,
    /// The inode, if this was its last name.
    pub(super) last_name_of: Option<InodeId>,
}

/// Removes a name of the file `inode`; the caller deletes or replaces the entry. The last name of an open file leaves
/// an inode row without names and an orphan row. The reaper removes both after the last session has closed the file.
pub(super) fn remove_file(inode: InodeId, row: &NodeRow, by_inode: bool, context: &Context<'_>) -> Removal {
    let mut rest = row.clone();
    rest.attributes.nlink = rest.attributes.nlink.saturating_sub(1);
    rest.attributes.ctime = context.now;
    if rest.attributes.nlink > 0 {
        return Removal { changes: vec![put_inode(inode, rest)], ..Removal::default() };
    }
    let last_name_of = Some(inode);
    if (context.may_be_open)(inode) {
        let orphan = Change::put(Key::Orphan(inode), Row::Orphan(OrphanRow { since: context.now }));
        return Removal { changes: vec![put_inode(inode, rest), orphan], effects: Vec::new(), last_name_of };
    }
    let mut changes = Vec::new();
    if by_inode {
        changes.push(Change::Delete(Key::Inode(inode)));
        changes.extend(row.xattrs.iter().map(|name| Change::Delete(Key::Xattr(inode, name.clone()))));
    }
    let effects = match row.content {
        Content::Backing(_) => vec![Effect::Reap(inode)],
        _ => Vec::new(),
    };
    Removal { changes, effects, last_name_of }
}

/// Removes the directory `inode`, which must be empty.
pub(super) fn remove_directory(
    inode: InodeId,
    row: &DirectoryRow,
    partitions: &PartitionRows<'_>,
) -> Result<Removal, Errno> {
    if !partitions::is_empty(partitions) {
        return Err(Errno::ENOTEMPTY);
    }
    let changes = partitions::delete(inode, row, partitions);
    Ok(Removal { changes, effects: Vec::new(), last_name_of: Some(inode) })
}
