//! The directory of a volume: the paths of its files, and the files that are not tables.
//!
//! ```text
//! STORE/varve.toml            the volume file; the volume exists once this does
//! STORE/key                   32 random bytes, mode 0600; held with flock by the server
//! STORE/keys/<id>.toml        keys of hosts, mode 0600 in a directory of mode 0700
//! STORE/lock                  mode 0600, because a user who can open it can lock it; held with flock by the server
//! STORE/servers/current.toml  addresses of the running server; stopped.toml or left.toml after it has ended
//! STORE/servers/<number>.toml addresses of one of several servers that have joined
//! STORE/cluster/              the registry of those servers, if it is in the store
//! STORE/cluster/registry.toml where that registry is
//! STORE/shards/               mode 0700: rows of all users are below
//! STORE/shards/varve.toml     a copy of the volume file
//! STORE/shards/<nnnn>/        one table per shard; the number in four decimal digits
//! STORE/shards/<nnnn>/log/    its log
//! STORE/shards/<nnnn>.opened  mark: the shard was opened at least once
//! STORE/data/                 mode 0700: the mode bits of directories in the volume do not protect files in the store
//! STORE/data/<xx>/<inode>     backing files
//! STORE/reserve               space reserved for removals from a full store
//! STORE/damaged/              data that a repair took out of tables; cut.txt: files that were shorter than rows stated
//! ```

mod format;
mod host_keys;
mod lock;
mod pinned;
mod registry_record;
mod rights;
mod server_record;
mod volume_file;

pub use format::{FormatOver, VolumeFormatError};
pub use host_keys::{HOST_KEYS_MAX, HostKey, KeyFile};
pub use lock::{LockError, ReadLock, VolumeLock};
pub use pinned::PinnedDirectories;
pub use server_record::{OtherStore, ServerRecord, ShutdownState, WorkerRecord, are_other_stores, boot_id, host_name};
pub use volume_file::{FORMAT_VERSION, VolumeFileError};

use crate::disk::{self, Location, WriterId};
use crate::store_path::{StorePath, StoreRoot};
use rights::Readers;
use std::fs::Permissions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_types::{InodeId, ShardId};

/// Length of a stored volume key.
pub const KEY_BYTES: usize = 32;
/// Only the volume's owner may read the key: it authenticates clients to the servers.
const KEY_MODE: u32 = 0o600;

/// The bits of a file's mode that its backing file also has; set-id bits have no meaning in the store.
pub const BACKING_MODE_BITS: u32 = 0o777;

/// The paths of a volume. Creating one accesses no file.
#[derive(Clone, Debug)]
pub struct VolumeDir {
    root: StoreRoot,
    /// `shards` and `data` may be links to another disk.
    shards: StoreRoot,
    data: StoreRoot,
    /// For a process that works in the volume: the directories as they were found.
    place: Option<Arc<PinnedDirectories>>,
}

impl PartialEq for VolumeDir {
    fn eq(&self, other: &VolumeDir) -> bool {
        self.root == other.root
    }
}

impl Eq for VolumeDir {}

impl VolumeDir {
    pub fn new(root: impl Into<PathBuf>) -> VolumeDir {
        VolumeDir::below(StoreRoot::at(root))
    }

    fn below(root: StoreRoot) -> VolumeDir {
        let [shards, data] = ["shards", "data"].map(|name| root.part(name));
        VolumeDir { root, shards, data, place: None }
    }

    /// A separate volume in the directory `name` of this one, in which a repair builds new tables.
    pub fn within(&self, name: &str) -> VolumeDir {
        VolumeDir::below(self.root.within(name))
    }

    /// Opens the volume's directories for short work: later accesses are not compared with the directories in its
    /// place.
    pub fn opened(&self) -> io::Result<VolumeDir> {
        let volume = VolumeDir::below(StoreRoot::hold(self.root.path())?);
        volume.check_rights()?;
        Ok(volume)
    }

