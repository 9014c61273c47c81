//! Locates a file's row, writes it back, and moves it from its entry to an inode row.

use super::access::{FILE_CAPABILITIES, Guard};
use super::node::{At, Node};
use super::reader::RowReader;
use super::verb::Refusal;
use varve_schema::{Change, DirectoryRow, EntryBody, EntryRow, Key, NodeRow, Row};
use varve_types::{Credentials, InodeId, Mode, Name, Timestamp};

/// A file's row and its location.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located<'a> {
    pub(super) inode: InodeId,
    pub(super) row: &'a NodeRow,
    /// Parent and name of the entry that holds the row; `None` for an inode row.
    entry: Option<(InodeId, &'a Name)>,
}

/// The row that [`At`] leads to.
#[derive(Clone, Copy, Debug)]
pub(super) enum LocatedRow<'a> {
    File(Located<'a>),
    Directory(InodeId, &'a DirectoryRow),
    Nothing,
}

impl<'a> LocatedRow<'a> {
    pub(super) fn look(at: &'a At, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        match at {
            At::Entry { parent, name, inode } => {
                let entry = reader.entry(*parent, name)?;
                Some(match entry {
                    Some(EntryRow { inode: found, body: EntryBody::Node(row) }) if found == inode => {
                        LocatedRow::File(Located { inode: *inode, row, entry: Some((*parent, name)) })
                    }
                    _ => LocatedRow::Nothing,
                })
            }
            At::Inode(inode) => {
                let (file, directory) = (reader.inode(*inode), reader.directory(*inode));
                Some(match (file?, directory?) {
                    (Some(row), _) => LocatedRow::File(Located { inode: *inode, row, entry: None }),
                    (None, Some(row)) => LocatedRow::Directory(*inode, row),
                    (None, None) => LocatedRow::Nothing,
                })
            }
        }
    }

    /// [`LocatedRow::look`], and then the inode row if the entry no longer holds the row.
    pub(super) fn follow(at: &'a At, reader: &RowReader<'a>) -> Option<LocatedRow<'a>> {
        match (LocatedRow::look(at, reader)?, at) {
            (LocatedRow::Nothing, At::Entry { inode, .. }) => Some(match reader.inode(*inode)? {
                Some(row) => LocatedRow::File(Located { inode: *inode, row, entry: None }),
                None => LocatedRow::Nothing,
            }),
            (found, _) => Some(found),
        }
    }

    /// The file, or the error `otherwise` for a directory.
    pub(super) fn file(self, otherwise: varve_types::Errno) -> Result<Located<'a>, Refusal> {
        match self {
            LocatedRow::File(file) => Ok(file),
            LocatedRow::Directory(..) => Err(otherwise.into()),
            LocatedRow::Nothing => Err(Refusal::NotHere),
        }
    }
}

impl Located<'_> {
    pub(super) fn node(&self) -> Node {
        Node::of(self.inode, self.row, self.by_inode())
    }

    pub(super) fn by_inode(&self) -> bool {
        self.entry.is_none()
    }

    pub(super) fn guard(&self) -> Guard {
        Guard::from(&self.row.attributes)
    }

    /// Writes `row` to the location of the file's row.
    pub(super) fn put(&self, row: NodeRow) -> Change {
        match self.entry {
            Some((parent, name)) => put_entry(parent, name, self.inode, EntryBody::Node(row)),
            None => put_inode(self.inode, row),
        }
    }

    /// [`Located::put`] for a row that may list fewer extended attributes: deletes the values of the others.
    pub(super) fn put_without_xattrs(&self, row: NodeRow) -> Vec<Change> {
        let gone = self.row.xattrs.iter().filter(|name| row.xattrs.binary_search(name).is_err());
        let deleted: Vec<Change> = gone.map(|name| Change::Delete(Key::Xattr(self.inode, name.clone()))).collect();
        std::iter::once(self.put(row)).chain(deleted).collect()
    }

    /// Writes `row` to an inode row and makes the file's entry refer to it.
    pub(super) fn put_externalised(&self, row: NodeRow) -> Vec<Change> {
        let kind = row.attributes.kind;
        let mut changes = vec![put_inode(self.inode, row)];
        if let Some((parent, name)) = self.entry {
            changes.push(put_entry(parent, name, self.inode, EntryBody::Reference(kind)));
        }
        changes
    }

    /// The row after `caller` has changed the file's content at `now`. As in Linux, every write takes the file's
    /// capabilities, root's too. [`Located::put_without_xattrs`] writes the row.
    pub(super) fn written(&self, caller: &Credentials, now: Timestamp) -> NodeRow {
        let mut row = self.without_privileges(self.guard().mode_after_write(caller));
        row.attributes.mtime = now;
        row.attributes.ctime = now;
        row
    }

    /// The row with `mode` and without file capabilities.
    pub(super) fn without_privileges(&self, mode: Mode) -> NodeRow {
        let mut row = self.row.clone();
        row.attributes.mode = mode;
        row.xattrs.retain(|name| name.as_ref() != FILE_CAPABILITIES);
        row
    }
}

pub(super) fn put_entry(parent: InodeId, name: &Name, inode: InodeId, body: EntryBody) -> Change {
    Change::put(Key::Entry(parent, name.clone()), Row::Entry(EntryRow { inode, body }))
}

pub(super) fn put_inode(inode: InodeId, row: NodeRow) -> Change {
    Change::put(Key::Inode(inode), Row::Inode(row))
}
