//! Durable changes of files in a directory: what has returned is there after a power cut, whole or not at all.
//!
//! Every file is written and fsynced under a temporary name first and then published under its own. To *replace* is a
//! rename. To *create if absent* needs a primitive that refuses an existing name, and stores differ in which of them
//! they keep: [`Exclusive::prove`] tries them on the store itself. A file is named by a [`Location`]: a plain path, or one below
//! a store's directory, where no link is followed. Temporary files begin with [`TEMPORARY_PREFIX`]; a
//! crash may leave some behind, and [`remove_leftovers`] removes them.
//!
//! Every change of the store, here and through [`File`], can be recorded, to try what a loss of power would leave
//! ([`crate::power_loss`]). So nothing that is to survive is changed past this module.

mod copy;
mod exclusive;
mod file;
pub(crate) mod journal;
mod location;

pub use copy::copy_whole;
pub use exclusive::Exclusive;
pub use file::{File, FileOptions};
pub use location::{Entry, Location};

use crate::printable::printable_path;
use crate::random;
use journal::NodeKind;
use rustix::fs::{AtFlags, Mode};
use std::ffi::OsStr;
use std::fs::Permissions;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

/// Names that begin so belong to this module; they are never listed and never given to others.
pub const RESERVED_PREFIX: &str = ".~";
/// A file being written.
pub const TEMPORARY_PREFIX: &str = ".~tmp.";

/// Longer than any file that people or servers write for Varve to read whole: the record of a server with the most
/// workers has some 60 KiB. What is longer is something else, and is not taken into memory.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Reads a short text, such as the volume file; refuses what is not one.
pub fn read_text<L: Location + ?Sized>(path: &L) -> io::Result<String> {
    text_of(path.open_file(&File::options().read(true))?)
}

/// [`read_text`] of a file that is open.
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

/// Copied at a time.
const COPY_BYTES: usize = 1024 * 1024;

/// Makes the entries of `directory` durable.
pub fn sync_directory<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    let opened = directory.open_directory()?;
    let Some(journal) = journal::of(directory.shown()) else { return opened.sync_all() };
    let target = journal.change(|record| record.node_at(directory.shown()));
    let unknown = || io::Error::other(format!("{} is not recorded", directory.shown().display()));
    journal.sync(journal::SyncTarget::Node(target.ok_or_else(unknown)?));
    Ok(())
}

/// Makes everything durable that was changed in the file system of `directory`: syncfs(2).
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

/// Removes a file's name; of a link, the link. Not durable by itself.
pub fn remove_file<L: Location + ?Sized>(path: &L) -> io::Result<()> {
    unlink(path, AtFlags::empty())
}

fn unlink<L: Location + ?Sized>(path: &L, flags: AtFlags) -> io::Result<()> {
    let entry = path.entry()?;
    let removed = || Ok(rustix::fs::unlinkat(entry.fd(), &entry.name, flags)?);
    journal::changing(path.shown(), removed, |record| record.remove(path.shown()))
}

/// Renames within one file system, replacing. Not durable by itself.
pub fn rename<L: Location + ?Sized, M: Location + ?Sized>(from: &L, to: &M) -> io::Result<()> {
    let (old, new) = (from.entry()?, to.entry()?);
    let renamed = || Ok(rustix::fs::renameat(old.fd(), &old.name, new.fd(), &new.name)?);
    journal::changing(to.shown(), renamed, |record| record.rename(from.shown(), to.shown()))
}

/// Two names change places, by one rename: `Unsupported` where the file system does not know how. Not durable by itself.
pub fn exchange<L: Location + ?Sized, M: Location + ?Sized>(one: &L, other: &M) -> io::Result<()> {
    use rustix::io::Errno;
    let (old, new) = (one.entry()?, other.entry()?);
    let flags = rustix::fs::RenameFlags::EXCHANGE;
    match rustix::fs::renameat_with(old.fd(), &old.name, new.fd(), &new.name, flags) {
        // As of many cluster file systems.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => Err(io::ErrorKind::Unsupported.into()),
        exchanged => Ok(exchanged?),
    }
}