    /// Opens the volume's directories once. From here on, no other volume in its place is taken for it.
    ///
    /// # Errors
    /// Also if other users can change its content.
    pub fn held(self) -> io::Result<VolumeDir> {
        let volume = self.opened()?;
        let place = PinnedDirectories::of(&volume)?;
        Ok(VolumeDir { place: Some(Arc::new(place)), ..volume })
    }

    pub fn place(&self) -> Option<&Arc<PinnedDirectories>> {
        self.place.as_ref()
    }

    /// Fails with [`io::ErrorKind::NotFound`] if a [held](VolumeDir::held) volume is not in its place.
    pub fn in_place(&self) -> io::Result<()> {
        self.place.as_ref().map_or(Ok(()), |place| place.check())
    }

    /// As [`VolumeDir::in_place`], for the directory of backing files.
    pub fn data_in_place(&self) -> io::Result<()> {
        self.place.as_ref().map_or(Ok(()), |place| place.check_data())
    }

    /// The path by which it was found: for messages, and to create the directory itself.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The root directory, whatever its present name.
    pub fn at_root(&self) -> StorePath {
        self.root.itself()
    }

    /// The path `below` the volume's root.
    pub fn inside(&self, below: impl AsRef<Path>) -> StorePath {
        self.root.join(below)
    }

    /// Block and inode counts of the file system that contains the volume.
    pub fn space(&self) -> io::Result<rustix::fs::StatVfs> {
        self.in_place()?;
        Ok(rustix::fs::fstatvfs(&*self.root.directory()?)?)
    }

    pub fn volume_file(&self) -> StorePath {
        self.inside("varve.toml")
    }

    /// A copy in a directory whose loss loses the volume's metadata anyway.
    pub fn volume_file_copy(&self) -> StorePath {
        self.shards.join("varve.toml")
    }

    pub fn key_file(&self) -> StorePath {
        self.inside("key")
    }

    pub fn lock_file(&self) -> StorePath {
        self.inside("lock")
    }

    pub fn servers(&self) -> StorePath {
        self.inside("servers")
    }

    /// The registry of servers that have joined, if it is in the store.
    pub fn cluster(&self) -> StorePath {
        self.inside("cluster")
    }

    pub fn server_file(&self) -> StorePath {
        self.inside("servers/current.toml")
    }

    /// The record of a server that ended cleanly: its blocks are reused for the next server's record.
    pub fn stopped_server_file(&self) -> StorePath {
        self.inside("servers/stopped.toml")
    }

    /// As [`VolumeDir::stopped_server_file`], for a server that ended while clients had files open.
    pub fn left_server_file(&self) -> StorePath {
        self.inside("servers/left.toml")
    }

    /// The root of the object store that holds all tables.
    pub fn shards(&self) -> StorePath {
        self.shards.itself()
    }

    /// The name of a shard's directory below [`VolumeDir::shards`].
    pub fn shard_name(shard: ShardId) -> String {
        format!("{:04}", shard.0)
    }

    /// The shard whose directory has this name, or `None`.
    pub fn shard_named(name: &str) -> Option<ShardId> {
        let shard = ShardId(name.parse().ok()?);
        (Self::shard_name(shard) == name).then_some(shard)
    }

    pub fn shard(&self, shard: ShardId) -> StorePath {
        self.shards.join(Self::shard_name(shard))
    }

    /// The marks of a shard that was opened: one in its own directory, and one that remains if that directory is lost.
    pub fn shard_marks(&self, shard: ShardId) -> [StorePath; 2] {
        [self.shard(shard).join("opened"), self.shards.join(format!("{}.opened", Self::shard_name(shard)))]
    }

    pub fn shard_log(&self, shard: ShardId) -> StorePath {
        self.shard(shard).join("log")
    }

    pub fn data(&self) -> StorePath {
        self.data.itself()
    }

