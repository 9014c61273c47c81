//! What a dump's rows would grant on this machine, and taking it away: a dump has the owners that whoever made it wrote into
//! it, and loaded by root into a store of root's they count.

use crate::tables::{EntryBody, Key, Row};
use varve_types::{Attributes, FileKind, Mode};

/// Whether rows may grant what only root may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privileges {
    Keep,
    Drop,
}

/// Files whose rows were changed so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dropped {
    /// Set-user-id and set-group-id bits. Those of directories grant nothing, and stay.
    pub set_ids: u64,
    /// Values of `security.capability`.
    pub capabilities: u64,
    /// Devices that others than root might have opened.
    pub devices: u64,
}

const CAPABILITY: &[u8] = b"security.capability";

impl Dropped {
    pub fn is_nothing(&self) -> bool {
        *self == Dropped::default()
    }

    /// The row without what it would grant; `None`: it is nothing but that.
    pub(super) fn drop_from(&mut self, key: &Key, row: &mut Row) -> Option<Changed> {
        match (key, &mut *row) {
            (Key::Xattr(_, name), _) if name.as_ref() == CAPABILITY => {
                self.capabilities += 1;
                return None;
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

/// Whether a row has other bytes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed(pub bool);
