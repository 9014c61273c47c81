//! Where a file's row is, and how it is written back or moved from its entry to an inode row.

use super::access::Guard;
use super::reader::Reader;
use super::{At, Change, Node, Refusal};
use crate::tables::{DirectoryRow, EntryBody, EntryRow, Key, NodeRow, Row};
use varve_types::{Credentials, InodeId, Name, Timestamp};

/// A file's row and its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Located<'a> {
    pub(super) inode: InodeId,
    pub(super) row: &'a NodeRow,
    /// Parent and name of the entry that holds the row; `None`: it is an inode row.
    entry: Option<(InodeId, &'a Name)>,
}

/// What [`At`] leads to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Found<'a> {
    File(Located<'a>),
    Directory(InodeId, &'a DirectoryRow),
    Nothing,
}

impl<'a> Found<'a> {
    pub(super) fn look(at: &'a At, reader: &Reader<'a>) -> Option<Found<'a>> {
        match at {
            At::Entry { parent, name, inode } => {
                let entry = reader.entry(*parent, name)?;
                Some(match entry {
                    Some(EntryRow { inode: found, body: EntryBody::Node(row) }) if found == inode => {
                        Found::File(Located { inode: *inode, row, entry: Some((*parent, name)) })
                    }
                    _ => Found::Nothing,
                })
            }
            At::Inode(inode) => {
                let (file, directory) = (reader.inode(*inode), reader.directory(*inode));
                Some(match (file?, directory?) {
                    (Some(row), _) => Found::File(Located { inode: *inode, row, entry: None }),
                    (None, Some(row)) => Found::Directory(*inode, row),
                    (None, None) => Found::Nothing,
                })
            }
        }
    }

    /// [`Found::look`], and the inode row where the entry does not hold the row: it may have held it a moment ago.
    pub(super) fn follow(at: &'a At, reader: &Reader<'a>) -> Option<Found<'a>> {
        match (Found::look(at, reader)?, at) {
            (Found::Nothing, At::Entry { inode, .. }) => Some(match reader.inode(*inode)? {
                Some(row) => Found::File(Located { inode: *inode, row, entry: None }),
                None => Found::Nothing,
            }),
            (found, _) => Some(found),
        }
    }

    /// The file, or `otherwise` where there is a directory.
    pub(super) fn file(self, otherwise: varve_types::Errno) -> Result<Located<'a>, Refusal> {
        match self {
            Found::File(file) => Ok(file),
            Found::Directory(..) => Err(otherwise.into()),
            Found::Nothing => Err(Refusal::NotHere),
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

    /// Writes `row` where the file's row is.
    pub(super) fn put(&self, row: NodeRow) -> Change {
        match self.entry {
            Some((parent, name)) => put_entry(parent, name, self.inode, EntryBody::Node(row)),
            None => put_inode(self.inode, row),
        }
    }

    /// Writes `row` into an inode row, to which the file's entry refers from here on.
    pub(super) fn put_externalised(&self, row: NodeRow) -> Vec<Change> {
        let kind = row.attributes.kind;
        let mut changes = vec![put_inode(self.inode, row)];
        if let Some((parent, name)) = self.entry {
            changes.push(put_entry(parent, name, self.inode, EntryBody::Reference(kind)));
        }
        changes
    }

    /// The row after `caller` changed the file's content at `now`.
    pub(super) fn written(&self, caller: &Credentials, now: Timestamp) -> NodeRow {
        let mut row = self.row.clone();
        row.attributes.mode = self.guard().mode_after_write(caller);
        row.attributes.mtime = now;
        row.attributes.ctime = now;
        row
    }
}

pub(super) fn put_entry(parent: InodeId, name: &Name, inode: InodeId, body: EntryBody) -> Change {
    Change::put(Key::Entry(parent, name.clone()), Row::Entry(EntryRow { inode, body }))
}

pub(super) fn put_inode(inode: InodeId, row: NodeRow) -> Change {
    Change::put(Key::Inode(inode), Row::Inode(row))
}
