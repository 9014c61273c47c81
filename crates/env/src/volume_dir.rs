//! The directory of a volume: where its files are, and the ones that are not tables.
//!
//! ```text
//! STORE/varve.toml            the volume file; the volume exists once this does
//! STORE/key                   32 random bytes, mode 0600; held with flock by the server
//! STORE/keys/<id>.toml        keys of hosts, mode 0600 in a directory of mode 0700
//! STORE/lock                  mode 0600, for who may open it may lock it; held with flock by the server
//! STORE/servers/current.toml  where the server listens; stopped.toml or left.toml when it has ended
//! STORE/shards/               mode 0700: rows of all users are below
//! STORE/shards/varve.toml     a copy of the volume file
//! STORE/shards/<nnnn>/        one table a shard; the number in four decimal digits
//! STORE/shards/<nnnn>/log/    its log
//! STORE/shards/<nnnn>.opened  the shard was opened once
//! STORE/data/                 mode 0700: the directories that their files lie in protect them in the volume alone
//! STORE/data/<xx>/<inode>     backing files
//! STORE/reserve              room kept back for removals from a full store
//! STORE/damaged/              what a repair took out of tables; cut.txt: files of which less was there than rows knew
//! ```

mod format;
mod host_keys;
mod lock;
mod pinned;
mod rights;
mod server_record;
mod volume_file;

pub use format::{FormatOver, VolumeFormatError};
pub use host_keys::{HOST_KEYS_MAX, HostKey, KeyFile, OVERFLOW_UID};
pub use lock::{LockError, ReadLock, VolumeLock};
pub use pinned::PinnedDirectories;
pub use rights::is_nobody;
pub use server_record::{OtherStore, ServerRecord, ShutdownState, WorkerRecord};
pub use volume_file::{FORMAT_VERSION, VolumeFileError};

use crate::disk::{self, Location};
use crate::store_path::{StorePath, StoreRoot};
use rights::Readers;
use std::fs::Permissions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_types::{InodeId, ShardId};

/// The key of a volume, as stored.
pub const KEY_BYTES: usize = 32;
/// Only the volume's owner may read the key: it is the right to talk to the servers.
const KEY_MODE: u32 = 0o600;

/// Of a file's mode, what its backing file has too; set-id bits mean nothing in the store.
pub const BACKING_MODE_BITS: u32 = 0o777;

/// The paths of a volume. Making one touches nothing.
#[derive(Clone, Debug)]
pub struct VolumeDir {
    root: StoreRoot,
    /// These two may be links to another disk.
    shards: StoreRoot,
    data: StoreRoot,
    /// Of who works in it: where it was found.
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

    /// A volume of its own in the directory `name` of this one, where a repair builds new tables.
    pub fn within(&self, name: &str) -> VolumeDir {
        VolumeDir::below(self.root.within(name))
    }

    /// The volume with its directories held, for work that does not last: nothing is compared with what is in its place.
    pub fn opened(&self) -> io::Result<VolumeDir> {
        let volume = VolumeDir::below(StoreRoot::hold(self.root.path())?);
        volume.check_rights()?;
        Ok(volume)
    }

    /// The volume that is there now, opened once: from here on no other in its place is taken for it.
    ///
    /// # Errors
    /// Also where other users may change what is in it.
    pub fn held(self) -> io::Result<VolumeDir> {
        let volume = self.opened()?;
        let place = PinnedDirectories::of(&volume)?;
        Ok(VolumeDir { place: Some(Arc::new(place)), ..volume })
    }

    pub fn place(&self) -> Option<&Arc<PinnedDirectories>> {
        self.place.as_ref()
    }

    /// An error of the kind [`io::ErrorKind::NotFound`] if a volume that is [held](VolumeDir::held) is not in its place.
    pub fn in_place(&self) -> io::Result<()> {
        self.place.as_ref().map_or(Ok(()), |place| place.check())
    }

    /// The same, of the directory of backing files.
    pub fn data_in_place(&self) -> io::Result<()> {
        self.place.as_ref().map_or(Ok(()), |place| place.check_data())
    }

    /// Where it was found: for messages, and to make the directory itself.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// The root directory, however it is called by now.
    pub fn at_root(&self) -> StorePath {
        self.root.itself()
    }

