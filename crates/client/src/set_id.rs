//! Set-user-id and set-group-id bits fall when somebody without privilege writes.

use crate::{FileSystem, Node, Result};
use varve_types::{Credentials, InodeId, Mode, SetAttributes};

impl FileSystem {
    /// `caller`, who is not privileged, is about to write to `inode`: clears the set-id bits that Linux clears then, which
    /// are S_ISUID, and S_ISGID where the group may execute the file or the caller is not of the group. Done as the
    /// file's owner, for the caller may have no other right than its open descriptor.
    pub async fn drop_set_id(&self, caller: &Credentials, inode: InodeId) -> Result<Node> {
        let node = self.attributes(caller, inode).await?;
        let (mode, gid) = (node.attributes.mode, node.attributes.gid);
        let mut without = mode.without(Mode::SET_UID);
        if mode.has(0o010) || !caller.in_group(gid) {
            without = without.without(Mode::SET_GID);
        }
        if without == mode {
            return Ok(node);
        }
        let owner = Credentials { uid: node.attributes.uid, gid, groups: Vec::new() };
        self.set_attributes(&owner, inode, SetAttributes { mode: Some(without), ..Default::default() }, None).await
    }
}
