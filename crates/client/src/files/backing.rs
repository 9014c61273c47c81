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

/// Until it has its owner, a backing file is the volume owner's alone.
const BACKING_MODE_FIRST: u32 = 0o600;

/// Size, time and blocks of a backing file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BackingStat {
    pub size: u64,
    pub mtime: Timestamp,
    pub blocks: u64,
}

pub(crate) fn stat(file: &File) -> Result<BackingStat> {
    let metadata = file.metadata().map_err(|error| Failure::store("cannot stat a backing file", &error))?;
    let mtime = Timestamp { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() as u32 };
    Ok(BackingStat { size: metadata.size(), mtime, blocks: metadata.blocks() })
}

/// What the backing file of `inode` takes up, in 512-byte blocks. `None`: the store does not say, which matters to nobody
/// but du(1).
pub(crate) fn blocks(core: &Core, inode: InodeId) -> Option<u64> {
    core.reactor.hand_off_reactor();
    core.config.store.backing_file(inode).metadata().ok().map(|metadata| metadata.blocks())
}

/// Opens the backing file of `inode`, for writing too where the store lets us.
pub(crate) fn open(core: &Core, inode: InodeId) -> Result<File> {
    let path = core.config.store.backing_file(inode);
    let unreachable = || Failure::unreachable(core.config.store.data().path());
    // From here on it is looked up from the directory that is held, whatever takes that one's place.
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

/// The place of a backing file that its row may not know of yet. Whoever has it is the only one who fills it: of clients that
/// let a small file outgrow its row, one does after the other. The kernel lets go of it when the process ends.
pub(crate) struct Making {
    pub file: Arc<File>,
    /// Nobody had begun it before.
    is_new: bool,
    _locked: Locked,
}

impl Making {
    /// Changes nothing of a file that is there. `None` while another client has it.
    pub fn begin(core: &Core, inode: InodeId) -> Result<Option<Making>> {
        let store = &core.config.store;
        let path = store.backing_file(inode);
        let begun = || -> io::Result<Option<Making>> {
            // An error where the store is away: another directory in its place, such as a bare mount point, is not it.
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
            // To write: NFS locks a file for itself alone only for who may.
            let to_lock = File::options().read(true).write(true).open(&path)?.into_lock();
            match Locked::take(to_lock, FlockOperation::NonBlockingLockExclusive) {
                // Who had it has given it up meanwhile, and the name with it.
                Ok(_) if file.metadata()?.nlink() == 0 => Ok(None),
                Ok(_locked) => {
                    // Another client may have had it in between.
                    let is_new = is_new && file.metadata()?.size() == 0;
                    Ok(Some(Making { file, is_new, _locked }))
                }
                Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        begun().or_else(|error| match error.kind() {
            // Given up just before it was locked here, if the store is there.
            io::ErrorKind::NotFound if store.lacks(&path).is_ok() && store.data_in_place().is_ok() => Ok(None),
            _ => Err(cannot_make(core, inode, &error)),
        })
    }

    /// Makes `content` the file's, and zeros behind it up to `length`, durably: file and name are on disk. What a crash left
    /// there goes; the row says that its content is not here.
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
            // It may have gone since.
            if store.lacks(&store.backing_file(inode))? { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) }
        };
        filled().map_err(|error| cannot_make(core, inode, &error))
    }

    /// Takes away what was begun, where no row says that it is there, nor will; but not where somebody had begun it
    /// before, who may have told the row of it without being told so.
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
            tracing::warn!(file = %path.display(), %error, "what was begun of a backing file stays");
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

/// Reads until `buffer` is full or the file ends. An error, whatever was read before it: who reads on behalf of a page cache takes
/// fewer bytes for the file's end.
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

/// Writes all of `data`, or as much as the store takes.
pub(crate) fn write(file: &File, offset: u64, data: &[u8]) -> Result<usize> {
    put(data, |rest, done| file.write_at(rest, offset + done))
}

/// Puts all of `data`, or as much as the store takes, to where the file ends, whoever else does so too.
pub(crate) fn append(file: &File, data: &[u8]) -> Result<usize> {
    put(data, |rest, _| file.append(rest))
}

/// `write` is given what is left, and how much is done.
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
    // Which cuts nothing, should another client have extended it meanwhile.
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

    /// Promise: what cannot be read is not taken for the end of the file, whatever could be read before it.
    #[test]
    fn partial_write_error_is_reported() {
        const PAGE: usize = 4096;
        // A process's own memory reads as a file of which the part that is not mapped cannot be read.
        // SAFETY: two new pages, of which the second goes at once and nobody uses the first.
        let at = unsafe {
            let at = mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, ProtFlags::READ, MapFlags::PRIVATE).unwrap();
            munmap(at.byte_add(PAGE), PAGE).unwrap();
            at
        };
        let memory = File::open(Path::new("/proc/self/mem")).unwrap();
        let mut buffer = vec![1; 2 * PAGE];
        assert_eq!(read(&memory, at as u64, &mut buffer[..PAGE]).unwrap(), PAGE);
        assert_eq!(read(&memory, at as u64, &mut buffer).unwrap_err().errno, Errno::EIO);
        // SAFETY: the first of the pages made above.
        unsafe { munmap(at, PAGE).unwrap() };
    }
}
