//! Durable changes of files in a directory: what has returned is there after a power cut, whole or not at all.
//!
//! Every file is written and fsynced under a temporary name first and then published under its own. To *replace* is a
//! rename. To *create if absent* needs a primitive that refuses an existing name, and stores differ in which of them
//! they keep: [`Exclusive::prove`] tries them on the store itself. Temporary files begin with [`TEMPORARY_PREFIX`]; a
//! crash may leave some behind, and [`remove_leftovers`] removes them.
//!
//! Every change of the store, here and through [`File`], can be recorded, to try what a loss of power would leave
//! ([`crate::power_loss`]). So nothing that is to survive is changed past this module.

mod copy;
mod file;
pub(crate) mod journal;

pub use copy::copy_whole;
pub use file::{File, Options};

use crate::random;
use journal::NodeKind;
use rustix::fs::{AtFlags, CWD, RenameFlags};
use std::fs::Permissions;
use std::io::{self, BufReader, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Names that begin so belong to this module; they are never listed and never given to others.
pub const RESERVED_PREFIX: &str = ".~";
/// A file being written.
pub const TEMPORARY_PREFIX: &str = ".~tmp.";
/// What a published symlink points to, on stores that have no better primitive.
pub const CONTENT_PREFIX: &str = ".~content.";

/// Longer than any file that people or servers write for Varve to read whole: the record of a server with the most
/// workers has some 60 KiB. What is longer is something else, and is not taken into memory.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Reads a short text, such as the volume file; refuses what is not one.
pub fn read_text(path: &Path) -> io::Result<String> {
    let invalid = |reason: String| io::Error::new(io::ErrorKind::InvalidData, reason);
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(invalid(format!("it has more than {TEXT_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| invalid(format!("it is not text: {error}")))
}

/// The primitive that publishes a file under a name only if the name is free, at most one winner among any number of
/// processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusive {
    /// `renameat2(RENAME_NOREPLACE)`.
    RenameNoReplace,
    /// `link` to the new name, then `unlink` of the temporary one.
    Link,
    /// The file stays under a reserved name and the new name is a symlink to it.
    Symlink,
}

impl Exclusive {
    const ALL: [Exclusive; 3] = [Exclusive::RenameNoReplace, Exclusive::Link, Exclusive::Symlink];

    /// The first primitive that, tried in `directory`, publishes under a free name and refuses a taken one.
    pub fn prove(directory: &Path) -> io::Result<Exclusive> {
        for primitive in Exclusive::ALL {
            if primitive.works(directory)? {
                return Ok(primitive);
            }
        }
        Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!(
                "the store at {} has neither renameat2 without replacing, nor link, nor symlink: \
                 a file cannot be created there by exactly one of several processes",
                directory.display()
            ),
        ))
    }

    /// The files that it is tried with are empty: a store that is full has room for names, mostly.
    fn works(self, directory: &Path) -> io::Result<bool> {
        let (first, second, name) = (temporary(directory), temporary(directory), temporary(directory));
        let tried = write_synced(&first, b"", FILE_MODE).and_then(|()| write_synced(&second, b"", FILE_MODE));
        let works = tried.and_then(|()| {
            let file = |path: &Path| path.metadata().map(|metadata| (metadata.dev(), metadata.ino()));
            let own = file(&first)?;
            let published = self.publish(&first, &name);
            let refused = self.publish(&second, &name);
            let holds_first = file(&name).is_ok_and(|found| found == own);
            let taken = refused.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists);
            Ok(published.is_ok() && holds_first && taken)
        });
        for path in [&first, &second, &name] {
            remove_published(path).or_else(ignore_absent)?;
        }
        works
    }

    /// Gives the complete and fsynced file `temporary` the name `name`, in the same directory, unless it is taken
    /// (`AlreadyExists`; the temporary file is still there then).
    fn publish(self, temporary: &Path, name: &Path) -> io::Result<()> {
        match self {
            Exclusive::RenameNoReplace => journal::changing(
                name,
                || Ok(rustix::fs::renameat_with(CWD, temporary, CWD, name, RenameFlags::NOREPLACE)?),
                |record| record.rename(temporary, name),
            )?,
            Exclusive::Link => {
                journal::changing(
                    name,
                    || Ok(rustix::fs::linkat(CWD, temporary, CWD, name, AtFlags::empty())?),
                    |record| record.link(temporary, name),
                )?;
                remove_file(temporary)?;
            }
            Exclusive::Symlink => {
                // The symlink's target must not look like a leftover, and must carry its name before it is pointed to.
                let content = sibling(temporary, &format!("{CONTENT_PREFIX}{:016x}", random::number()));
                rename(temporary, &content)?;
                sync_directory(parent(name))?;
                let target = Path::new(content.file_name().expect("a sibling has a name"));
                let linked = journal::changing(
                    name,
                    || std::os::unix::fs::symlink(target, name),
                    |record| record.create(name, NodeKind::Symlink { target: target.to_owned() }),
                );
                if let Err(error) = linked {
                    rename(&content, temporary)?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Mode of files that hold no secret, before the process's umask.
pub const FILE_MODE: u32 = 0o644;
const LOCK_FILE_MODE: u32 = 0o600;

/// Copied at a time.
const COPY_BYTES: usize = 1024 * 1024;

/// Makes the entries of `directory` durable.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    match journal::of(directory) {
        None => File::open(directory)?.sync_all(),
        Some(journal) => {
            std::fs::File::open(directory)?;
            let target = journal.change(|record| record.node_at(directory));
            let target = target.ok_or_else(|| io::Error::other(format!("{} is not recorded", directory.display())))?;
            journal.sync(journal::SyncTarget::Node(target));
            Ok(())
        }
    }
}

/// Makes everything durable that was changed in the file system of `directory`: syncfs(2).
pub fn sync_file_system(directory: &Path) -> io::Result<()> {
    let opened = std::fs::File::open(directory)?;
    match journal::of(directory) {
        None => Ok(rustix::fs::syncfs(&opened)?),
        Some(journal) => {
            journal.sync(journal::SyncTarget::Everything);
            Ok(())
        }
    }
}

/// Removes a file's name. Not durable by itself.
pub fn remove_file(path: &Path) -> io::Result<()> {
    journal::changing(path, || std::fs::remove_file(path), |record| record.remove(path))
}

/// Renames within one file system, replacing. Not durable by itself.
pub(crate) fn rename(from: &Path, to: &Path) -> io::Result<()> {
    journal::changing(to, || std::fs::rename(from, to), |record| record.rename(from, to))
}

/// Makes a directory. Not durable by itself.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    journal::changing(path, || std::fs::create_dir(path), |record| record.create(path, NodeKind::Directory))
}

/// Makes the file `to`, with the content of `from`, and fsyncs it; its name is not durable yet.
pub(crate) fn copy_synced(from: &Path, to: &Path) -> io::Result<()> {
    let mut source = BufReader::with_capacity(COPY_BYTES, std::fs::File::open(from)?);
    let target = File::options().write(true).create_new().open(to)?;
    let copied = io::copy(&mut source, &mut file::Appending::to(&target)).and_then(|_| target.sync_all());
    if copied.is_err() {
        // As in `write_synced`.
        let _ = remove_file(to);
    }
    copied
}

/// Removes a directory that holds nothing. Not durable by itself.
pub(crate) fn remove_empty_directory(directory: &Path) -> io::Result<()> {
    journal::changing(directory, || std::fs::remove_dir(directory), |record| record.remove(directory))
}

/// Removes a directory and all it holds; of a link to one, the link alone. Not durable by itself.
pub(crate) fn remove_tree(directory: &Path) -> io::Result<()> {
    if journal::of(directory).is_none() {
        // Which follows no link either that somebody puts there meanwhile.
        return std::fs::remove_dir_all(directory);
    }
    if directory.symlink_metadata()?.is_symlink() {
        return remove_file(directory);
    }
    remove_content(directory)?;
    remove_empty_directory(directory)
}

/// Removes all that a directory holds. Not durable by itself.
pub(crate) fn remove_content(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        match entry.file_type()?.is_dir() {
            true => remove_tree(&entry.path())?,
            false => remove_file(&entry.path())?,
        }
    }
    Ok(())
}

/// Makes `directory` and those above it that are missing, durably.
pub fn create_directories(directory: &Path) -> io::Result<()> {
    match create_directory(directory) {
        Ok(()) => sync_directory(parent(directory)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
        // Some file systems (proc) say so of a directory that may not be made, too.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !parent(directory).is_dir() => {
            create_directories(parent(directory))?;
            create_directories(directory)
        }
        Err(error) => Err(error),
    }
}

/// [`create_directories`] of what is missing below `root` alone: no new root takes the name of one that was moved away or
/// unmounted.
///
/// # Errors
/// Where `root` is not there, or `directory` is not below it.
pub fn create_directories_below(root: &Path, directory: &Path) -> io::Result<()> {
    if directory == root {
        return root.metadata().map(drop);
    }
    if !directory.starts_with(root) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    match create_directory(directory) {
        Ok(()) => sync_directory(parent(directory)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && !parent(directory).is_dir() => {
            create_directories_below(root, parent(directory))?;
            create_directories_below(root, directory)
        }
        Err(error) => Err(error),
    }
}

/// A fresh temporary name in `directory`.
pub fn temporary(directory: &Path) -> PathBuf {
    directory.join(format!("{TEMPORARY_PREFIX}{:016x}", random::number()))
}

/// Writes the file `path`, which must not exist, and fsyncs it; its name is not durable yet. A file that could not be
/// written whole is removed.
pub fn write_synced(path: &Path, content: &[u8], mode: u32) -> io::Result<()> {
    write_parts_synced(path, &[content], mode)
}

fn write_parts_synced(path: &Path, parts: &[&[u8]], mode: u32) -> io::Result<()> {
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
    let mut output = file::Appending::to(file);
    parts.try_for_each(|part| output.write_all(part))
}

/// Makes `path` with all of `content`, durably, unless it exists: then the error is `AlreadyExists`, and the file is
/// another's. Of several processes exactly one succeeds.
pub fn create_if_absent(exclusive: Exclusive, path: &Path, content: &[u8]) -> io::Result<()> {
    create_if_absent_with_mode(exclusive, path, &[content], FILE_MODE)
}

/// [`create_if_absent`] with content in parts and a mode.
pub fn create_if_absent_with_mode(exclusive: Exclusive, path: &Path, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    // Looked at first, because losing is common (a manifest's name is raced for) and writing is not free.
    if path.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let temporary = temporary(parent(path));
    write_parts_synced(&temporary, parts, mode)?;
    publish_if_absent(exclusive, &temporary, path)
}

/// Gives the complete and fsynced file `temporary` the name `path` unless it is taken, durably. The temporary name is
/// gone afterwards in either case.
pub fn publish_if_absent(exclusive: Exclusive, temporary: &Path, path: &Path) -> io::Result<()> {
    if let Err(error) = exclusive.publish(temporary, path) {
        let _ = remove_file(temporary);
        return Err(error);
    }
    sync_directory(parent(path))
}

/// Makes `path` with all of `content`, or replaces it, durably: a reader sees the old file or the new one.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    replace_with_mode(path, &[content], FILE_MODE)
}

/// [`replace`] with content in parts and a mode.
pub fn replace_with_mode(path: &Path, parts: &[&[u8]], mode: u32) -> io::Result<()> {
    let temporary = temporary(parent(path));
    write_parts_synced(&temporary, parts, mode)?;
    publish_replacing(&temporary, path)
}

/// [`replace`] for a store that has no room left: the content goes into the blocks of `room`, a file of no meaning in the
/// same directory, which keeps them if they are too few.
pub fn replace_into(room: &Path, path: &Path, content: &[u8]) -> io::Result<()> {
    let file = File::options().write(true).open(room)?;
    let length = content.len() as u64;
    file.write_all_at(content, 0).and_then(|()| file.set_len(length)).and_then(|()| file.sync_all())?;
    rename(room, path)?;
    sync_directory(parent(path))
}

/// Gives the complete and fsynced file `temporary` the name `path`, durably, whatever had it.
pub fn publish_replacing(temporary: &Path, path: &Path) -> io::Result<()> {
    let old_content = symlink_content(path);
    if let Err(error) = rename(temporary, path) {
        let _ = remove_file(temporary);
        return Err(error);
    }
    if let Some(content) = old_content {
        // Else power lost may bring back the old name, without its content.
        sync_directory(parent(path))?;
        remove_file(&content).or_else(ignore_absent)?;
    }
    sync_directory(parent(path))
}

/// Removes `path`, and the content behind it where it was published as a symlink. Not durable by itself.
pub fn remove_published(path: &Path) -> io::Result<()> {
    let content = symlink_content(path);
    remove_file(path)?;
    if let Some(content) = content {
        remove_file(&content).or_else(ignore_absent)?;
    }
    Ok(())
}

/// The reserved file that `path` points to, if it was published with [`Exclusive::Symlink`].
fn symlink_content(path: &Path) -> Option<PathBuf> {
    let target = std::fs::read_link(path).ok()?;
    let ours = target.to_str().is_some_and(|name| name.starts_with(CONTENT_PREFIX) && !name.contains('/'));
    ours.then(|| parent(path).join(target))
}

/// Removes what crashes left in `directory`: temporary files, and contents that no symlink points to. Only for the
/// one process that holds the volume's lock: another's unfinished file would go too. Returns how many were removed.
pub fn remove_leftovers(directory: &Path) -> io::Result<u64> {
    let mut contents = Vec::new();
    let mut pointed_to = std::collections::HashSet::new();
    let mut removed = 0;
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(TEMPORARY_PREFIX) {
            remove_published(&entry.path()).or_else(ignore_absent)?;
            removed += 1;
        } else if name.starts_with(CONTENT_PREFIX) {
            contents.push(entry.path());
        } else if let Some(content) = symlink_content(&entry.path()) {
            pointed_to.insert(content);
        }
    }
    for content in contents.into_iter().filter(|content| !pointed_to.contains(content)) {
        remove_file(&content).or_else(ignore_absent)?;
        removed += 1;
    }
    Ok(removed)
}

/// Opens `path` for locking, made if need be and never truncated, not inherited by children. Closed to other users, for who may
/// read a file may lock it for as long as he likes; but not under another name of something else, which is not ours to close.
pub fn open_lock_file(path: &Path) -> io::Result<std::fs::File> {
    let file = File::options().read(true).write(true).create().mode(LOCK_FILE_MODE).no_follow().open(path)?;
    let found = file.metadata()?;
    if found.mode() & 0o077 != 0
        && found.nlink() == 1
        && let Err(error) = file.set_permissions(Permissions::from_mode(LOCK_FILE_MODE))
    {
        tracing::debug!("{} stays open to others, who may lock it: {error}", path.display());
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

fn sibling(path: &Path, name: &str) -> PathBuf {
    parent(path).join(name)
}

fn ignore_absent(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
mod tests;
