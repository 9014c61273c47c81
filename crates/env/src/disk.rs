//! Durable, atomic changes of files in a directory: once a call has returned, its change survives a power loss,
//! completely or not at all.
//!
//! Every file is written and fsynced under a temporary name first and then published under its own. *Replace* is a
//! rename. *Create if absent* needs a primitive that refuses an existing name, and file systems differ in the
//! primitives they implement correctly: [`Exclusive::prove`] tries them on the store itself. A [`Location`] names a
//! file: a plain path, or a path below a store's directory, on which no link is followed. Temporary names begin with
//! [`TEMPORARY_PREFIX`] and the number of their writer ([`WriterId`]); a crash may leave some behind, and
//! [`remove_leftovers`] removes those of dead writers.
//!
//! Every change of the store, here and through [`File`], can be recorded, to test the states that a power loss may
//! leave ([`crate::power_loss`]). So every durable change must go through this module.

mod copy;
mod current_size;
mod exclusive;
mod file;
pub(crate) mod journal;
mod location;
mod store_clock;
mod writer_id;

pub use copy::copy_whole;
pub use current_size::{CurrentSize, SizeQuery};
pub use exclusive::{Exclusive, add_name};
pub use file::{File, FileOptions};
pub use location::{Entry, Location};
pub use store_clock::{CLOCK_SKEW_S_MAX, store_clock_ahead_s};
pub use writer_id::WriterId;

use crate::printable::printable_path;
use crate::stop_point::{self, StopPoint};
use journal::NodeKind;
use rustix::fs::{AtFlags, Mode};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Names with this prefix belong to this module. They are never listed, and callers cannot use them.
pub const RESERVED_PREFIX: &str = ".~";
/// Prefix of files that are being written.
pub const TEMPORARY_PREFIX: &str = ".~tmp.";

/// Larger than any file that users or servers write for Varve to read whole: the record of a server with the maximum
/// number of workers has about 60 KiB. A longer file is something else and is not read into memory.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Reads a short text file, such as the volume file; refuses a file that is too long or not UTF-8.
pub fn read_text<L: Location + ?Sized>(path: &L) -> io::Result<String> {
    text_of(path.open_file(&File::options().read(true))?)
}

/// [`read_text`] of an open file.
pub(crate) fn text_of(file: std::fs::File) -> io::Result<String> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut bytes = Vec::new();
    file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(invalid(format!("it has more than {TEXT_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| invalid(format!("it is not text: {error}")))
}

/// Mode of files that hold no secret.
pub const FILE_MODE: u32 = 0o644;
const LOCK_FILE_MODE: u32 = 0o600;

/// Makes the entries of `directory` durable.
pub fn sync_directory<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    let opened = directory.open_directory()?;
    let Some(journal) = journal::of(directory.shown()) else { return opened.sync_all() };
    let target = journal.change(|record| record.node_at(directory.shown()));
    let unknown = || io::Error::other(format!("{} is not recorded", directory.shown().display()));
    journal.sync(journal::SyncTarget::Node(target.ok_or_else(unknown)?));
    Ok(())
}

/// Makes all changes in the file system of `directory` durable: syncfs(2).
pub fn sync_file_system<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    let opened = directory.open_directory()?;
    match journal::of(directory.shown()) {
        None => Ok(rustix::fs::syncfs(&opened)?),
        Some(journal) => {
            journal.sync(journal::SyncTarget::Everything);
            Ok(())
        }
    }
}

/// Removes a file's name, or the link itself if the name is a link. Not durable by itself.
pub fn remove_file<L: Location + ?Sized>(path: &L) -> io::Result<()> {
    unlink(path, AtFlags::empty())
}

fn unlink<L: Location + ?Sized>(path: &L, flags: AtFlags) -> io::Result<()> {
    let entry = path.entry()?;
    let removed = || Ok(rustix::fs::unlinkat(entry.fd(), &entry.name, flags)?);
    journal::changing(path.shown(), removed, |record| record.remove(path.shown()))
}

/// Renames within one file system, replacing the target. Not durable by itself.
pub fn rename<L: Location + ?Sized, M: Location + ?Sized>(from: &L, to: &M) -> io::Result<()> {
    let (old, new) = (from.entry()?, to.entry()?);
    let renamed = || Ok(rustix::fs::renameat(old.fd(), &old.name, new.fd(), &new.name)?);
    journal::changing(to.shown(), renamed, |record| record.rename(from.shown(), to.shown()))
}

/// Exchanges two names in one rename; fails with `Unsupported` if the file system cannot. Not durable by itself.
pub fn exchange<L: Location + ?Sized, M: Location + ?Sized>(one: &L, other: &M) -> io::Result<()> {
    use rustix::io::Errno;
    let (old, new) = (one.entry()?, other.entry()?);
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    match rustix::fs::renameat_with(old.fd(), &old.name, new.fd(), &new.name, flags) {
        // Many cluster file systems return one of these.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
        exchanged => Ok(exchanged?),
    }
}

