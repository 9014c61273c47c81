//! Names: made, removed, renamed, linked.

use super::{Door, files};
use crate::errno::name as parse;
use fuser::{BackingId, RenameFlags as KernelFlags};
use std::ffi::OsStr;

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use varve_client::{NewNode, Node, OpenFlags, RenameFlags, Result, now};
use varve_types::{Credentials, Errno, InodeId, Mode};
use varve_world::disk::File;

/// Permissions that a symlink shows; nobody looks at them (symlink(7)).
const SYMLINK_MODE: u32 = 0o777;

impl Door {
    pub(super) fn look_up(&self, caller: &Credentials, parent: InodeId, name: &OsStr) -> Result<Node> {
        now(self.fs.lookup(caller, parent, &parse(name)?))
    }

    /// In the name of `thread`, which may ask for the attributes next.
    pub(super) fn look_up_by(&self, thread: u32, caller: &Credentials, parent: InodeId, name: &OsStr) -> Result<Node> {
        now(self.fs.lookup_by(thread, caller, parent, &parse(name)?))
    }

    pub(super) fn create(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        flags: i32,
        register: impl FnOnce(&File) -> io::Result<BackingId>,
    ) -> Result<(Node, files::Reply)> {
        let flags = OpenFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        let (node, opened) = now(self.fs.create(caller, parent, &parse(name)?, Mode::new(mode), flags))?;
        Ok((node, self.opened(node.inode, flags, opened, register)))
    }

    pub(super) fn make_node(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        node: NewNode,
    ) -> Result<Node> {
        now(self.fs.make_node(caller, parent, &parse(name)?, Mode::new(mode), node))
    }

    pub(super) fn make_directory(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
    ) -> Result<Node> {
        now(self.fs.make_directory(caller, parent, &parse(name)?, Mode::new(mode)))
    }

    pub(super) fn make_symlink(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &OsStr,
        target: &Path,
    ) -> Result<Node> {
        let target = target.as_os_str().as_bytes().to_vec();
        self.make_node(caller, parent, name, SYMLINK_MODE, NewNode::Symlink { target })
    }

    pub(super) fn unlink(&self, caller: &Credentials, parent: InodeId, name: &OsStr) -> Result<()> {
        now(self.fs.unlink(caller, parent, &parse(name)?))
    }

    pub(super) fn remove_directory(&self, caller: &Credentials, parent: InodeId, name: &OsStr) -> Result<()> {
        now(self.fs.remove_directory(caller, parent, &parse(name)?))
    }

    pub(super) fn rename(
        &self,
        caller: &Credentials,
        (parent, name): (InodeId, &OsStr),
        (new_parent, new_name): (InodeId, &OsStr),
        flags: KernelFlags,
    ) -> Result<()> {
        let flags = match flags {
            flags if flags.is_empty() => RenameFlags::Replace,
            KernelFlags::RENAME_NOREPLACE => RenameFlags::NoReplace,
            KernelFlags::RENAME_EXCHANGE => RenameFlags::Exchange,
            // RENAME_WHITEOUT serves overlays, and combinations mean nothing (renameat2(2)).
            _ => return Err(Errno::EINVAL.into()),
        };
        now(self.fs.rename(caller, parent, &parse(name)?, new_parent, &parse(new_name)?, flags))
    }

    pub(super) fn link(&self, caller: &Credentials, inode: InodeId, parent: InodeId, name: &OsStr) -> Result<Node> {
        now(self.fs.link(caller, inode, parent, &parse(name)?))
    }
}
