//! Files by path, for programs and benchmarks: the door "library". Paths are absolute within the volume (a leading `/` may be
//! left out); symlinks are not followed, `..` is not understood.
//!
//! Names of directories are believed for as long as the server leases them. What is believed was found in the name of this
//! library's one caller, so the caller's right to search is leased with it.

use crate::{
    ClientConfig, DirectoryEntry, Failure, FileSystem, NewNode, Node, OpenFlags, OpenMode, Operation, RenameFlags,
    Result,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use varve_types::{Credentials, Errno, FileKind, InodeId, Mode, Name, NameError};
use varve_wire::EntryReply;
use varve_world::clock::Moment;
use varve_world::key_hash::KeyHashing;
use varve_world::volume_dir::VolumeDir;

/// Directories' names kept; when there are more, all are forgotten. With names of usual length some 2 MB.
const NAMES_MAX: usize = 16 * 1024;

/// Bytes read at a time by `read_file`.
const READ_BYTES: usize = 256 * 1024;

/// What directories' names mean, and until when that may be believed.
type KnownNames = HashMap<(InodeId, Name), (InodeId, Moment), KeyHashing>;

pub struct Library {
    file_system: Arc<FileSystem>,
    caller: Credentials,
    names: Mutex<KnownNames>,
}

impl Library {
    /// The volume at `store`, in the name of the process's own user.
    pub fn open_volume(store: VolumeDir) -> Result<Library> {
        let file_system = FileSystem::connect(ClientConfig::new(store))?;
        let groups = rustix::process::getgroups()
            .map_err(|error| Failure::new(Errno::EIO, format!("cannot learn the process's groups: {error}")))?;
        let caller = Credentials {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(|group| group.as_raw()).take(Credentials::GROUPS_MAX).collect(),
        };
        Ok(Library::new(file_system, caller))
    }

    pub fn new(file_system: Arc<FileSystem>, caller: Credentials) -> Library {
        Library { file_system, caller, names: Mutex::default() }
    }

    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.file_system
    }

    pub fn caller(&self) -> &Credentials {
        &self.caller
    }

    /// Makes an empty regular file; `EEXIST` if there is one.
    pub async fn create(&self, path: &[u8], mode: Mode) -> Result<()> {
        let fs = &self.file_system;
        fs.count(Operation::MakeNode, async {
            fs.check_writable()?;
            let (parent, name) = self.parent_of(path).await?;
            fs.create_at(&self.caller, parent, &name, mode, NewNode::Regular, false).await.map(drop)
        })
        .await
    }

    /// As lstat(2).
    pub async fn stat(&self, path: &[u8]) -> Result<Node> {
        let fs = &self.file_system;
        if components(path).next().is_none() {
            let attributes = fs.attributes_of(&self.caller, InodeId::ROOT);
            return Box::pin(fs.count(Operation::GetAttributes, attributes)).await;
        }
        fs.count(Operation::Lookup, async {
            let (parent, name) = self.parent_of(path).await?;
            let node = fs.lookup_counting(&self.caller, parent, &name, 0).await?;
            // What the lookup of a directory says of its counts is its home's part.
            if node.attributes.kind == FileKind::Directory {
                return Box::pin(fs.attributes_of(&self.caller, node.inode)).await;
            }
            Ok(node)
        })
        .await
    }

    pub async fn unlink(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.parent_of(path).await?;
        self.file_system.unlink(&self.caller, parent, &name).await
    }

    pub async fn make_directory(&self, path: &[u8], mode: Mode) -> Result<()> {
        let fs = &self.file_system;
        fs.count(Operation::MakeDirectory, async {
            let (parent, name) = self.parent_of(path).await?;
            fs.make_directory_at(&self.caller, parent, &name, mode).await.map(drop)
        })
        .await
    }

    pub async fn remove_directory(&self, path: &[u8]) -> Result<()> {
        let (parent, name) = self.parent_of(path).await?;
        let removed = self.file_system.remove_directory(&self.caller, parent, &name).await;
        self.names.lock().remove(&(parent, name));
        removed
    }

    pub async fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
        let (parent, name) = self.parent_of(from).await?;
        let (new_parent, new_name) = self.parent_of(to).await?;
        let renamed = self.file_system.rename(&self.caller, parent, &name, new_parent, &new_name, flags).await;
        let mut names = self.names.lock();
        names.remove(&(parent, name));
        names.remove(&(new_parent, new_name));
        renamed
    }

    pub async fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let fs = &self.file_system;
        let (parent, name) = self.parent_of(from).await?;
        let (new_parent, new_name) = self.parent_of(to).await?;
        let node = fs.lookup(&self.caller, parent, &name).await?;
        let linked = fs.link(&self.caller, node.inode, new_parent, &new_name).await;
        fs.forget(node.inode, 1 + u64::from(linked.is_ok()));
        linked.map(drop)
    }

    pub async fn symlink(&self, target: &[u8], path: &[u8]) -> Result<()> {
        let fs = &self.file_system;
        fs.count(Operation::MakeNode, async {
            fs.check_writable()?;
            let (parent, name) = self.parent_of(path).await?;
            let node = NewNode::Symlink { target: target.to_vec() };
            fs.create_at(&self.caller, parent, &name, Mode::new(0o777), node, false).await.map(drop)
        })
        .await
    }

    pub async fn read_link(&self, path: &[u8]) -> Result<Vec<u8>> {
        let node = self.lookup(path).await?;
        let target = self.file_system.read_link(&self.caller, node.inode).await;
        self.file_system.forget(node.inode, 1);
        target
    }

    /// Makes or replaces the file with `content`.
    pub async fn write_file(&self, path: &[u8], mode: Mode, content: &[u8]) -> Result<()> {
        let fs = &self.file_system;
        let (parent, name) = self.parent_of(path).await?;
        let flags = OpenFlags { mode: OpenMode::Write, truncate: true, ..OpenFlags::READ };
        let (node, opened) = fs.create(&self.caller, parent, &name, mode, flags).await?;
        let handle = opened.handle;
        let written = async {
            let mut done = 0;
            while done < content.len() {
                match fs.write(handle, done as u64, &content[done..]).await? {
                    0 => return Err(Errno::ENOSPC.into()),
                    count => done += count,
                }
            }
            fs.flush(handle).await
        };
        let written = written.await;
        fs.release(handle).await;
        fs.forget(node.inode, 1);
        written
    }

    pub async fn read_file(&self, path: &[u8]) -> Result<Vec<u8>> {
        let fs = &self.file_system;
        let node = self.lookup(path).await?;
        let read = async {
            let handle = fs.open_cached(&self.caller, node.inode, OpenFlags::READ).await?;
            let content = self.read_all(handle).await;
            fs.release(handle).await;
            content
        };
        let content = read.await;
        fs.forget(node.inode, 1);
        content
    }

    async fn read_all(&self, handle: crate::Handle) -> Result<Vec<u8>> {
        let mut content = Vec::new();
        loop {
            let held = content.len();
            content.resize(held + READ_BYTES, 0);
            let read = self.file_system.read(handle, held as u64, &mut content[held..]).await?;
            content.truncate(held + read);
            if read == 0 {
                return Ok(content);
            }
        }
    }

    /// Shows every entry but `.` and `..`, until `visit` answers `false`.
    pub async fn list(&self, path: &[u8], visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool) -> Result<()> {
        let fs = &self.file_system;
        let directory = self.walk(components(path)).await?;
        let handle = fs.open_directory(&self.caller, directory).await?;
        let listed =
            fs.read_directory(handle, 0, false, &mut |entry| matches!(entry.name, b"." | b"..") || visit(entry)).await;
        fs.close_directory(handle);
        listed
    }

    /// As `stat`, counting one lookup.
    async fn lookup(&self, path: &[u8]) -> Result<Node> {
        let (parent, name) = self.parent_of(path).await?;
        self.file_system.lookup(&self.caller, parent, &name).await
    }

    /// The directory that `path` is in, and its last name.
    async fn parent_of(&self, path: &[u8]) -> Result<(InodeId, Name)> {
        let mut names = components(path);
        let last = names.next_back().ok_or_else(|| Failure::new(Errno::EINVAL, "the root has no name"))?;
        Ok((self.walk(names).await?, name(last)?))
    }

    async fn walk<'a>(&self, names: impl Iterator<Item = &'a [u8]>) -> Result<InodeId> {
        let mut at = InodeId::ROOT;
        for component in names {
            let key = (at, name(component)?);
            let asked = self.file_system.core.clock.monotonic();
            let known = self.names.lock().get(&key).copied();
            at = match known {
                Some((inode, until)) if asked < until => inode,
                // In a box of its own, as all that few operations wait for: a future is moved when it is made.
                _ => Box::pin(self.step(key, asked)).await?,
            };
        }
        Ok(at)
    }

    /// The directory that `key` means, at a server.
    async fn step(&self, key: (InodeId, Name), asked: Moment) -> Result<InodeId> {
        let (entry, lease_ms) = self.file_system.core.look_up(&self.caller, key.0, &key.1).await?;
        let EntryReply::Elsewhere { inode, kind } = entry else { return Err(Errno::ENOTDIR.into()) };
        if FileKind::from(kind) != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        if lease_ms > 0 {
            let until = asked.after(std::time::Duration::from_millis(lease_ms.into()));
            let mut names = self.names.lock();
            if names.len() >= NAMES_MAX {
                names.clear();
            }
            names.insert(key, (InodeId(inode), until));
        }
        Ok(InodeId(inode))
    }
}

fn components(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty() && *component != b".")
}

fn name(component: &[u8]) -> Result<Name> {
    Name::new(component).map_err(|error| {
        let errno = if error == NameError::TooLong { Errno::ENAMETOOLONG } else { Errno::EINVAL };
        Failure::new(errno, format!("{}: {error}", String::from_utf8_lossy(component)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Promise: what is moved when an operation begins is small. What only few operations need waits in boxes of its own.
    #[test]
    fn operations_are_small() {
        fn size<'a, F>(_: impl FnOnce(&'a Library, &'a [u8]) -> F) -> usize {
            size_of::<F>()
        }
        let sizes = [
            size(|library, path| library.create(path, Mode::new(0o644))),
            size(|library, path| library.stat(path)),
            size(|library, path| library.unlink(path)),
        ];
        assert!(sizes.iter().all(|bytes| *bytes <= 4096), "{sizes:?} bytes");
    }
}