/// Adds the name `to` for the file `from`. Not durable by itself.
pub fn link<L: Location + ?Sized, M: Location + ?Sized>(from: &L, to: &M) -> io::Result<()> {
    let (old, new) = (from.entry()?, to.entry()?);
    let linked = || Ok(rustix::fs::linkat(old.fd(), &old.name, new.fd(), &new.name, AtFlags::empty())?);
    journal::changing(to.shown(), linked, |record| record.link(from.shown(), to.shown()))
}

/// Creates a directory, below a store with mode 0700. Not durable by itself.
pub fn create_directory<L: Location + ?Sized>(path: &L) -> io::Result<()> {
    make_directory(path, path.directory_mode())
}

/// Creates a directory with this mode, regardless of the process's umask. Not durable by itself.
pub fn create_directory_with_mode<L: Location + ?Sized>(path: &L, mode: u32) -> io::Result<()> {
    make_directory(path, Some(mode))
}

fn make_directory<L: Location + ?Sized>(path: &L, mode: Option<u32>) -> io::Result<()> {
    let entry = path.entry()?;
    let made = || {
        rustix::fs::mkdirat(entry.fd(), &entry.name, Mode::from_raw_mode(mode.unwrap_or(0o777)))?;
        mode.map_or(Ok(()), |mode| set_directory_mode(path, mode))
    };
    journal::changing(path.shown(), made, |record| record.create(path.shown(), NodeKind::Directory))
}

/// Keeps the bits above the permission bits, such as the set-group-id bit that a directory inherits.
fn set_directory_mode<L: Location + ?Sized>(path: &L, mode: u32) -> io::Result<()> {
    let found = path.look()?.mode();
    if found & 0o777 == mode {
        return Ok(());
    }
    // The directory's mode may deny access to its owner, who then cannot open it.
    let entry = path.entry()?;
    let set = rustix::fs::chmodat(
        entry.fd(),
        &entry.name,
        Mode::from_raw_mode(found & 0o7000 | mode),
        AtFlags::SYMLINK_NOFOLLOW,
    );
    match set {
        // Kernels before 6.6 return this.
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let opened = path.open_directory()?;
            opened.set_permissions(Permissions::from_mode(found & 0o7000 | mode))
        }
        set => Ok(set?),
    }
}

/// Removes an empty directory. Not durable by itself.
pub fn remove_empty_directory<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    unlink(directory, AtFlags::REMOVEDIR)
}

/// Removes a directory and its content; if it is a link to a directory, only the link. Not durable by itself.
pub fn remove_tree<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    if directory.look()?.is_symlink() {
        return remove_file(directory);
    }
    remove_content(directory)?;
    remove_empty_directory(directory)
}

/// Removes the content of a directory. Not durable by itself.
pub fn remove_content<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    for (name, is_directory) in directory.list()? {
        let path = directory.child(&name);
        if is_directory { remove_tree(&path)? } else { remove_file(&path)? }
    }
    Ok(())
}

/// Creates `directory` and its missing parents, durably. Below a store's directory, it creates none above that
/// directory.
pub fn create_directories<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    create_missing(directory, None)
}

/// [`create_directories`], but only for what is missing below `root`: it never creates a new root in place of one that
/// was moved away or unmounted.
///
/// # Errors
/// If `root` does not exist.
pub fn create_directories_below<L: Location + ?Sized>(root: &L, directory: &L) -> io::Result<()> {
    create_missing(directory, Some(root.shown()))
}

fn create_missing<L: Location + ?Sized>(directory: &L, root: Option<&Path>) -> io::Result<()> {
    if root == Some(directory.shown()) {
        return if directory.is_directory() { Ok(()) } else { Err(rustix::io::Errno::NOENT.into()) };
    }
    match create_directory(directory) {
        Ok(()) => sync_directory(&directory.around()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_directory() => Ok(()),
        // Some file systems (proc) also return this for a directory that may not be created.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.around().is_directory() => {
            // A store's own directory has no parent here.
            if directory.around().shown() == directory.shown() {
                return Err(error);
            }
            create_missing(&directory.around(), root)?;
            create_directory(directory)
        }
        Err(error) => Err(error),
    }
}

/// A new temporary name in `directory`.
pub fn temporary<L: Location + ?Sized>(directory: &L) -> L::Owned {
    directory.child(OsStr::new(&temporary_name()))
}

fn temporary_name() -> String {
    WriterId::of_this_process().temporary_name()
}

/// Writes the file `path`, which must not exist, and fsyncs it; its name is not durable yet. If the write fails, the
/// incomplete file is removed.
pub fn write_synced<L: Location + ?Sized>(path: &L, content: &[u8], mode: u32) -> io::Result<()> {
    write_parts_synced(path, &[content], mode)
}

fn write_parts_synced<L: Location + ?Sized>(path: &L, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    let file = File::options().write(true).create_new().mode(mode).open(path)?;
    let written = write_parts(&file, parts.iter().copied()).and_then(|()| file.sync_all());
    if written.is_err() {
        // The caller needs the error of the write; the next start removes a leftover.
        let _ = remove_file(path);
    }
    written
}

