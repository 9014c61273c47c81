//! Set-user-id and set-group-id bits fall when somebody without privilege writes.

use crate::files::OpenInode;
use crate::{FileSystem, Handle, NodeInfo, Result};
use varve_types::{Credentials, FileKind, InodeId, Mode, SetAttributes};

/// What is known of the set-id bits of an open file.
#[derive(Default)]
pub(crate) struct SetId {
    /// It had none when its mode was last told. Of a change by another mount this one hears with its next call about the file.
    none: bool,
    /// Times that its mode was changed from here.
    changes: u64,
}

impl SetId {
    /// The file's mode as the server has just told it.
    pub fn seen(&mut self, mode: Mode) {
        self.none = mode.without(Mode::SET_UID).without(Mode::SET_GID) == mode;
    }

    /// Its mode may be another one.
    pub fn changed(&mut self) {
        *self = SetId { none: false, changes: self.changes + 1 };
    }
}

impl FileSystem {
    /// `caller`, who is not privileged, writes through `handle`: what [`FileSystem::drop_set_id`] does, where there may be
    /// such bits.
    pub async fn drop_set_id_of(&self, handle: Handle, caller: impl FnOnce() -> Credentials) -> Result<()> {
        self.drop_set_id_of_open(&self.files.handle(handle)?.inode, caller).await
    }

    /// The same of an open file.
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

    /// `caller`, who is not privileged, is about to write to `inode`, or says no more of whom it is to belong to than that it
    /// does: clears the set-id bits that Linux clears then, which are S_ISUID, and S_ISGID where the group may execute the
    /// file or the caller is not of the group. (root keeps them when it writes; what comes in its name is chown(2).) Done as the
    /// file's owner, for a writer may have no other right than its open descriptor; so not for others where nobody here can
    /// write the file. Directories keep them.
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
