use crate::{FileSystem, Handle, Node, Result, XattrMode};
use varve_types::{Credentials, Errno, InodeId, SetAttributes};

impl FileSystem {
    pub async fn attributes(&self, caller: &Credentials, inode: InodeId) -> Result<Node> {
        let _ = (caller, inode);
        Err(Errno::ENOSYS.into())
    }

    /// chmod, chown, truncate and utimensat. `handle`: the open file through which it was asked (ftruncate needs no
    /// permission on the file).
    pub async fn set_attributes(
        &self,
        caller: &Credentials,
        inode: InodeId,
        set: SetAttributes,
        handle: Option<Handle>,
    ) -> Result<Node> {
        let _ = (caller, inode, set, handle);
        Err(Errno::ENOSYS.into())
    }

    /// The whole value; `ENODATA` if there is none of that name.
    pub async fn get_xattr(&self, caller: &Credentials, inode: InodeId, name: &[u8]) -> Result<Vec<u8>> {
        let _ = (caller, inode, name);
        Err(Errno::ENOSYS.into())
    }

    pub async fn set_xattr(
        &self,
        caller: &Credentials,
        inode: InodeId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<()> {
        let _ = (caller, inode, name, value, mode);
        Err(Errno::ENOSYS.into())
    }

    pub async fn list_xattrs(&self, caller: &Credentials, inode: InodeId) -> Result<Vec<Vec<u8>>> {
        let _ = (caller, inode);
        Err(Errno::ENOSYS.into())
    }

    pub async fn remove_xattr(&self, caller: &Credentials, inode: InodeId, name: &[u8]) -> Result<()> {
        let _ = (caller, inode, name);
        Err(Errno::ENOSYS.into())
    }
}
