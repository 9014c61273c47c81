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
mod owner;
mod place;
mod server_record;
mod volume_file;

pub use format::{FormatError, FormatOver};
pub use host_keys::{HOST_KEYS_MAX, HostKey, KeyFile, OVERFLOW_UID};
pub use lock::{LockError, ReadLock, VolumeLock};
pub use place::Place;
pub use server_record::{Left, OtherStore, ServerRecord, WorkerRecord};
pub use volume_file::{FORMAT_VERSION, VolumeFileError};

use crate::disk;
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{File, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
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
    root: PathBuf,
    /// Of who works in it: where it was found.
    place: Option<Arc<Place>>,
}

impl PartialEq for VolumeDir {
    fn eq(&self, other: &VolumeDir) -> bool {
        self.root == other.root
    }
}

impl Eq for VolumeDir {}

impl VolumeDir {
    pub fn new(root: impl Into<PathBuf>) -> VolumeDir {
        VolumeDir { root: root.into(), place: None }
    }

    /// The volume that is there now: from here on no other in its place is taken for it.
    pub fn held(self) -> io::Result<VolumeDir> {
        let place = Place::of(&self)?;
        Ok(VolumeDir { place: Some(Arc::new(place)), ..self })
    }

    pub fn place(&self) -> Option<&Arc<Place>> {
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

    pub fn root(&self) -> &Path {
        &self.root
    }

    pub fn volume_file(&self) -> PathBuf {
        self.root.join("varve.toml")
    }

    /// Where there is nothing but what is lost without it.
    pub fn volume_file_copy(&self) -> PathBuf {
        self.shards().join("varve.toml")
    }

    /// Whose the key is, where that is neither root, who copies stores, nor `owner`, whose volume it is to be: either the
    /// owner was edited and the files were not given to them, or the other way round.
    pub fn third_owner(&self, owner: u32) -> Option<u32> {
        let found = self.key_file().metadata().ok()?.uid();
        (found != owner && found != 0).then_some(found)
    }

    pub fn key_file(&self) -> PathBuf {
        self.root.join("key")
    }

    pub fn lock_file(&self) -> PathBuf {
        self.root.join("lock")
    }

    pub fn servers(&self) -> PathBuf {
        self.root.join("servers")
    }

    pub fn server_file(&self) -> PathBuf {
        self.servers().join("current.toml")
    }

    /// What a server that ended well leaves of its record: room for the next one's.
    pub fn stopped_server_file(&self) -> PathBuf {
        self.servers().join("stopped.toml")
    }

    /// The same, where clients had files open when it ended.
    pub fn left_server_file(&self) -> PathBuf {
        self.servers().join("left.toml")
    }

    /// The root of the object store that holds all tables.
    pub fn shards(&self) -> PathBuf {
        self.root.join("shards")
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

    pub fn shard(&self, shard: ShardId) -> PathBuf {
        self.shards().join(Self::shard_name(shard))
    }

    /// The marks of a shard that was opened: one in its own directory, and one that is there when that has been lost.
    pub fn shard_marks(&self, shard: ShardId) -> [PathBuf; 2] {
        [self.shard(shard).join("opened"), self.shards().join(format!("{}.opened", Self::shard_name(shard)))]
    }

    pub fn shard_log(&self, shard: ShardId) -> PathBuf {
        self.shard(shard).join("log")
    }

    pub fn data(&self) -> PathBuf {
        self.root.join("data")
    }

    /// The file of the room kept back: [`crate::reserve`].
    pub fn reserve(&self) -> PathBuf {
        self.root.join("reserve")
    }

    /// Where `varve fsck --repair` keeps bytes that it takes out of tables; made when it is needed.
    pub fn damaged(&self) -> PathBuf {
        self.root.join("damaged")
    }

    /// The directory of a backing file: one of 256, by the last byte of the inode's number, which counts up.
    pub fn backing_directory(&self, inode: InodeId) -> PathBuf {
        self.data().join(format!("{:02x}", inode.0 & 0xff))
    }

    pub fn backing_file(&self, inode: InodeId) -> PathBuf {
        self.backing_directory(inode).join(format!("{:016x}", inode.0))
    }

    /// Whether nothing is at `path`, which is below the root: an error where the volume is not there, because it was
    /// moved away or what holds it unmounted, so that nothing is known of what is in it. Looked up from the root on, so
    /// that it does not matter when that goes or comes back.
    pub fn lacks(&self, path: &Path) -> io::Result<bool> {
        let below = path.strip_prefix(&self.root).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let root = rustix::fs::open(&self.root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        // Every volume has it, and an empty directory in the place of one has not.
        rustix::fs::statat(&root, "shards", AtFlags::empty())?;
        match path.starts_with(self.data()) {
            true => self.data_in_place()?,
            false => self.in_place()?,
        }
        match rustix::fs::statat(&root, below, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(_) => Ok(false),
            Err(Errno::NOENT) => Ok(true),
            Err(error) => Err(error.into()),
        }
    }

    /// The volume's key.
    pub fn read_key(&self) -> io::Result<[u8; KEY_BYTES]> {
        let path = self.key_file();
        let mut content = Vec::new();
        // One byte more than there may be shows that there are too many.
        let read = File::open(&path).and_then(|file| file.take(KEY_BYTES as u64 + 1).read_to_end(&mut content));
        read.map_err(|error| {
            let next = match error.kind() {
                io::ErrorKind::NotFound => "; restore it from a copy, or let `varve fsck --repair` make another one",
                io::ErrorKind::PermissionDenied => "; only the volume's owner or root may mount it",
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
        let close = |directory: &Path| match open_own_directory(directory) {
            Ok((open, found)) if found.mode() & 0o077 != 0 => open.set_permissions(Permissions::from_mode(0o700)),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(_) | Err(_) => Ok(()),
        };
        [self.shards(), self.damaged()].iter().try_for_each(|directory| close(directory))?;
        // It may be on another disk, and that one's directory another user's.
        if let Err(error) = close(&self.data()) {
            tracing::warn!("{} stays open to others, who may find large files there: {error}", self.data().display());
        }
        Ok(())
    }

    /// Removes what crashes left in the directories of this volume that are not tables. Only for the lock's holder.
    pub fn remove_leftovers(&self, _lock: &VolumeLock) -> io::Result<u64> {
        let mut removed = disk::remove_leftovers(&self.root)?;
        if self.servers().is_dir() {
            removed += disk::remove_leftovers(&self.servers())?;
        }
        Ok(removed)
    }
}

/// Opens a directory of a volume. It may be a link, but of root or of whom the directory belongs to that it leads to: else a user could
/// have root do there what he may not.
fn open_own_directory(directory: &Path) -> io::Result<(std::fs::File, std::fs::Metadata)> {
    let named = directory.symlink_metadata()?;
    let no_link = if named.is_symlink() { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = (OFlags::DIRECTORY | no_link).bits() as i32;
    let open = std::fs::File::options().read(true).custom_flags(flags).open(directory)?;
    let found = open.metadata()?;
    if named.is_symlink() && named.uid() != 0 && named.uid() != found.uid() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "{} is a link of user {} to a directory of user {}: it is followed if it is root's, or that user's",
                directory.display(),
                named.uid(),
                found.uid()
            ),
        ));
    }
    Ok((open, found))
}

#[cfg(test)]
mod tests;
