//! Durable changes of files in a directory: what has returned is there after a power cut, whole or not at all.
//!
//! Every file is written and fsynced under a temporary name first and then published under its own. To *replace* is a
//! rename. To *create if absent* needs a primitive that refuses an existing name, and stores differ in which of them
//! they keep: [`Exclusive::prove`] tries them on the store itself. Temporary files begin with [`TEMPORARY_PREFIX`]; a
//! crash may leave some behind, and [`remove_leftovers`] removes them.

use crate::random;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Names that begin so belong to this module; they are never listed and never given to others.
pub const RESERVED_PREFIX: &str = ".~";
/// A file being written.
pub const TEMPORARY_PREFIX: &str = ".~tmp.";
/// What a published symlink points to, on stores that have no better primitive.
pub const CONTENT_PREFIX: &str = ".~content.";

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

    fn works(self, directory: &Path) -> io::Result<bool> {
        let first = temporary(directory);
        let second = temporary(directory);
        let name = temporary(directory);
        write_synced(&first, b"1", FILE_MODE)?;
        write_synced(&second, b"2", FILE_MODE)?;
        let published = self.publish(&first, &name);
        let refused = self.publish(&second, &name);
        let holds_first = std::fs::read(&name).is_ok_and(|content| content == b"1");
        for path in [&first, &second, &name] {
            remove_published(path).or_else(ignore_absent)?;
        }
        Ok(published.is_ok() && holds_first && refused.is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists))
    }

    /// Gives the complete and fsynced file `temporary` the name `name`, in the same directory, unless it is taken
    /// (`AlreadyExists`; the temporary file is still there then).
    fn publish(self, temporary: &Path, name: &Path) -> io::Result<()> {
        match self {
            Exclusive::RenameNoReplace => rustix::fs::renameat_with(CWD, temporary, CWD, name, RenameFlags::NOREPLACE)?,
            Exclusive::Link => {
                rustix::fs::linkat(CWD, temporary, CWD, name, AtFlags::empty())?;
                std::fs::remove_file(temporary)?;
            }
            Exclusive::Symlink => {
                // The symlink's target must not look like a leftover, and must carry its name before it is pointed to.
                let content = sibling(temporary, &format!("{CONTENT_PREFIX}{:016x}", random::number()));
                std::fs::rename(temporary, &content)?;
                sync_directory(parent(name))?;
                let target = content.file_name().expect("a sibling has a name");
                if let Err(error) = std::os::unix::fs::symlink(target, name) {
                    std::fs::rename(&content, temporary)?;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// Mode of files that hold no secret, before the process's umask.
pub const FILE_MODE: u32 = 0o644;

/// Makes the entries of `directory` durable.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}

/// Makes `directory` and those above it that are missing, durably.
pub fn create_directories(directory: &Path) -> io::Result<()> {
    match std::fs::create_dir(directory) {
        Ok(()) => sync_directory(parent(directory)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound && directory.parent().is_some() => {
            create_directories(parent(directory))?;
            create_directories(directory)
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
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    let written = parts.iter().try_for_each(|part| file.write_all(part)).and_then(|()| file.sync_all());
    if written.is_err() {
        // The error that matters is the one of the write; a leftover is removed at the next start.
        let _ = std::fs::remove_file(path);
    }
    written
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
        let _ = std::fs::remove_file(temporary);
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

/// Gives the complete and fsynced file `temporary` the name `path`, durably, whatever had it.
pub fn publish_replacing(temporary: &Path, path: &Path) -> io::Result<()> {
    let old_content = symlink_content(path);
    if let Err(error) = std::fs::rename(temporary, path) {
        let _ = std::fs::remove_file(temporary);
        return Err(error);
    }
    if let Some(content) = old_content {
        std::fs::remove_file(content).or_else(ignore_absent)?;
    }
    sync_directory(parent(path))
}

/// Removes `path`, and the content behind it where it was published as a symlink. Not durable by itself.
pub fn remove_published(path: &Path) -> io::Result<()> {
    let content = symlink_content(path);
    std::fs::remove_file(path)?;
    if let Some(content) = content {
        std::fs::remove_file(content).or_else(ignore_absent)?;
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
        std::fs::remove_file(content).or_else(ignore_absent)?;
        removed += 1;
    }
    Ok(removed)
}

/// Opens `path` for locking, made if need be and never truncated, not inherited by children.
pub fn open_lock_file(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::open(path, flags, Mode::from_raw_mode(FILE_MODE))?))
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