/// Writes parts into an empty file, in order.
pub(crate) fn write_parts<'a>(file: &File, mut parts: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    let mut output = file::SequentialWriter::to(file);
    parts.try_for_each(|part| output.write_all(part))
}

/// Creates `path` with `content`, durably. If `path` exists, it fails with `AlreadyExists` and leaves the file alone.
/// Of several processes exactly one succeeds.
pub fn create_if_absent<L: Location + ?Sized>(exclusive: Exclusive, path: &L, content: &[u8]) -> io::Result<()> {
    create_if_absent_with_mode(exclusive, path, &[content], FILE_MODE)
}

/// [`create_if_absent`] with content in parts and a mode.
pub fn create_if_absent_with_mode<L: Location + ?Sized>(
    exclusive: Exclusive,
    path: &L,
    parts: &[&[u8]],
    mode: u32,
) -> io::Result<()> {
    // Check first, because losing is common (several processes race for a manifest's name) and a write is expensive.
    if path.look().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let temporary = temporary(&path.around());
    write_parts_synced(&temporary, parts, mode)?;
    publish_if_absent(exclusive, &temporary, path)
}

/// Renames the complete and fsynced file `temporary` to `path`, durably, unless `path` exists. The temporary name is
/// removed in both cases.
pub fn publish_if_absent<L: Location + ?Sized, M: Location + ?Sized>(
    exclusive: Exclusive,
    temporary: &L,
    path: &M,
) -> io::Result<()> {
    if let Err(error) = exclusive.publish(temporary, path) {
        let _ = remove_file(temporary);
        return Err(error);
    }
    sync_directory(&path.around())
}

/// Creates or replaces `path` with `content`, durably: a reader sees the old file or the new one.
pub fn replace<L: Location + ?Sized>(path: &L, content: &[u8]) -> io::Result<()> {
    replace_with_mode(path, &[content], FILE_MODE)
}

/// [`replace`] with content in parts and a mode.
pub fn replace_with_mode<L: Location + ?Sized>(path: &L, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    let temporary = temporary(&path.around());
    write_parts_synced(&temporary, parts, mode)?;
    publish_replacing(&temporary, path)
}

/// [`replace`] for a store without free space: writes the content into the blocks of `room`, a placeholder file in the
/// same directory. If the blocks are too few, `room` keeps them.
pub fn replace_into<L: Location + ?Sized, M: Location + ?Sized>(room: &L, path: &M, content: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(room)?;
    let length = content.len() as u64;
    file.write_all_at(content, 0).and_then(|()| file.set_len(length)).and_then(|()| file.sync_all())?;
    rename(room, path)?;
    sync_directory(&path.around())
}

/// Renames the complete and fsynced file `temporary` to `path`, durably, replacing any file there.
pub fn publish_replacing<L: Location + ?Sized, M: Location + ?Sized>(temporary: &L, path: &M) -> io::Result<()> {
    stop_point::reach(StopPoint::ReplaceWritten);
    if let Err(error) = rename(temporary, path) {
        let _ = remove_file(temporary);
        return Err(error);
    }
    sync_directory(&path.around())
}

/// Removes the temporary files that crashes left in `directory`, except those of the writers in `living`. Returns the
/// number of removed files. A name without a writer is one of an earlier program, which has ended.
pub fn remove_leftovers<L: Location + ?Sized>(directory: &L, living: &[WriterId]) -> io::Result<u64> {
    let mut removed = 0;
    for (name, is_directory) in directory.list()? {
        let is_temporary = name.as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes());
        if !is_temporary || WriterId::of_temporary(&name).is_some_and(|writer| living.contains(&writer)) {
            continue;
        }
        let path = directory.child(&name);
        // The directory of a race for names (`Exclusive::prove`) is a temporary one.
        let gone = if is_directory { remove_tree(&path) } else { remove_file(&path) };
        gone.or_else(ignore_absent)?;
        removed += 1;
    }
    Ok(removed)
}

/// Opens `path` for locking, close-on-exec; creates it if missing and never truncates it. Denies access to other users,
/// because a user who can read the file can lock it indefinitely. The mode is not changed if the file has another name
/// (hard link), because it may then belong to something else.
pub fn open_lock_file<L: Location + ?Sized>(path: &L) -> io::Result<std::fs::File> {
    let file = File::options().read(true).write(true).create().mode(LOCK_FILE_MODE).no_follow().open(path)?;
    let found = file.metadata()?;
    if found.mode() & 0o077 != 0
        && found.nlink() == 1
        && let Err(error) = file.set_permissions(Permissions::from_mode(LOCK_FILE_MODE))
    {
        tracing::debug!("cannot close {} to other users, who may lock it: {error}", printable_path(path.shown()));
    }
    Ok(file.into_lock())
}

/// The directory that holds `path`.
pub fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    }
}

fn ignore_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests;
