//! Creates, removes, renames and links names.

use super::FuseFrontend;
use super::convert::sets_group_id;
use crate::errno::{answer, answer_later, name as parse};
use fuser::{RenameFlags as KernelFlags, Request};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use varve_client::{NewNode, NodeInfo, OpenFlags, OpenedFile, RenameFlags, Result, block_on};
use varve_types::{Credentials, Errno, InodeId, Mode};

/// The permissions that a symlink shows; they have no effect (symlink(7)).
const SYMLINK_MODE: u32 = 0o777;

impl FuseFrontend {
    pub(super) fn look_up(&self, caller: &Credentials, parent: InodeId, name: &OsStr) -> Result<NodeInfo> {
        block_on(self.fs.lookup(caller, parent, &parse(name)?))
    }

    /// Looks a name up for a thread that may request the attributes next. `done` may run later, on another thread.
    pub(super) fn look_up_by(
        &self,
        request: &Request,
        parent: InodeId,
        name: &OsStr,
        done: impl FnOnce(std::result::Result<NodeInfo, fuser::Errno>) + Send + 'static,
    ) {
        let (fs, name) = (Arc::clone(&self.fs), parse(name));
        let (callers, thread, caller) = (self.callers, request.pid(), self.callers.caller(request));
        let looked_up = async move {
            let name = name?;
            let result = fs.lookup_by(thread, &caller, parent, &name).await;
            match callers.after_refusal(thread, &caller, &result) {
                Some(capable) => Box::pin(fs.lookup_by(thread, &capable, parent, &name)).await,
                None => result,
            }
        };
        match self.fs.embedded() {
            // A lookup may read the size of a large file from the store; the worker that delivers the reply must not
            // block on that.
            true => done(answer("lookup", || block_on(looked_up))),
            false => answer_later(&self.fs, "lookup", looked_up, done),
        }
    }

    /// `done` may run later, on another thread.
    pub(super) fn create(
        &self,
        request: &Request,
        parent: InodeId,
        name: &OsStr,
        mode: u32,
        flags: i32,
        done: impl FnOnce(std::result::Result<(NodeInfo, OpenFlags, OpenedFile), fuser::Errno>) + Send + 'static,
    ) {
        let (fs, name) = (Arc::clone(&self.fs), parse(name));
        let (callers, pid) = (self.callers, request.pid());
        let caller = match sets_group_id(mode) {
            true => callers.with_capabilities(request),
            false => callers.caller(request),
        };
        let created = async move {
            let (name, mode) = (name?, Mode::new(mode));
            let flags = OpenFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
            let result = fs.create(&caller, parent, &name, mode, flags).await;
            let (node, opened) = match callers.after_refusal(pid, &caller, &result) {
                Some(capable) => Box::pin(fs.create(&capable, parent, &name, mode, flags)).await?,
                None => result?,
            };
            Ok((node, flags, opened))
        };
        answer_later(&self.fs, "create", created, done);
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

    /// `done` may run later, on another thread.
    pub(super) fn unlink(
        &self,
        request: &Request,
        parent: InodeId,
        name: &OsStr,
        done: impl FnOnce(std::result::Result<(), fuser::Errno>) + Send + 'static,
    ) {
        let (fs, name) = (Arc::clone(&self.fs), parse(name));
        let (callers, pid, caller) = (self.callers, request.pid(), self.callers.caller(request));
        let unlinked = async move {
            let name = name?;
            let result = fs.unlink(&caller, parent, &name).await;
            match callers.after_refusal(pid, &caller, &result) {
                Some(capable) => Box::pin(fs.unlink(&capable, parent, &name)).await,
                None => result,
            }
        };
        answer_later(&self.fs, "unlink", unlinked, done);
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
