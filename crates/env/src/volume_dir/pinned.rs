//! Checks that a volume's directory, and the directories in it that hold its data, are those that a process opened. A
//! replacement, such as a copy or another volume, has files of the same names, which must be neither written nor
//! removed. No directory is created in place of one that was moved away, because it would prevent that one from being
//! moved back.

use super::{KEY_BYTES, VolumeDir};
use crate::disk::Location;
use crate::printable::printable_path;
use crate::store_path::{StorePath, StoreRoot};
use parking_lot::RwLock;
use rustix::fd::OwnedFd;
use rustix::fs::{Stat, fstat};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use varve_types::ShardId;

/// The directories themselves, whatever their present paths.
#[derive(Debug)]
pub struct PinnedDirectories {
    volume: VolumeDir,
    /// Shards that were accessed.
    shards: RwLock<HashMap<ShardId, Arc<HeldShard>>>,
    /// `None` if this user may not read the key and uses a host key.
    key: Option<[u8; KEY_BYTES]>,
}

impl PinnedDirectories {
    /// The pinned directories of a volume whose root directory is open.
    pub(super) fn of(volume: &VolumeDir) -> io::Result<PinnedDirectories> {
        let place = PinnedDirectories { volume: volume.clone(), shards: RwLock::default(), key: readable_key(volume)? };
        // An error is reported when the directory is needed.
        let _ = place.check_data();
        Ok(place)
    }

    /// Fails with [`io::ErrorKind::NotFound`] if the volume's place is empty or has another directory.
    pub fn check(&self) -> io::Result<()> {
        let root = &self.volume.root;
        check_root(root, || {
            // Verify the key first: the pinned directory may be the one that disappeared.
            let now = VolumeDir::new(root.path());
            match readable_key(&now)? == self.key {
                true => Ok(()),
                false => Err(another(root.path())),
            }
        })
    }

    /// As [`PinnedDirectories::check`], for the directory of backing files.
    pub fn check_data(&self) -> io::Result<()> {
        self.check()?;
        check_root(&self.volume.data, || Ok(()))
    }

    /// As [`PinnedDirectories::check`], for the directory of a shard.
    pub fn check_shard(&self, shard: ShardId) -> io::Result<()> {
        self.check()?;
        check_root(&self.volume.shards, || Ok(()))?;
        let known = self.shards.read().get(&shard).cloned();
        let held = known.unwrap_or_else(|| {
            let new = || Arc::new(HeldShard { path: self.volume.shard(shard), directory: RwLock::new(None) });
            Arc::clone(self.shards.write().entry(shard).or_insert_with(new))
        });
        held.check()
    }
}

/// A shard's directory, kept open after its first use: while it is open, its inode number stays the same, even on file
/// systems that generate inode numbers.
#[derive(Debug)]
struct HeldShard {
    path: StorePath,
    directory: RwLock<Option<OwnedFd>>,
}

impl HeldShard {
    fn check(&self) -> io::Result<()> {
        let found = self.path.entry().and_then(|entry| Ok(look(&entry)?));
        let known = self.directory.read().as_ref().map(fstat);
        if is_to_be_opened(self.path.path(), known, found)? {
            let directory = self.path.open_directory()?;
            *self.directory.write() = Some(directory.into());
        }
        Ok(())
    }
}

fn readable_key(volume: &VolumeDir) -> io::Result<Option<[u8; KEY_BYTES]>> {
    match volume.read_key() {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        key => key.map(Some),
    }
}

/// `around` checks the parent directory. It is called only if nothing else identifies the directory: it did not exist
/// before, or its file system was unmounted, or its file server has forgotten it.
fn check_root(root: &StoreRoot, around: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let known = root.known().map(|directory| fstat(&*directory));
    if is_to_be_opened(root.path(), known, root.look_anew())? {
        let directory = root.open()?;
        around()?;
        root.renew(directory);
    }
    Ok(())
}

