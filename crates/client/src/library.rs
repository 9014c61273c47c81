//! Files by path, for programs and benchmarks: the door "library". Paths are absolute within the volume (a leading `/` may be
//! left out); symlinks are not followed.

use crate::{DirectoryEntry, FileSystem, Node, RenameFlags, Result};
use std::sync::Arc;
use varve_types::{Credentials, Errno, Mode};
use varve_world::volume_dir::VolumeDir;

pub struct Library {
    file_system: Arc<FileSystem>,
    caller: Credentials,
}

impl Library {
    /// The volume at `store`, in the name of the process's own user.
    pub fn open_volume(store: VolumeDir) -> Result<Library> {
        let _ = store;
        Err(Errno::ENOSYS.into())
    }

    pub fn new(file_system: Arc<FileSystem>, caller: Credentials) -> Library {
        Library { file_system, caller }
    }

    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.file_system
    }

    pub fn caller(&self) -> &Credentials {
        &self.caller
    }

    /// Makes an empty regular file; `EEXIST` if there is one.
    pub async fn create(&self, path: &[u8], mode: Mode) -> Result<()> {
        let _ = (path, mode);
        Err(Errno::ENOSYS.into())
    }

    /// As lstat(2).
    pub async fn stat(&self, path: &[u8]) -> Result<Node> {
        let _ = path;
        Err(Errno::ENOSYS.into())
    }

    pub async fn unlink(&self, path: &[u8]) -> Result<()> {
        let _ = path;
        Err(Errno::ENOSYS.into())
    }

    pub async fn make_directory(&self, path: &[u8], mode: Mode) -> Result<()> {
        let _ = (path, mode);
        Err(Errno::ENOSYS.into())
    }

    pub async fn remove_directory(&self, path: &[u8]) -> Result<()> {
        let _ = path;
        Err(Errno::ENOSYS.into())
    }

    pub async fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
        let _ = (from, to, flags);
        Err(Errno::ENOSYS.into())
    }

    pub async fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let _ = (from, to);
        Err(Errno::ENOSYS.into())
    }

    pub async fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        let _ = (target, path);
        Err(Errno::ENOSYS.into())
    }

    pub async fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let _ = path;
        Err(Errno::ENOSYS.into())
    }

    /// Makes or replaces the file with `content`.
    pub async fn write_file(&self, path: &[u8], mode: Mode, content: &[u8]) -> Result<()> {
        let _ = (path, mode, content);
        Err(Errno::ENOSYS.into())
    }

    pub async fn read_file(&self, path: &[u8]) -> Result<Vec<u8>> {
        let _ = path;
        Err(Errno::ENOSYS.into())
    }

    /// Shows every entry but `.` and `..`, until `visit` answers `false`.
    pub async fn list(&self, path: &[u8], visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool) -> Result<()> {
        let _ = (path, visit);
        Err(Errno::ENOSYS.into())
    }
}
