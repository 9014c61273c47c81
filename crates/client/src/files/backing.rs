//! Backing files: the store's own files behind large files.

use crate::calls::Core;
use crate::{Failure, Result};
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use varve_types::{Attributes, Credentials, Errno, InodeId, Timestamp};
use varve_world::disk::{self, File};

/// Until it has its owner, a backing file is the volume owner's alone.
const BACKING_MODE_FIRST: u32 = 0o600;

/// Permission bits that a backing file takes over; set-id bits mean nothing in the store.
const BACKING_MODE_BITS: u32 = 0o777;

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
    std::fs::metadata(core.config.store.backing_file(inode)).ok().map(|metadata| metadata.blocks())
}

/// Opens the backing file of `inode`, for writing too where the store lets us.
pub(crate) fn open(core: &Core, inode: InodeId) -> Result<File> {
    let path = core.config.store.backing_file(inode);
    let away = || Failure::away(&core.config.store.data());
    let in_place = || core.config.store.data_in_place().map_err(|_| away());
    in_place()?;
    let opened = File::options().read(true).write(!core.config.read_only).open(&path).or_else(|error| {
        let read_only = matches!(error.raw_os_error(), Some(libc::EACCES | libc::EROFS | libc::EPERM));
        if read_only { File::open(&path) } else { Err(error) }
    });
    in_place()?;
    let shown = path.display();
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound if core.config.store.lacks(&path).is_ok_and(|none| none) => {
            let advice = "restore it from a copy, or have `varve fsck --repair` set the file apart";
            Failure::new(Errno::EIO, format!("the content of inode {inode} is gone: there is no {shown}; {advice}"))
        }
        io::ErrorKind::NotFound => away(),
        _ => Failure::store(&format!("cannot open the backing file {shown}"), &error),
    })
}

/// Makes the backing file of `inode` with `content`, durably: file and name are on disk. What a crash left there goes.
pub(crate) fn create(core: &Core, inode: InodeId, attributes: &Attributes, content: &[u8]) -> Result<File> {
    let store = &core.config.store;
    let path = store.backing_file(inode);
    let made = || -> io::Result<File> {
        let directory = store.backing_directory(inode);
        // An error where the store is away: another directory in its place, such as a bare mount point, is not it.
        store.lacks(&path)?;
        disk::create_directories_below(store.root(), &directory)?;
        let options = File::options().read(true).write(true).create_empty().mode(BACKING_MODE_FIRST);
        let file = options.open(&path)?;
        if core.settings.owner_uid == Credentials::ROOT_UID && rustix::process::geteuid().is_root() {
            file.set_owner(attributes.uid, attributes.gid)?;
            let mode = u32::from(attributes.mode.bits()) & BACKING_MODE_BITS;
            file.set_permissions(Permissions::from_mode(mode))?;
        }
        file.write_all_at(content, 0)?;
        file.sync_all()?;
        disk::sync_directory(&directory)?;
        // It may have gone since.
        if store.lacks(&path)? { Err(io::ErrorKind::NotFound.into()) } else { Ok(file) }
    };
    made().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::away(&store.data()),
        _ => Failure::store(&format!("cannot make the backing file {}", path.display()), &error),
    })
}

/// Reads until `buffer` is full or the file ends.
pub(crate) fn read(file: &File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(Failure::store("cannot read a backing file", &error)),
        }
    }
    Ok(done)
}

/// Writes all of `data`, or as much as the store takes.
pub(crate) fn write(file: &File, offset: u64, data: &[u8]) -> Result<usize> {
    let mut done = 0;
    while done < data.len() {
        match file.write_at(&data[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(Failure::store("cannot write a backing file", &error)),
        }
    }
    Ok(done)
}
