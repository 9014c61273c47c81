//! Whether a volume's directory is where a process found it. Another one in its place, such as a copy of it or another
//! volume, has files of the same names, which are nobody's to write or to remove here.

use super::{KEY_BYTES, VolumeDir};
use parking_lot::RwLock;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, fstat, stat};
use std::io;

/// The directory itself, whatever its path is by now. While it is open its inode number stays, also where a file system
/// makes numbers up.
#[derive(Debug)]
pub struct Place {
    volume: VolumeDir,
    directory: RwLock<OwnedFd>,
    key: [u8; KEY_BYTES],
}

impl Place {
    pub(super) fn of(volume: &VolumeDir) -> io::Result<Place> {
        let directory = RwLock::new(open(volume)?);
        Ok(Place { volume: volume.clone(), directory, key: volume.read_key()? })
    }

    /// An error of the kind [`io::ErrorKind::NotFound`] if nothing or something else is there.
    pub fn check(&self) -> io::Result<()> {
        let found = stat(self.volume.root())?;
        let known = fstat(&*self.directory.read());
        match known {
            Ok(known) if (known.st_dev, known.st_ino) == (found.st_dev, found.st_ino) => Ok(()),
            Ok(_) => Err(self.another()),
            // Its file system was unmounted under it, or its server has forgotten it.
            Err(_) => self.find_again(),
        }
    }

    fn find_again(&self) -> io::Result<()> {
        let directory = open(&self.volume)?;
        if self.volume.read_key()? != self.key {
            return Err(self.another());
        }
        *self.directory.write() = directory;
        Ok(())
    }

    fn another(&self) -> io::Error {
        let root = self.volume.root().display();
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("{root} is another directory than the volume's; bring that back"),
        )
    }
}

fn open(volume: &VolumeDir) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(volume.root(), OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::Path;

    fn volume(root: &Path, key: u8) -> VolumeDir {
        fs::create_dir_all(root.join("shards")).unwrap();
        let volume = VolumeDir::new(root);
        fs::write(volume.key_file(), [key; KEY_BYTES]).unwrap();
        volume
    }

    /// Promise: neither nothing nor another volume nor a copy with the same key is taken for the volume; moved back it is one.
    #[test]
    fn only_the_same_directory_is_the_volume() {
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
            assert!(other.in_place().is_ok(), "who holds none takes what is there");
            fs::remove_dir_all(&root).unwrap();
        }
        fs::rename(&aside, &root).unwrap();
        assert!(held.in_place().is_ok() && held.lacks(&path).unwrap());
    }
}
