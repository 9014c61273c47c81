use crate::{FileSystem, Node, Result};
use varve_types::{Credentials, Errno, FileKind, InodeId};

/// An open directory of this client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DirectoryHandle(pub u64);

/// One name of a listing.
#[derive(Clone, Copy, Debug)]
pub struct DirectoryEntry<'a> {
    /// Where to go on after this entry: `d_off`.
    pub cookie: u64,
    pub name: &'a [u8],
    pub inode: InodeId,
    pub kind: FileKind,
    /// Attributes, if they were asked for and came with the listing. A handed-out node counts one lookup, if the
    /// visitor took it.
    pub node: Option<Node>,
}

impl FileSystem {
    pub async fn open_directory(&self, caller: &Credentials, inode: InodeId) -> Result<DirectoryHandle> {
        let _ = (caller, inode);
        Err(Errno::ENOSYS.into())
    }

    /// Shows entries after `cookie` (0: from the start) to `visit` until it answers `false` (it has no room for that
    /// entry, which is shown again next time) or the directory ends. `.` and `..` come first.
    pub async fn read_directory(
        &self,
        handle: DirectoryHandle,
        cookie: u64,
        plus: bool,
        visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool,
    ) -> Result<()> {
        let _ = (handle, cookie, plus, visit);
        Err(Errno::ENOSYS.into())
    }

    pub fn close_directory(&self, handle: DirectoryHandle) {
        let _ = handle;
    }
}
