//! Privileges that a dump's rows would grant on this machine, and their removal. The creator of a dump chose the owners
//! in it; if root loads the dump into a store of root's, they take effect.

use varve_schema::{EntryBody, Key, Row};
use varve_types::{Attributes, FileKind, Mode};

/// Whether rows may grant privileges that only root may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    Keep,
    Drop,
}

/// Number of files whose rows were changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Set-user-id and set-group-id bits. Those of directories grant nothing, and are kept.
    pub set_ids: u64,
    /// Values of `security.capability`.
    pub capabilities: u64,
    /// Devices that users other than root could have opened.
    pub devices: u64,
}

const CAPABILITY: &[u8] = b"security.capability";

impl Dropped {
    pub fn is_nothing(&self) -> bool {
        *self == Dropped::default()
    }

    /// Removes privileges from the row; `None`: the row contains nothing else.
    pub(super) fn drop_from(&mut self, key: &Key, row: &mut Row) -> Option<Changed> {
        match (key, &mut *row) {
            (Key::Xattr(_, name), _) if name.as_ref() == CAPABILITY => {
                self.capabilities += 1;
                None
            }
            (_, Row::Entry(entry)) => match &mut entry.body {
                EntryBody::Node(node) => Some(self.restrict(&mut node.attributes)),
                EntryBody::Directory(_) | EntryBody::Reference(_) => Some(Changed(false)),
            },
            (_, Row::Inode(node)) => {
                let names = node.xattrs.len();
                node.xattrs.retain(|name| name.as_ref() != CAPABILITY);
                let Changed(restricted) = self.restrict(&mut node.attributes);
                Some(Changed(restricted || node.xattrs.len() != names))
            }
            (_, Row::Directory(directory)) => {
                let names = directory.xattrs.len();
                directory.xattrs.retain(|name| name.as_ref() != CAPABILITY);
                Some(Changed(directory.xattrs.len() != names))
            }
            _ => Some(Changed(false)),
        }
    }

    fn restrict(&mut self, attributes: &mut Attributes) -> Changed {
        match attributes.kind {
            FileKind::CharDevice | FileKind::BlockDevice => {
                let restricted = Attributes { uid: 0, gid: 0, mode: Mode(0o600), ..*attributes };
                let changed = restricted != *attributes;
                *attributes = restricted;
                self.devices += u64::from(changed);
                Changed(changed)
            }
            FileKind::Directory => Changed(false),
            _ if attributes.mode.has(Mode::SET_UID | Mode::SET_GID) => {
                attributes.mode = attributes.mode.without(Mode::SET_UID | Mode::SET_GID);
                self.set_ids += 1;
                Changed(true)
            }
            _ => Changed(false),
        }
    }
}

/// Whether the bytes of a row have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed(pub bool);
