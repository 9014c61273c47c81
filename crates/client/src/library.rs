//! Files by path, for programs and benchmarks: the frontend "library". Paths are absolute within the volume (a leading
//! `/` may be omitted). Symlinks are not followed, and `..` is not supported.
//!
//! Directory names are cached for as long as the server leases them. They were looked up with the credentials of this
//! library's only caller, so the lease also covers the caller's search permission.

use crate::calls::{BUSY_WAIT, Wait};
use crate::{
    ClientConfig, DirectoryEntry, Failure, FileSystem, NewNode, NodeInfo, OpenFlags, OpenMode, Operation, RenameFlags,
    Result,
};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_env::volume_dir::VolumeDir;
use varve_proto::EntryReply;
use varve_types::{Credentials, Errno, FileKind, InodeId, Mode, Name, NameError};

/// Cached directory names; when there are more, all are dropped. With names of usual length they take some 2 MB.
const NAMES_MAX: usize = 16 * 1024;

/// Cached directory paths, and their maximum length: together some 4 MB.
const PATHS_MAX: usize = 16 * 1024;
const PATH_BYTES_MAX: usize = 256;

/// Bytes read at a time by `read_file`.
const READ_BYTES: usize = 256 * 1024;

/// The longest wait before a name that others keep replacing is looked up again: longer waits win no more races.
const LOST_RACE_WAIT_MAX: Duration = Duration::from_millis(1);

/// The inodes that directory names refer to, and until when that may be cached.
type KnownNames = HashMap<(InodeId, Name), (InodeId, Instant), KeyHashing>;

/// The directories cached for this library's caller.
#[derive(Default)]
struct KnownDirectories {
    names: KnownNames,
    /// Paths as they were given, cached for as long as each name in them is. All those names are in `names`.
    paths: HashMap<Box<[u8]>, (InodeId, Instant), KeyHashing>,
    /// Counts forgotten names: a path that was walked in the meantime is not cached.
    forgotten: u64,
    /// The names forgotten last, the latest at the end: a name that was requested before it was forgotten is not
    /// cached.
    latest: VecDeque<(InodeId, Name)>,
}

/// Length of that list. A lookup usually takes less time than this many names to be forgotten; otherwise the name is
/// looked up again.
const FORGOTTEN_MAX: usize = 64;

pub struct Library {
    file_system: Arc<FileSystem>,
    caller: Credentials,
    known_directories: Mutex<KnownDirectories>,
}

impl Library {
    /// Opens the volume at `store` with the credentials of the process.
    pub fn open_volume(store: VolumeDir) -> Result<Library> {
        let file_system = FileSystem::connect(ClientConfig::new(store))?;
        let groups = rustix::process::getgroups()
            .map_err(|error| Failure::new(Errno::EIO, format!("cannot learn the process's groups: {error}")))?;
        let caller = Credentials::user(
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
            groups.into_iter().map(|group| group.as_raw()).take(Credentials::GROUPS_MAX).collect(),
        );
        Ok(Library::new(file_system, caller))
    }

    pub fn new(file_system: Arc<FileSystem>, caller: Credentials) -> Library {
        Library { file_system, caller, known_directories: Mutex::default() }
    }

    pub fn file_system(&self) -> &Arc<FileSystem> {
        &self.file_system
    }

    pub fn caller(&self) -> &Credentials {
        &self.caller
    }

    /// Makes an empty regular file; `EEXIST` if the name is taken.
    pub async fn create(&self, path: &[u8], mode: Mode) -> Result<()> {
        let fs = &self.file_system;
        fs.count(Operation::MakeNode, async {
            fs.check_writable()?;
            let (parent, name) = self.parent_of(path).await?;
            fs.create_at(&self.caller, parent, &name, mode, NewNode::Regular, false).await.map(drop)
        })
        .await
    }

