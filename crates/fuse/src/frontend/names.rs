//! Creates, removes, renames and links names.

use super::FuseFrontend;
use super::convert::sets_group_id;
use crate::errno::name as parse;
use fuser::{RenameFlags as KernelFlags, Request};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use varve_client::{NewNode, NodeInfo, OpenFlags, OpenedFile, RenameFlags, Result, block_on};
use varve_types::{Credentials, Errno, InodeId, Mode};

/// The permissions that a symlink shows; they have no effect (symlink(7)).
const SYMLINK_MODE: u32 = 0o777;

impl FuseFrontend {
    pub(super) fn look_up(&self, caller: &Credentials, parent: InodeId, name: &OsStr) -> Result<NodeInfo> {
        block_on(self.fs.lookup(caller, parent, &parse(name)?))
    }

    /// Looks a name up for a thread that may request the attributes next.
    pub(super) fn look_up_by(&self, request: &Request, parent: InodeId, name: &OsStr) -> Result<NodeInfo> {
        let name = parse(name)?;
        let look_up = |caller: &Credentials| block_on(self.fs.lookup_by(request.pid(), caller, parent, &name));
        self.callers.run(request, look_up)
    }

    pub(super) fn create(
        &self,
        request: &Request,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        flags: i32,
    ) -> Result<(NodeInfo, OpenFlags, OpenedFile)> {
        let (name, bits) = (parse(name)?, Mode::new(mode));
        let flags = OpenFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        let create = |caller: &Credentials| block_on(self.fs.create(caller, parent, &name, bits, flags));
        let (node, opened) = match sets_group_id(mode) {
            true => create(&self.callers.with_capabilities(request)),
            false => self.callers.run(request, create),
        }?;
        Ok((node, flags, opened))
    }

    pub(super) fn create_unnamed(
        &self,
        caller: &Credentials,
        parent: InodeId,
        mode: u32,
        flags: i32,
    ) -> Result<(NodeInfo, OpenFlags, OpenedFile)> {
        let flags = OpenFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        let (node, opened) = block_on(self.fs.create_unnamed(caller, parent, Mode::new(mode), flags))?;
        Ok((node, flags, opened))
    }

    pub(super) fn make_node(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        node: NewNode,
    ) -> Result<NodeInfo> {
        block_on(self.fs.make_node(caller, parent, &parse(name)?, Mode::new(mode), node))
    }

    pub(super) fn make_directory(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
    ) -> Result<NodeInfo> {
        block_on(self.fs.make_directory(caller, parent, &parse(name)?, Mode::new(mode)))
    }

    pub(super) fn make_symlink(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &OsStr,
        target: &Path,
    ) -> Result<NodeInfo> {
        let target = target.as_os_str().as_bytes().to_vec();
        self.make_node(caller, parent, name, SYMLINK_MODE, NewNode::Symlink { target })
    }

    pub(super) fn unlink(&self, caller: &Credentials, parent: InodeId, name: &OsStr) -> Result<()> {
        block_on(self.fs.unlink(caller, parent, &parse(name)?))
    }

    pub(super) fn remove_directory(&self, caller: &Credentials, parent: InodeId, name: &OsStr) -> Result<()> {
        block_on(self.fs.remove_directory(caller, parent, &parse(name)?))
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
            KernelFlags::RENAME_WHITEOUT => RenameFlags::Whiteout,
            both if both == KernelFlags::RENAME_WHITEOUT | KernelFlags::RENAME_NOREPLACE => {
                RenameFlags::WhiteoutNoReplace
            }
            // The other combinations are invalid (renameat2(2)).
            _ => return Err(Errno::EINVAL.into()),
        };
        block_on(self.fs.rename(caller, parent, &parse(name)?, new_parent, &parse(new_name)?, flags))
    }

    pub(super) fn link(&self, caller: &Credentials, inode: InodeId, parent: InodeId, name: &OsStr) -> Result<NodeInfo> {
        block_on(self.fs.link(caller, inode, parent, &parse(name)?))
    }
}
