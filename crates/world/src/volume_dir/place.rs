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