    /// Like lstat(2).
    pub async fn stat(&self, path: &[u8]) -> Result<NodeInfo> {
        let fs = &self.file_system;
        if components(path).next().is_none() {
            let attributes = fs.attributes_of(&self.caller, InodeId::ROOT);
            return Box::pin(fs.count(Operation::GetAttributes, attributes)).await;
        }
        fs.count(Operation::Lookup, async {
            let (parent, name) = self.parent_of(path).await?;
            fs.lookup_counting(&self.caller, parent, &name, 0).await
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
        self.known_directories.lock().forget(&(parent, name));
        removed
    }

    pub async fn rename(&self, from: &[u8], to: &[u8], flags: RenameFlags) -> Result<()> {
        let (parent, name) = self.parent_of(from).await?;
        let (new_parent, new_name) = self.parent_of(to).await?;
        let renamed = self.file_system.rename(&self.caller, parent, &name, new_parent, &new_name, flags).await;
        let mut known = self.known_directories.lock();
        known.forget(&(parent, name));
        known.forget(&(new_parent, new_name));
        renamed
    }

    pub async fn link(&self, from: &[u8], to: &[u8]) -> Result<()> {
        let fs = &self.file_system;
        let (parent, name) = self.parent_of(from).await?;
        let (new_parent, new_name) = self.parent_of(to).await?;
        self.with_file((parent, &name), async |inode| {
            let linked = fs.link(&self.caller, inode, new_parent, &new_name).await;
            if linked.as_ref().is_err_and(|failure| failure.errno == Errno::ENOENT) {
                // Another file may have replaced it under the name, while a session still has it open.
                let nlink = fs.attributes(&self.caller, inode).await?.attributes.nlink;
                if nlink == 0 {
                    return Err(Errno::ESTALE.into());
                }
            }
            linked?;
            fs.forget(inode, 1);
            Ok(())
        })
        .await
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
        let (parent, name) = self.parent_of(path).await?;
        self.with_file((parent, &name), async |inode| self.file_system.read_link(&self.caller, inode).await).await
    }

    /// Creates the file with `content`, or replaces it.
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
        let (parent, name) = self.parent_of(path).await?;
        self.with_file((parent, &name), async |inode| {
            let handle = fs.open_cached(&self.caller, inode, OpenFlags::READ).await?;
            let content = self.read_all(handle).await;
            fs.release(handle).await;
            content
        })
        .await
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

    /// Passes every entry except `.` and `..` to `visit`, until that returns `false`.
    pub async fn list(&self, path: &[u8], visit: &mut dyn FnMut(DirectoryEntry<'_>) -> bool) -> Result<()> {
        let fs = &self.file_system;
        let directory = self.walk(path).await?;
        let handle = fs.open_directory(&self.caller, directory).await?;
        let listed =
            fs.read_directory(handle, 0, false, &mut |entry| matches!(entry.name, b"." | b"..") || visit(entry)).await;
        fs.close_directory(handle);
        listed
    }

    /// Runs `work` on the inode that a name refers to; repeats it with the new inode if the name was replaced
    /// meanwhile.
    async fn with_file<T>(&self, at: (InodeId, &Name), work: impl AsyncFn(InodeId) -> Result<T>) -> Result<T> {
        let fs = &self.file_system;
        let (mut deadline, mut wait) = (None, Wait { longest: LOST_RACE_WAIT_MAX, ..BUSY_WAIT });
        loop {
            let inode = fs.lookup(&self.caller, at.0, at.1).await?.inode;
            let worked = work(inode).await;
            fs.forget(inode, 1);
            match worked {
                Err(failure) if failure.errno == Errno::ESTALE => {
                    let deadline = *deadline.get_or_insert_with(|| fs.core.deadline());
                    let why = format!("other clients keep replacing the name: {failure}");
                    fs.core.check_deadline(deadline, &why)?;
                    fs.core.pause(wait.next()).await;
                }
                worked => return worked,
            }
        }
    }

    /// The parent directory of `path`, and its last name.
    async fn parent_of(&self, path: &[u8]) -> Result<(InodeId, Name)> {
        let (parent, last) = split(path).ok_or_else(|| Failure::new(Errno::EINVAL, "the root has no name"))?;
        Ok((self.walk(parent).await?, name(last)?))
    }

    /// The directory at `path`.
    async fn walk(&self, path: &[u8]) -> Result<InodeId> {
        let now = self.file_system.core.clock.monotonic();
        let known = self.known_directories.lock().paths.get(path).copied();
        match known {
            Some((inode, until)) if now < until => Ok(inode),
            // Boxed, like everything that few operations await, because a future is moved when it is made.
            _ => Box::pin(self.walk_by_name(path)).await,
        }
    }

    async fn walk_by_name(&self, path: &[u8]) -> Result<InodeId> {
        let (mut at, mut believed) = (InodeId::ROOT, None);
        let forgotten = self.known_directories.lock().forgotten;
        for component in components(path) {
            let key = (at, name(component)?);
            let asked = self.file_system.core.clock.monotonic();
            let known = self.known_directories.lock().names.get(&key).copied();
            let (inode, until) = match known {
                Some((inode, until)) if asked < until => (inode, until),
                _ => self.step(key, asked, forgotten).await?,
            };
            believed = Some(believed.map_or(until, |believed: Instant| believed.min(until)));
            at = inode;
        }
        if let Some(until) = believed {
            self.known_directories.lock().keep(path, (at, until), forgotten);
        }
        Ok(at)
    }

    /// Looks up the directory of `key` at a server, and until when it may be cached. `forgotten`: the counter before
    /// the request.
    async fn step(&self, key: (InodeId, Name), asked: Instant, forgotten: u64) -> Result<(InodeId, Instant)> {
        let core = &self.file_system.core;
        let (entry, lease_ms) = core.look_up(&self.caller, key.0, &key.1).await?;
        let lease_ms = if core.unknown_outcomes.of_name(key.0, key.1.as_bytes()) { 0 } else { lease_ms };
        let EntryReply::Elsewhere { inode, kind } = entry else { return Err(Errno::ENOTDIR.into()) };
        if FileKind::from(kind) != FileKind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        let found = (InodeId(inode), asked.after(Duration::from_millis(lease_ms.into())));
        if lease_ms > 0 {
            let mut known = self.known_directories.lock();
            if known.names.len() >= NAMES_MAX {
                known.forget_all();
            }
            if !known.was_forgotten(&key, forgotten) {
                known.names.insert(key, found);
            }
        }
        Ok(found)
    }
}

impl KnownDirectories {
    /// Caches the directory at `path`, unless a name has been forgotten since `forgotten` was read.
    fn keep(&mut self, path: &[u8], found: (InodeId, Instant), forgotten: u64) {
        if self.forgotten != forgotten || path.len() > PATH_BYTES_MAX {
            return;
        }
        if self.paths.len() >= PATHS_MAX {
            self.paths.clear();
        }
        self.paths.insert(path.into(), found);
    }

    /// Whether `name` may have been forgotten since `forgotten` was read.
    fn was_forgotten(&self, name: &(InodeId, Name), forgotten: u64) -> bool {
        let since = usize::try_from(self.forgotten - forgotten).unwrap_or(usize::MAX);
        since > self.latest.len() || self.latest.iter().rev().take(since).any(|latest| latest == name)
    }

    /// Records that the name refers to another inode, or to none. Drops each path that contains it.
    fn forget(&mut self, name: &(InodeId, Name)) {
        self.forgotten += 1;
        if self.latest.len() == FORGOTTEN_MAX {
            self.latest.pop_front();
        }
        self.latest.push_back(name.clone());
        if self.names.remove(name).is_some() {
            self.paths.clear();
        }
    }

    fn forget_all(&mut self) {
        self.forgotten += 1;
        self.latest.clear();
        self.names.clear();
        self.paths.clear();
    }
}

/// The part of `path` before its last name, and that name.
fn split(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.len() - path.iter().rev().take_while(|byte| **byte == b'/').count();
    let begin = path[..end].iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    match (&path[..begin], &path[begin..end]) {
        (parent, b".") => split(parent),
        (_, []) => None,
        split => Some(split),
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
    use std::time::Duration;

    /// Promise: superfluous slashes and dots are skipped, and a path without a last name yields none.
    #[test]
    fn paths_are_split_at_their_last_name() {
        type Parts = Option<(&'static [u8], &'static [u8])>;
        let cases: [(&[u8], Parts); 8] = [
            (b"/a/b/c", Some((b"/a/b/", b"c"))),
            (b"c", Some((b"", b"c"))),
            (b"/c", Some((b"/", b"c"))),
            (b"/a//c//", Some((b"/a//", b"c"))),
            (b"/a/./c/./", Some((b"/a/./", b"c"))),
            (b"/./", None),
            (b"///", None),
            (b"", None),
        ];
        for (path, expected) in cases {
            assert_eq!(split(path), expected, "{}", String::from_utf8_lossy(path));
            assert_eq!(split(path).map(|(_, last)| last), components(path).next_back());
        }
    }

    /// Promise: a path is cached no longer than the names in it, even if a name is forgotten during the walk.
    #[test]
    fn forgetting_a_name_forgets_its_paths() {
        let (mut known, until) = (KnownDirectories::default(), Instant(Duration::from_secs(9)));
        let key = |text: &[u8]| (InodeId::ROOT, Name::new(text).unwrap());
        let found = (InodeId(5), until);
        known.names.insert(key(b"a"), found);
        known.keep(b"/a/", found, 0);
        known.forget(&key(b"b"));
        assert_eq!(known.paths.get(&b"/a/"[..]), Some(&found), "another name's end does not touch it");
        let forgotten = known.forgotten;
        known.forget(&key(b"a"));
        known.keep(b"/a/", found, forgotten);
        assert!(known.paths.is_empty());
    }

    /// Promise: a name that was forgotten during its lookup is not cached, nor is one if the list no longer covers that
    /// time.
    #[test]
    fn names_forgotten_during_lookup_are_not_cached() {
        let mut known = KnownDirectories::default();
        let key = |text: &[u8]| (InodeId::ROOT, Name::new(text).unwrap());
        let asked = known.forgotten;
        assert!(!known.was_forgotten(&key(b"a"), asked));
        known.forget(&key(b"b"));
        assert!(!known.was_forgotten(&key(b"a"), asked));
        known.forget(&key(b"a"));
        assert!(known.was_forgotten(&key(b"a"), asked));
        assert!(!known.was_forgotten(&key(b"a"), known.forgotten), "asked for after that");
        let asked = known.forgotten;
        known.forget_all();
        assert!(known.was_forgotten(&key(b"c"), asked));
        let asked = known.forgotten;
        (0..=FORGOTTEN_MAX).for_each(|_| known.forget(&key(b"b")));
        assert!(known.was_forgotten(&key(b"c"), asked));
    }

    /// Promise: the futures that are moved when an operation begins are small. State that only few operations need is
    /// boxed.
    #[test]
    fn operation_futures_are_small() {
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
