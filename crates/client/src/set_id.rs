//! Clears set-user-id and set-group-id bits when an unprivileged user writes.

use crate::files::OpenInode;
use crate::{FileSystem, Handle, NodeInfo, Result};
use varve_types::{Credentials, FileKind, InodeId, Mode, SetAttributes};

/// The state of the set-id bits of an open file.
#[derive(Default)]
pub(crate) struct SetId {
    /// The mode in the last reply had none. A change by another mount becomes known with the next call about the file.
    none: bool,
    /// Number of mode changes by this client.
    changes: u64,
}

impl SetId {
    /// Stores the mode from a reply of the server.
    pub fn seen(&mut self, mode: Mode) {
        self.none = mode.without(Mode::SET_UID).without(Mode::SET_GID) == mode;
    }

    /// Records that the mode may have changed.
    pub fn changed(&mut self) {
        *self = SetId { none: false, changes: self.changes + 1 };
    }
}

impl FileSystem {
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
            if known.none {
                return Ok(());
            }
            known.changes
        };
        let node = self.drop_set_id(&caller(), open.inode).await?;
        let mut known = open.set_id.lock();
        if known.changes == changes {
            known.seen(node.attributes.mode);
        }
        Ok(())
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
        let owner = Credentials { uid: node.attributes.uid, gid, groups: Vec::new() };
        self.set_attributes(&owner, inode, SetAttributes { mode: Some(without), ..Default::default() }, None).await
    }
}