/// Compares the `known` directory with the one `found`. `true`: it exists and must be opened.
fn is_to_be_opened(path: &Path, known: Option<rustix::io::Result<Stat>>, found: io::Result<Stat>) -> io::Result<bool> {
    match (known, found) {
        (Some(Ok(known)), Ok(found)) if (known.st_dev, known.st_ino) == (found.st_dev, found.st_ino) => Ok(false),
        (Some(Ok(_)), Ok(_)) => Err(another(path)),
        (Some(_), Err(error)) => Err(unreachable(path, &error)),
        (None, Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        (None, Err(error)) => Err(error),
        (None | Some(Err(_)), Ok(_)) => Ok(true),
    }
}

fn look(entry: &crate::disk::Entry) -> rustix::io::Result<Stat> {
    rustix::fs::statat(entry.fd(), &entry.name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
}

fn another(path: &Path) -> io::Error {
    let message = format!("{} is another directory than the volume's", printable_path(path));
    io::Error::new(io::ErrorKind::NotFound, message)
}

fn unreachable(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", printable_path(path)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn volume(root: &Path, key: u8) -> VolumeDir {
        fs::create_dir_all(root.join("shards")).unwrap();
        let volume = VolumeDir::new(root);
        fs::write(volume.key_file(), [key; KEY_BYTES]).unwrap();
        fs::set_permissions(volume.key_file(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        volume
    }

    /// Promise: neither a missing directory nor another volume nor a copy with the same key is taken for the volume;
    /// after moving back it is accepted again.
    #[test]
    fn replaced_directory_is_not_the_volume() {
        let directory = tempfile::tempdir().unwrap();
        let [root, aside] = ["store", "aside"].map(|name| directory.path().join(name));
        let held = volume(&root, 1).held().unwrap();
        let path = held.backing_file(varve_types::InodeId(2));
        assert!(held.in_place().is_ok() && held.lacks(&path).unwrap());
        fs::rename(&root, &aside).unwrap();
        assert_eq!(held.in_place().unwrap_err().kind(), io::ErrorKind::NotFound);
        for key in [1, 2] {
            let other = volume(&root, key);
            assert_eq!(held.in_place().unwrap_err().kind(), io::ErrorKind::NotFound);
            assert!(held.lacks(&path).is_err(), "of what is in another nothing is known");
            assert!(other.in_place().is_ok(), "a volume that is not held accepts the directory that is there");
            fs::remove_dir_all(&root).unwrap();
        }
        fs::rename(&aside, &root).unwrap();
        assert!(held.in_place().is_ok() && held.lacks(&path).unwrap());
    }

    /// Promise: the same holds for the directories in it, from their first use on. Directories that did not exist
    /// before may be created.
    #[test]
    fn replaced_subdirectories_are_not_the_volume() {
        let directory = tempfile::tempdir().unwrap();
        let [root, aside] = ["store", "aside"].map(|name| directory.path().join(name));
        let held = volume(&root, 1).held().unwrap();
        let place = held.place().unwrap();
        let shard = ShardId(3);
        let check = |shards: bool| if shards { place.check_shard(shard) } else { place.check_data() };
        for (shards, path) in [(true, held.shard(shard)), (false, held.data())] {
            assert!(check(shards).is_ok(), "it may be made");
            fs::create_dir(&path).unwrap();
            assert!(check(shards).is_ok());
            fs::rename(&path, &aside).unwrap();
            assert_eq!(check(shards).unwrap_err().kind(), io::ErrorKind::NotFound);
            fs::create_dir(&path).unwrap();
            assert_eq!(check(shards).unwrap_err().kind(), io::ErrorKind::NotFound);
            assert!(place.check().is_ok() && place.check_shard(ShardId(4)).is_ok(), "others are where they were");
            fs::remove_dir(&path).unwrap();
            fs::rename(&aside, &path).unwrap();
            assert!(check(shards).is_ok());
        }
        let file = held.backing_file(varve_types::InodeId(2));
        fs::rename(held.data(), &aside).unwrap();
        assert!(held.in_place().is_ok() && held.data_in_place().is_err());
        assert!(held.lacks(&file).is_err(), "of what is in it nothing is known");
    }
}