/// Gives the file `from` the name `to` too. Not durable by itself.
pub fn link<L: Location + ?Sized, M: Location + ?Sized>(from: &L, to: &M) -> io::Result<()> {
    let (old, new) = (from.entry()?, to.entry()?);
    let linked = || Ok(rustix::fs::linkat(old.fd(), &old.name, new.fd(), &new.name, AtFlags::empty())?);
    journal::changing(to.shown(), linked, |record| record.link(from.shown(), to.shown()))
}

/// Makes a directory, below a store with mode 0700. Not durable by itself.
pub fn create_directory<L: Location + ?Sized>(path: &L) -> io::Result<()> {
    make_directory(path, path.directory_mode())
}

/// Makes a directory of this mode, whatever the process's umask. Not durable by itself.
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

/// Keeps the bits that are above those of permission, such as the set-group-id bit that a directory inherits.
fn set_directory_mode<L: Location + ?Sized>(path: &L, mode: u32) -> io::Result<()> {
    let found = path.look()?.mode();
    if found & 0o777 == mode {
        return Ok(());
    }
    // It may be closed to its own owner, who cannot open it then.
    let entry = path.entry()?;
    let set = rustix::fs::chmodat(
        entry.fd(),
        &entry.name,
        Mode::from_raw_mode(found & 0o7000 | mode),
        AtFlags::SYMLINK_NOFOLLOW,
    );
    match set {
        // A kernel before 6.6.
        Err(rustix::io::Errno::OPNOTSUPP) => {
            let opened = path.open_directory()?;
            opened.set_permissions(Permissions::from_mode(found & 0o7000 | mode))
        }
        set => Ok(set?),
    }
}

/// Makes the file `to`, with the content of `from`, and fsyncs it; its name is not durable yet.
pub(crate) fn copy_synced<L: Location + ?Sized, M: Location + ?Sized>(from: &L, to: &M) -> io::Result<()> {
    let mut source = BufReader::with_capacity(COPY_BYTES, from.open_file(&File::options().read(true))?);
    let target = File::options().write(true).create_new().open(to)?;
    let copied = io::copy(&mut source, &mut file::SequentialWriter::to(&target)).and_then(|_| target.sync_all());
    if copied.is_err() {
        // As in `write_synced`.
        let _ = remove_file(to);
    }
    copied
}

/// Removes a directory that holds nothing. Not durable by itself.
pub fn remove_empty_directory<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    unlink(directory, AtFlags::REMOVEDIR)
}

/// Removes a directory and all it holds; of a link to one, the link alone. Not durable by itself.
pub fn remove_tree<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    if directory.look()?.is_symlink() {
        return remove_file(directory);
    }
    remove_content(directory)?;
    remove_empty_directory(directory)
}

/// Removes all that a directory holds. Not durable by itself.
pub fn remove_content<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    for (name, is_directory) in directory.list()? {
        let path = directory.child(&name);
        if is_directory { remove_tree(&path)? } else { remove_file(&path)? }
    }
    Ok(())
}

/// Makes `directory` and those above it that are missing, durably. Below a store's directory, none above that one.
pub fn create_directories<L: Location + ?Sized>(directory: &L) -> io::Result<()> {
    create_missing(directory, None)
}

/// [`create_directories`] of what is missing below `root` alone: no new root takes the name of one that was moved away or
/// unmounted.
///
/// # Errors
/// Where `root` is not there.
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
        // Some file systems (proc) say so of a directory that may not be made, too.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !directory.around().is_directory() => {
            // A store's own directory is in none.
            if directory.around().shown() == directory.shown() {
                return Err(error);
            }
            create_missing(&directory.around(), root)?;
            create_directory(directory)
        }
        Err(error) => Err(error),
    }
}

/// A fresh temporary name in `directory`.
pub fn temporary<L: Location + ?Sized>(directory: &L) -> L::Owned {
    directory.child(OsStr::new(&format!("{TEMPORARY_PREFIX}{:016x}", random::number())))
}

/// Writes the file `path`, which must not exist, and fsyncs it; its name is not durable yet. A file that could not be
/// written whole is removed.
pub fn write_synced<L: Location + ?Sized>(path: &L, content: &[u8], mode: u32) -> io::Result<()> {
    write_parts_synced(path, &[content], mode)
}

