//! Clears set-user-id bits, set-group-id bits and file capabilities when an unprivileged user writes.

use crate::files::OpenInode;
use crate::{FileSystem, Handle, NodeInfo, Result};
use std::sync::atomic::Ordering::Relaxed;
use varve_types::{Credentials, Errno, FileKind, InodeId, Mode, SetAttributes};

/// The extended attribute with the capabilities that a program gets when it is run.
pub const FILE_CAPABILITIES: &[u8] = b"security.capability";

/// The state of the set-id bits and capabilities of an open file.
#[derive(Default)]
pub(crate) struct SetId {
    /// The mode in the last reply had no bits. A change by another mount becomes known with the next call about the
    /// file.
    none: bool,
    /// This client has removed the capabilities.
    no_capabilities: bool,
    /// Number of changes of mode or capabilities by this client.
    changes: u64,
}

impl SetId {
    /// Stores the mode from a reply of the server.
    pub fn seen(&mut self, mode: Mode) {
        self.none = mode.without(Mode::SET_UID).without(Mode::SET_GID) == mode;
    }

    /// Records that the file was just made, and so has no capabilities.
    pub fn made(&mut self) {
        self.no_capabilities = true;
    }

    /// Records that mode or capabilities may have changed.
    pub fn changed(&mut self) {
        *self = SetId { none: false, no_capabilities: false, changes: self.changes + 1 };
    }
}

impl FileSystem {
    /// Called if the frontend's kernel demands before each write of an unprivileged caller that the set-id bits go. Then
    /// they stay when a file is only opened for writing.
    pub fn kernel_kills_set_id(&self) {
        self.files.kernel_kills_set_id.store(true, Relaxed);
    }

    /// The credentials for a call that precedes writes by `writer`.
    pub(crate) fn before_writes_of(&self, writer: &Credentials) -> Credentials {
        match self.files.kernel_kills_set_id.load(Relaxed) {
            true => writer.clone().with_fsetid(),
            false => writer.clone(),
        }
    }

    /// Called before `caller`, who is not privileged, writes through `handle`: like [`FileSystem::drop_set_id`], if
    /// there may be such bits.
    pub async fn drop_set_id_of(&self, handle: Handle, caller: impl FnOnce() -> Credentials) -> Result<()> {
        self.drop_set_id_of_open(&self.files.handle(handle)?.inode, caller).await
    }

    /// The same for an open file.
    pub(crate) async fn drop_set_id_of_open(
        &self,
        open: &OpenInode,
        caller: impl FnOnce() -> Credentials,
    ) -> Result<()> {
        let changes = {
            let known = open.set_id.lock();
            (!known.none).then_some(known.changes)
        };
        if let Some(changes) = changes {
            let node = self.drop_set_id(&caller(), open.inode).await?;
            let mut known = open.set_id.lock();
            if known.changes == changes {
                known.seen(node.attributes.mode);
            }
        }
        Ok(())
    }

    /// Called before a write through `handle` that the kernel has not prepared: every write takes the file's capabilities,
    /// root's too. (The server removes those of a file whose content is in its row.)
    pub async fn drop_capabilities_of(&self, handle: Handle) -> Result<()> {
        let handle = self.files.handle(handle)?;
        let open = &handle.inode;
        let changes = {
            let known = open.set_id.lock();
            (!known.no_capabilities).then_some(known.changes)
        };
        if let Some(changes) = changes
            && open.file().is_some()
        {
            self.drop_capabilities(open.inode).await?;
            let mut known = open.set_id.lock();
            known.no_capabilities = known.changes == changes;
        }
        Ok(())
    }

    /// Removes the file's capabilities. The client does this as root, because a writer may have no other right than its
    /// open descriptor. A user's server refuses it; there, root's mounts ignore capabilities.
    async fn drop_capabilities(&self, inode: InodeId) -> Result<()> {
        match self.remove_xattr(&Credentials::root(), inode, FILE_CAPABILITIES).await {
            Err(failure) if !matches!(failure.errno, Errno::ENODATA | Errno::EPERM) => Err(failure),
            _ => Ok(()),
        }
    }

    /// Called when an extended attribute is set: the file may have capabilities now.
    pub(crate) fn xattr_is_set(&self, inode: InodeId, name: &[u8]) {
        if name == FILE_CAPABILITIES
            && let Some(open) = self.files.find(inode)
        {
            open.set_id.lock().changed();
        }
    }

    /// Clears set-id bits as Linux does, before `caller`, who is not privileged, writes to `inode`, or makes a chown(2)
    /// call that changes neither owner nor group. The bits are S_ISUID, and S_ISGID if the group may execute the file
    /// or the caller is not in the group. (root keeps the bits when it writes; a request with root's credentials is a
    /// chown(2).) The change is made as the file's owner, because a writer may have no other right than its open
    /// descriptor. So it is not made for other users if this client has no writer of the file. Directories keep the
    /// bits.
    pub async fn drop_set_id(&self, caller: &Credentials, inode: InodeId) -> Result<NodeInfo> {
        let node = self.attributes(caller, inode).await?;
        let written = || self.files.find(inode).is_some_and(|open| open.counts.lock().writers > 0);
        let owns = caller.is_root() || caller.uid == node.attributes.uid;
        if node.attributes.kind == FileKind::Directory || !(owns || written()) {
            return Ok(node);
        }
        let (mode, gid) = (node.attributes.mode, node.attributes.gid);
        let mut without = mode.without(Mode::SET_UID);
        if mode.has(0o010) || !(caller.is_root() || caller.in_group(gid)) {
            without = without.without(Mode::SET_GID);
        }
        if without == mode {
            return Ok(node);
        }
        let owner = Credentials::user(node.attributes.uid, gid, Vec::new());
        let set = SetAttributes { mode: Some(without), ..Default::default() };
        self.set_attributes(&owner, inode, set, None).await
    }
}