    /// What lies at this place in the volume.
    pub fn inside(&self, below: impl AsRef<Path>) -> StorePath {
        self.root.join(below)
    }

    /// Blocks and files of the file system that the volume is on.
    pub fn space(&self) -> io::Result<rustix::fs::StatVfs> {
        self.in_place()?;
        Ok(rustix::fs::fstatvfs(&*self.root.directory()?)?)
    }

    pub fn volume_file(&self) -> StorePath {
        self.inside("varve.toml")
    }

    /// Where there is nothing but what is lost without it.
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

    pub fn server_file(&self) -> StorePath {
        self.inside("servers/current.toml")
    }

    /// What a server that ended well leaves of its record: room for the next one's.
    pub fn stopped_server_file(&self) -> StorePath {
        self.inside("servers/stopped.toml")
    }

    /// The same, where clients had files open when it ended.
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

    /// The shard whose directory has this name, if it is one of a shard.
    pub fn shard_named(name: &str) -> Option<ShardId> {
        let shard = ShardId(name.parse().ok()?);
        (Self::shard_name(shard) == name).then_some(shard)
    }

    pub fn shard(&self, shard: ShardId) -> StorePath {
        self.shards.join(Self::shard_name(shard))
    }

    /// The marks of a shard that was opened: one in its own directory, and one that is there when that has been lost.
    pub fn shard_marks(&self, shard: ShardId) -> [StorePath; 2] {
        [self.shard(shard).join("opened"), self.shards.join(format!("{}.opened", Self::shard_name(shard)))]
    }

    pub fn shard_log(&self, shard: ShardId) -> StorePath {
        self.shard(shard).join("log")
    }

    pub fn data(&self) -> StorePath {
        self.data.itself()
    }

    /// The file of the room kept back: [`crate::reserve`].
    pub fn reserve(&self) -> StorePath {
        self.inside("reserve")
    }

    /// Where `varve fsck --repair` keeps bytes that it takes out of tables; made when it is needed.
    pub fn damaged(&self) -> StorePath {
        self.inside("damaged")
    }

    /// The directory of a backing file: one of 256, by the last byte of the inode's number, which counts up.
    pub fn backing_directory(&self, inode: InodeId) -> StorePath {
        self.data.join(format!("{:02x}", inode.0 & 0xff))
    }

    pub fn backing_file(&self, inode: InodeId) -> StorePath {
        self.data.join(format!("{:02x}/{:016x}", inode.0 & 0xff, inode.0))
    }

    /// Whether nothing is at `path`, which is below the root: an error where the volume is not there, because it was
    /// moved away or what holds it unmounted, so that nothing is known of what is in it. Looked up from the root on, so
    /// that it does not matter when that goes or comes back.
    pub fn lacks(&self, path: &StorePath) -> io::Result<bool> {
        // Every volume has it, and an empty directory in the place of one has not.
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
        // One byte more than there may be shows that there are too many.
        let opened = self.open_own(&path, Readers::OwnerAlone);
        let read = opened.and_then(|file| file.take(KEY_BYTES as u64 + 1).read_to_end(&mut content));
        read.map_err(|error| {
            let next = match error.kind() {
                io::ErrorKind::NotFound => "; restore it from a copy, or let `varve fsck --repair` make another one",
                // Not where it is said what is wrong with it.
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

    /// Tables and logs hold names, attributes and small files of all users, and backing files lie outside of the directories that
    /// may protect their files: only the volume's owner may look into them.
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
        // It may be on another disk, and that one's directory root's.
        if let Err(error) = close(&self.data()) {
            tracing::warn!("{} stays open to others, who may find large files there: {error}", self.data());
        }
        Ok(())
    }

    /// Removes what crashes left in the directories of this volume that are not tables. Only for the lock's holder.
    pub fn remove_leftovers(&self, _lock: &VolumeLock) -> io::Result<u64> {
        let mut removed = disk::remove_leftovers(&self.at_root())?;
        if self.servers().is_dir() {
            removed += disk::remove_leftovers(&self.servers())?;
        }
        Ok(removed)
    }
}

#[cfg(test)]
mod tests;
