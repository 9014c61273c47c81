//! Backing files: the store's own files behind large files.

use crate::calls::Core;
use crate::{Failure, Result};
use rustix::fs::{FallocateFlags, FlockOperation};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use varve_env::disk::{self, File};
use varve_env::flock::Locked;
use varve_env::volume_dir::BACKING_MODE_BITS;
use varve_types::{Attributes, Credentials, Errno, InodeId, Timestamp};

/// A backing file's mode until it has its owner: only the volume's owner has access.
const BACKING_MODE_FIRST: u32 = 0o600;

/// Size, times and blocks of a backing file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackingStat {
    pub size: u64,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub blocks: u64,
}

pub(crate) fn stat(file: &File) -> Result<BackingStat> {
    let metadata = file.metadata().map_err(|error| Failure::store("cannot stat a backing file", &error))?;
    let time = |seconds, nanoseconds: i64| Timestamp { seconds, nanoseconds: nanoseconds as u32 };
    Ok(BackingStat {
        size: metadata.size(),
        mtime: time(metadata.mtime(), metadata.mtime_nsec()),
        ctime: time(metadata.ctime(), metadata.ctime_nsec()),
        blocks: metadata.blocks(),
    })
}

/// The blocks of 512 bytes that the backing file of `inode` occupies. `None`: the store does not report them; only
/// du(1) needs them.
pub(crate) fn blocks(core: &Core, inode: InodeId) -> Option<u64> {
    core.config.store.backing_file(inode).metadata().ok().map(|metadata| metadata.blocks())
}

/// Opens the backing file of `inode`, for writing too if the store permits.
pub(crate) fn open(core: &Core, inode: InodeId) -> Result<File> {
    let path = core.config.store.backing_file(inode);
    let unreachable = || Failure::unreachable(core.config.store.data().path());
    // From here on, the file is looked up in the open directory, even if another directory replaces it at its path.
    core.config.store.data_in_place().map_err(|_| unreachable())?;
    let options = || File::options().read(true);
    let opened = options().write(!core.config.read_only).open(&path).or_else(|error| {
        let read_only = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EROFS | libc::EPERM));
        if read_only { options().open(&path) } else { Err(error) }
    });
    let shown = path.display();
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if core.config.store.lacks(&path).is_ok_and(|none| none) => {
            let advice = "restore it from a copy, or have `varve fsck --repair` set the file apart";
            Failure::new(Errno::EIO, format!("the content of inode {inode} is gone: there is no {shown}; {advice}"))
        }
        io::ErrorKind::NotFound => unreachable(),
        _ => Failure::store(&format!("cannot open the backing file {shown}"), &error),
    })
}

/// A locked backing file that its row may not refer to yet. Only the lock owner fills it: clients that promote the same
/// small file do so one after the other. The kernel releases the lock when the process ends.
pub(crate) struct Making {
    pub file: Arc<File>,
    /// This client created the file.
    is_new: bool,
    _locked: Locked,
}