fn write_parts_synced<L: Location + ?Sized>(path: &L, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    let file = File::options().write(true).create_new().mode(mode).open(path)?;
    let written = write_parts(&file, parts.iter().copied()).and_then(|()| file.sync_all());
    if written.is_err() {
        // The error that matters is the one of the write; a leftover is removed at the next start.
        let _ = remove_file(path);
    }
    written
}

/// Writes parts into an empty file, one after the other.
pub(crate) fn write_parts<'a>(file: &File, mut parts: impl Iterator<Item = &'a [u8]>) -> io::Result<()> {
    let mut output = file::SequentialWriter::to(file);
    parts.try_for_each(|part| output.write_all(part))
}

/// Makes `path` with all of `content`, durably, unless it exists: then the error is `AlreadyExists`, and the file is
/// another's. Of several processes exactly one succeeds.
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
    // Looked at first, because losing is common (a manifest's name is raced for) and writing is not free.
    if path.look().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let temporary = temporary(&path.around());
    write_parts_synced(&temporary, parts, mode)?;
    publish_if_absent(exclusive, &temporary, path)
}

/// Gives the complete and fsynced file `temporary` the name `path` unless it is taken, durably. The temporary name is
/// gone afterwards in either case.
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

/// Makes `path` with all of `content`, or replaces it, durably: a reader sees the old file or the new one.
pub fn replace<L: Location + ?Sized>(path: &L, content: &[u8]) -> io::Result<()> {
    replace_with_mode(path, &[content], FILE_MODE)
}

/// [`replace`] with content in parts and a mode.
pub fn replace_with_mode<L: Location + ?Sized>(path: &L, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    let temporary = temporary(&path.around());
    write_parts_synced(&temporary, parts, mode)?;
    publish_replacing(&temporary, path)
}

/// [`replace`] for a store that has no room left: the content goes into the blocks of `room`, a file of no meaning in the
/// same directory, which keeps them if they are too few.
pub fn replace_into<L: Location + ?Sized, M: Location + ?Sized>(room: &L, path: &M, content: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(room)?;
    let length = content.len() as u64;
    file.write_all_at(content, 0).and_then(|()| file.set_len(length)).and_then(|()| file.sync_all())?;
    rename(room, path)?;
    sync_directory(&path.around())
}

/// Gives the complete and fsynced file `temporary` the name `path`, durably, whatever had it.
pub fn publish_replacing<L: Location + ?Sized, M: Location + ?Sized>(temporary: &L, path: &M) -> io::Result<()> {
    if let Err(error) = rename(temporary, path) {
        let _ = remove_file(temporary);
        return Err(error);
    }
    sync_directory(&path.around())
}

/// Removes the temporary files that crashes left in `directory`. Only for the one process that holds the volume's lock:
/// another's unfinished file would go too. Returns how many were removed.
pub fn remove_leftovers<L: Location + ?Sized>(directory: &L) -> io::Result<u64> {
    let mut removed = 0;
    for (name, is_directory) in directory.list()? {
        if !is_directory && name.as_encoded_bytes().starts_with(TEMPORARY_PREFIX.as_bytes()) {
            remove_file(&directory.child(&name)).or_else(ignore_absent)?;
            removed += 1;
        }
    }
    Ok(removed)
}

/// Opens `path` for locking, made if need be and never truncated, not inherited by children. Closed to other users, for who may
/// read a file may lock it for as long as he likes; but not under another name of something else, which is not ours to close.
pub fn open_lock_file<L: Location + ?Sized>(path: &L) -> io::Result<std::fs::File> {
    let file = File::options().read(true).write(true).create().mode(LOCK_FILE_MODE).no_follow().open(path)?;
    let found = file.metadata()?;
    if found.mode() & 0o077 != 0
        && found.nlink() == 1
        && let Err(error) = file.set_permissions(Permissions::from_mode(LOCK_FILE_MODE))
    {
        tracing::debug!("{} stays open to others, who may lock it: {error}", printable_path(path.shown()));
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
