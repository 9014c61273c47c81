use crate::{FileSystem, Handle, NewNode, Node, OpenFlags, RenameFlags, Result};
use varve_types::{Credentials, Errno, InodeId, Mode, Name};

impl FileSystem {
    pub async fn lookup(&self, caller: &Credentials, parent: InodeId, name: &Name) -> Result<Node> {
        let _ = (caller, parent, name);
        Err(Errno::ENOSYS.into())
    }

    /// The kernel has dropped `lookups` of its references to `inode`; with the last one, what is kept of it goes.
    /// Every `Node` that `lookup`, `create`, `make_node`, `make_directory`, `link` and `read_directory` with `plus`
    /// hand out counts one.
    pub fn forget(&self, inode: InodeId, lookups: u64) {
        let _ = (inode, lookups);
    }

    /// The directory that `directory` is in; the root's is the root.
    pub async fn parent(&self, directory: InodeId) -> Result<InodeId> {
        let _ = directory;
        Err(Errno::ENOSYS.into())
    }

    /// Makes a regular file and opens it (as `Io::Cached { keep: false }`). `EEXIST` if the name is taken and `flags` are exclusive; else opens what it means.
    pub async fn create(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        mode: Mode,
        flags: OpenFlags,
    ) -> Result<(Node, Handle)> {
        let _ = (caller, parent, name, mode, flags);
        Err(Errno::ENOSYS.into())
    }

    /// Makes anything but a directory, and opens nothing.
    pub async fn make_node(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        mode: Mode,
        node: NewNode,
    ) -> Result<Node> {
        let _ = (caller, parent, name, mode, node);
        Err(Errno::ENOSYS.into())
    }

    pub async fn make_directory(&self, caller: &Credentials, parent: InodeId, name: &Name, mode: Mode) -> Result<Node> {
        let _ = (caller, parent, name, mode);
        Err(Errno::ENOSYS.into())
    }

    pub async fn unlink(&self, caller: &Credentials, parent: InodeId, name: &Name) -> Result<()> {
        let _ = (caller, parent, name);
        Err(Errno::ENOSYS.into())
    }

    pub async fn remove_directory(&self, caller: &Credentials, parent: InodeId, name: &Name) -> Result<()> {
        let _ = (caller, parent, name);
        Err(Errno::ENOSYS.into())
    }

    pub async fn rename(
        &self,
        caller: &Credentials,
        parent: InodeId,
        name: &Name,
        new_parent: InodeId,
        new_name: &Name,
        flags: RenameFlags,
    ) -> Result<()> {
        let _ = (caller, parent, name, new_parent, new_name, flags);
        Err(Errno::ENOSYS.into())
    }

    pub async fn link(
        &self,
        caller: &Credentials,
        inode: InodeId,
        new_parent: InodeId,
        new_name: &Name,
    ) -> Result<Node> {
        let _ = (caller, inode, new_parent, new_name);
        Err(Errno::ENOSYS.into())
    }

    pub async fn read_link(&self, caller: &Credentials, inode: InodeId) -> Result<Vec<u8>> {
        let _ = (caller, inode);
        Err(Errno::ENOSYS.into())
    }
}
