//! What root has made in another user's volume becomes that user's, who could not change it otherwise.
//!
//! The user may change the directories at the same time, so nothing is done by a path: each file is opened where it is, no
//! link is followed, and a file with another name elsewhere, which need not be the volume's, is left alone.

use super::{VolumeDir, VolumeLock};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, openat};
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Directories are nested so deep at most in a volume, tables and all.
const DEPTH_MAX: u32 = 8;

impl VolumeDir {
    /// Gives what root owns in the volume of `owner` to whom its directory belongs, with that one's group; what users have
    /// stored, in `data`, is not looked at. Does nothing in root's own volume, nor by another than root.
    ///
    /// # Errors
    /// The first one, when all else that can be is given.
    pub fn give_away(&self, _lock: &VolumeLock, owner: u32) -> io::Result<()> {
        if owner == 0 || !rustix::process::geteuid().is_root() {
            return Ok(());
        }
        let root = openat(CWD, self.root(), OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let kept = self.data();
        give(&root, &|name| kept.file_name().is_some_and(|kept| kept.as_encoded_bytes() == name.to_bytes()), DEPTH_MAX)
    }
}

/// What is in `directory` gets its owner and group, and so on below.
fn give(directory: &OwnedFd, kept: &dyn Fn(&CStr) -> bool, depth: u32) -> io::Result<()> {
    let around = fstat(directory)?;
    let mut result = Ok(());
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") && !kept(name) {
            result = result.and(give_entry(directory.as_fd(), &around, name, depth));
        }
    }
    result
}

fn give_entry(directory: BorrowedFd<'_>, around: &Stat, name: &CStr, depth: u32) -> io::Result<()> {
    let opened = openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    let opened = match opened {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let found = fstat(&opened)?;
    let kind = FileType::from_raw_mode(found.st_mode);
    let is_directory = kind == FileType::Directory;
    let may_be_given =
        is_directory || (matches!(kind, FileType::RegularFile | FileType::Symlink) && found.st_nlink == 1);
    if found.st_dev != around.st_dev || !may_be_given {
        return Ok(());
    }
    if found.st_uid == 0 && around.st_uid != 0 {
        let (uid, gid) = (Uid::from_raw(around.st_uid), Gid::from_raw(around.st_gid));
        chownat(&opened, c"", Some(uid), Some(gid), AtFlags::EMPTY_PATH)?;
    }
    if !is_directory || depth == 0 {
        return Ok(());
    }
    let below = openat(&opened, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    give(&below, &|_| false, depth - 1)
}
