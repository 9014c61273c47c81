//! Files of one run: their names, and changes of names that survive a power loss.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use varve_detector_dataset::dataset_spec::DatasetSpec;

/// `FILE.journal`.
pub fn journal_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".journal");
    PathBuf::from(name)
}

/// Whether both paths refer to the same file.
pub fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (one, other) = (std::fs::metadata(one)?, std::fs::metadata(other)?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

/// Whether `path` refers to this open file.
pub fn is_same_file(file: &File, path: &Path) -> io::Result<bool> {
    let (own, there) = (file.metadata()?, std::fs::metadata(path)?);
    Ok((own.dev(), own.ino()) == (there.dev(), there.ino()))
}

/// Removes the journal of the file at `path` durably.
pub fn remove_journal(path: &Path) -> io::Result<()> {
    // Left behind if the run was killed after the file got its name by a hard link.
    let unnamed = unnamed(path);
    if unnamed.symlink_metadata().is_ok() && is_same(&unnamed, path)? {
        std::fs::remove_file(&unnamed)?;
    }
    // Left behind if a service was killed while it took up the run.
    remove_if_there(&rewritten(path))?;
    std::fs::remove_file(journal_of(path))?;
    sync_directory(path)
}

/// `FILE.journal.new`: the new journal of a run that is being taken up. Only the holder of the current journal writes
/// it.
pub fn rewritten(path: &Path) -> PathBuf {
    unnamed(&journal_of(path))
}

/// `FILE.journal.compact`: the smaller copy that takes the place of a finished file. Only the holder of the journal
/// writes it.
pub fn compacted(path: &Path) -> PathBuf {
    let mut name = journal_of(path).into_os_string();
    name.push(".compact");
    PathBuf::from(name)
}

pub fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// `FILE.new`: a run's file before it can be opened. Only the holder of the journal creates it; an existing file of
/// this name is not the run's.
pub fn unnamed(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

/// Removes the remains of an interrupted start, in which the journal exists and the file does not.
pub fn remove_unnamed(path: &Path) -> io::Result<()> {
    remove_if_there(&unnamed(path))
}

/// Renames the file `made` to `path` unless that name is taken, with the first method that the store supports.
pub fn give_name(made: &Path, path: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    let taken = |error: &io::Error| error.kind() == io::ErrorKind::AlreadyExists;
    let renamed = renameat_with(CWD, made, CWD, path, RenameFlags::NOREPLACE).map_err(io::Error::from);
    if renamed.is_ok() || renamed.as_ref().is_err_and(taken) {
        return renamed;
    }
    match std::fs::hard_link(made, path) {
        // If this fails, the file is removed together with the journal.
        Ok(()) => std::fs::remove_file(made).or(Ok(())),
        Err(error) if taken(&error) => Err(error),
        // The journal excludes other runs, so the check and the rename need not be atomic.
        Err(_) if path.symlink_metadata().is_ok() => Err(io::ErrorKind::AlreadyExists.into()),
        Err(_) => std::fs::rename(made, path),
    }
}

/// Writes the arrays of the whole run to a new file. The run's first commit syncs them. Blocks of zeros stay holes.
pub fn write_arrays(file: &File, description: &DatasetSpec, data: &[Option<Arc<Vec<u8>>>]) -> io::Result<()> {
    const BLOCK: usize = 64 << 10;
    for (address, data) in description.array_addresses().into_iter().zip(data) {
        for (number, block) in data.iter().flat_map(|data| data.chunks(BLOCK)).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                file.write_all_at(block, address + (number * BLOCK) as u64)?;
            }
        }
    }
    Ok(())
}

pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(parent(path))?.sync_all()
}

pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Keeps the damaged journal of `file` under a second name: the first free one of `FILE.journal.bad`,
/// `FILE.journal.bad-2` and so on. Returns that name. The original name stays, for the caller to replace or remove.
///
/// # Errors
/// If the second name cannot be created, or too many damaged copies exist.
pub fn keep_damaged(file: &Path) -> io::Result<PathBuf> {
    /// A file whose journal was damaged this often needs a person's attention.
    const KEPT_MAX: u32 = 100;
    let journal = journal_of(file);
    for number in 1..=KEPT_MAX {
        let mut name = journal.clone().into_os_string();
        name.push(if number == 1 { ".bad".to_owned() } else { format!(".bad-{number}") });
        let kept = PathBuf::from(name);
        match std::fs::hard_link(&journal, &kept) {
            Ok(()) => return Ok(kept),
            // An earlier call was interrupted after this step.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_same(&journal, &kept)? => return Ok(kept),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            // The store has no hard links.
            Err(_) => match OpenOptions::new().write(true).create_new(true).open(&kept) {
                Ok(mut copy) => {
                    io::copy(&mut File::open(&journal)?, &mut copy)?;
                    copy.sync_all()?;
                    return Ok(kept);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            },
        }
    }
    Err(io::Error::other(format!("{} has {KEPT_MAX} damaged copies already; move them elsewhere", journal.display())))
}