    /// The file of the reserve: [`crate::reserve`].
    pub fn reserve(&self) -> StorePath {
        self.inside("reserve")
    }

    /// The directory in which `varve fsck --repair` keeps bytes that it takes out of tables; created when needed.
    pub fn damaged(&self) -> StorePath {
        self.inside("damaged")
    }

    /// The directory of a backing file: one of 256, chosen by the last byte of the inode number, which counts up.
    pub fn backing_directory(&self, inode: InodeId) -> StorePath {
        self.data.join(format!("{:02x}", inode.0 & 0xff))
    }

    pub fn backing_file(&self, inode: InodeId) -> StorePath {
        self.data.join(format!("{:02x}/{:016x}", inode.0 & 0xff, inode.0))
    }

    /// Whether nothing exists at `path`, which is below the root. Fails if the volume is missing, because it was moved
    /// away or its file system was unmounted: then nothing is known of its content. The lookup starts at the root, so
    /// it does not matter when the volume disappears or comes back.
    pub fn lacks(&self, path: &StorePath) -> io::Result<bool> {
        // Every volume has this directory; an empty directory in place of a volume does not.
        self.shards().symlink_metadata()?;
        match path.path().starts_with(self.data.path()) {
            true => self.data_in_place()?,
            false => self.in_place()?,
        }
        path.try_exists().map(|exists| !exists)
    }

    /// The volume's key.
    pub fn read_key(&self) -> io::Result<[u8; KEY_BYTES]> {
        let path = self.key_file();
        let mut content = Vec::new();
        // One byte more than the key's length, to detect a longer file.
        let opened = self.open_own(&path, Readers::OwnerAlone);
        let read = opened.and_then(|file| file.take(KEY_BYTES as u64 + 1).read_to_end(&mut content));
        read.map_err(|error| {
            let next = match error.kind() {
                io::ErrorKind::NotFound => "; restore it from a copy, or let `varve fsck --repair` make another one",
                // Only without a more specific message.
                io::ErrorKind::PermissionDenied if error.raw_os_error().is_some() => {
                    "; only the volume's owner or root may mount it"
                }
                _ => "",
            };
            io::Error::new(error.kind(), format!("cannot read the volume's key {}: {error}{next}", path.display()))
        })?;
        content.as_slice().try_into().map_err(|_| {
            let found = if content.len() > KEY_BYTES { "more".into() } else { content.len().to_string() };
            let message = format!("the key {} must have {KEY_BYTES} bytes and has {found}", path.display());
            io::Error::new(io::ErrorKind::InvalidData, message)
        })
    }

    /// Tables and logs contain names, attributes and small files of all users, and backing files lie outside of the
    /// directories that may protect their files: so only the volume's owner gets access to them.
    pub fn close_to_others(&self) -> io::Result<()> {
        let close = |directory: &StorePath| -> io::Result<()> {
            let opened = match directory.open_directory() {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                opened => opened?,
            };
            let open_to_others = opened.metadata()?.mode() & 0o077 != 0;
            if open_to_others { opened.set_permissions(Permissions::from_mode(0o700)) } else { Ok(()) }
        };
        [self.shards(), self.damaged()].iter().try_for_each(close)?;
        // The directory may be on another disk and belong to root there.
        if let Err(error) = close(&self.data()) {
            tracing::warn!("cannot close {} to other users, who may find large files there: {error}", self.data());
        }
        Ok(())
    }

    /// Removes leftovers of crashes in those directories of this volume that are not tables. Only for the lock's
    /// holder. Returns the writers whose temporary files stay, because their server may still run.
    pub fn remove_leftovers(&self, _lock: &VolumeLock) -> io::Result<Vec<WriterId>> {
        let living = self.living_writers();
        disk::remove_leftovers(&self.at_root(), &living)?;
        if self.servers().is_dir() {
            disk::remove_leftovers(&self.servers(), &living)?;
        }
        Ok(living)
    }
}

#[cfg(test)]
mod tests;