impl Making {
    /// Takes the lock; does not change an existing file. `None` while another client has the lock.
    pub fn begin(core: &Core, inode: InodeId) -> Result<Option<Making>> {
        let store = &core.config.store;
        let path = store.backing_file(inode);
        let begun = || -> io::Result<Option<Making>> {
            // Fails if the store is unreachable: another directory at its path, such as a bare mount point, is not the
            // store.
            store.lacks(&path)?;
            let directory = store.backing_directory(inode);
            disk::create_directories(&directory)?;
            let options = || File::options().read(true).write(true).mode(BACKING_MODE_FIRST);
            let (file, is_new) = match options().create_new().open(&path) {
                Ok(file) => (file, true),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => (options().create().open(&path)?, false),
                Err(error) => return Err(error),
            };
            let file = Arc::new(file);
            // Opened for writing, because NFS grants an exclusive lock only on a writable descriptor.
            let to_lock = File::options().read(true).write(true).open(&path)?.into_lock();
            match Locked::take(to_lock, FlockOperation::NonBlockingLockExclusive) {
                // The previous owner has given up meanwhile and removed the name.
                Ok(_) if file.metadata()?.nlink() == 0 => Ok(None),
                Ok(_locked) => {
                    // Another client may have had the lock in between.
                    let is_new = is_new && file.metadata()?.size() == 0;
                    Ok(Some(Making { file, is_new, _locked }))
                }
                Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        begun().or_else(|error| match error.kind() {
            // Another client gave it up just before it was locked here, if the store is reachable.
            io::ErrorKind::NotFound if store.lacks(&path).is_ok() && store.data_in_place().is_ok() => Ok(None),
            _ => Err(cannot_make(core, inode, &error)),
        })
    }

    /// Writes `content`, and zeros behind it up to `length`, durably: file and name are on disk. Remains of a crash are
    /// overwritten, because the row says that its content is not here.
    pub fn fill(
        &self,
        core: &Core,
        inode: InodeId,
        attributes: &Attributes,
        content: &[u8],
        length: u64,
    ) -> Result<()> {
        let (store, file) = (&core.config.store, &self.file);
        let filled = || -> io::Result<()> {
            if file.metadata()?.size() > 0 {
                file.set_len(0)?;
            }
            if core.settings.owner_uid == Credentials::ROOT_UID && rustix::process::geteuid().is_root() {
                file.set_owner(attributes.uid, attributes.gid)?;
                let mode = u32::from(attributes.mode.bits()) & BACKING_MODE_BITS;
                file.set_permissions(Permissions::from_mode(mode))?;
            }
            file.write_all_at(content, 0)?;
            if length > content.len() as u64 {
                file.set_len(length)?;
            }
            file.sync_all()?;
            disk::sync_directory(&store.backing_directory(inode))?;
            // The name may have been removed since.
            if store.lacks(&store.backing_file(inode))? { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
        };
        filled().map_err(|error| cannot_make(core, inode, &error))
    }

    /// Removes a file that no row refers to, now or later. Keeps a file that another client began: that client may have
    /// updated the row without receiving the reply.
    pub fn give_up(&self, core: &Core, inode: InodeId) {
        if !self.is_new {
            return;
        }
        let path = core.config.store.backing_file(inode);
        let removed = || -> io::Result<()> {
            let (own, found) = (self.file.metadata()?, path.symlink_metadata()?);
            if (own.dev(), own.ino()) == (found.dev(), found.ino()) { disk::remove_file(&path) } else { Ok(()) }
        };
        if let Err(error) = removed() {
            tracing::warn!(file = %path.display(), %error, "cannot remove an unfinished backing file");
        }
    }
}

fn cannot_make(core: &Core, inode: InodeId, error: &io::Error) -> Failure {
    let store = &core.config.store;
    match error.kind() {
        io::ErrorKind::NotFound => Failure::unreachable(store.data().path()),
        _ => Failure::store(&format!("cannot make the backing file {}", store.backing_file(inode).display()), error),
    }
}

/// Reads until `buffer` is full or the file ends. An error is returned even after some bytes were read, because a page
/// cache treats a short read as the end of the file.
pub(crate) fn read(file: &File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Failure::store("cannot read a backing file", &error)),
        }
    }
    Ok(done)
}

/// Writes all of `data`, or as much as the store accepts.
pub(crate) fn write(file: &File, offset: u64, data: &[u8]) -> Result<usize> {
    put(data, |rest, done| file.write_at(rest, offset + done))
}

/// Appends all of `data`, or as much as the store accepts, even if other clients append at the same time.
pub(crate) fn append(file: &File, data: &[u8]) -> Result<usize> {
    put(data, |rest, _| file.append(rest))
}

/// `write` gets the remaining data and the number of bytes already written.
fn put(data: &[u8], write: impl Fn(&[u8], u64) -> io::Result<usize>) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match write(&data[done..], done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(Failure::store("cannot write a backing file", &error)),
        }
    }
    Ok(done)
}

/// Extends the file with zeros to `length`, if it is shorter.
pub(crate) fn reach(file: &File, length: u64) -> Result<()> {
    let failed = |error: &io::Error| Failure::store("cannot extend a backing file", error);
    if stat(file)?.size >= length {
        return Ok(());
    }
    // fallocate never shortens the file, even if another client has extended it meanwhile.
    match file.allocate(FallocateFlags::empty(), length - 1, 1) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
            file.set_len(length).map_err(|error| failed(&error))
        }
        allocated => allocated.map_err(|error| failed(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
    use std::path::Path;

    /// Promise: a read error is not treated as the end of the file, whatever was read before it.
    #[test]
    fn partial_write_error_is_reported() {
        const PAGE: usize = 4096;
        // A process's own memory reads as a file whose unmapped part cannot be read.
        // SAFETY: two new pages; the second is unmapped at once, and no other code uses the first.
        let at = unsafe {
            let at = mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
            munmap(at.byte_add(PAGE), PAGE).unwrap();
            at
        };
        let memory = File::open(Path::new("/proc/self/mem")).unwrap();
        let mut buffer = vec![1; 2 * PAGE];
        assert_eq!(read(&memory, at as u64, &mut buffer[..PAGE]).unwrap(), PAGE);
        assert_eq!(read(&memory, at as u64, &mut buffer).unwrap_err().errno, Errno::EIO);
        // SAFETY: the first of the pages mapped above.
        unsafe { munmap(at, PAGE).unwrap() };
    }
}
