//! After a crash: the journal and what lies in the file make a valid file with every frame that was acknowledged.

use crate::allocate::Allocator;
use crate::catalog::{Catalog, Counts};
use crate::commit;
use crate::hdf5::superblock::{self, Superblock};
use crate::journal::{self, Entry, FrameEntry, Journal, JournalError};
use crate::length::Length;
use crate::writer::{ALIGN_BYTES, now, remove_journal};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{path} is still being written by a running writer; stop that run, then recover")]
    Running { path: PathBuf },
    #[error("{path} needs no recovery: there is no journal beside it, so its run ended in order")]
    NothingToDo { path: PathBuf },
}

/// What recovery found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    #[serde(flatten)]
    pub counts: Counts,
    /// Journal bytes that a crash had cut short.
    pub torn_bytes: u64,
}

/// Makes the file at `path` whole from its journal, which is removed at the end. May itself be interrupted anywhere and
/// run again.
///
/// # Errors
/// If there is no journal, its writer still runs, or the files cannot be read or written.
pub fn recover(path: &Path) -> Result<Recovered, RecoverError> {
    let io = |source| RecoverError::Io { path: path.to_owned(), source };
    let beside = journal::path_beside(path);
    if !beside.try_exists().map_err(io)? {
        // A missing file is said to be missing, not to be in order.
        File::open(path).map_err(io)?;
        return Err(RecoverError::NothingToDo { path: path.to_owned() });
    }
    let held = OpenOptions::new().append(true).open(&beside).map_err(io)?;
    let _held = Journal::lock(held).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => RecoverError::Running { path: path.to_owned() },
        _ => io(error),
    })?;
    let contents = journal::read(&beside)?;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
    let mut catalog = Catalog::new(contents.description);
    let times = durable_times(&contents.entries);
    let now = now();
    let mut damaged = Vec::new();
    for (number, entry) in contents.entries.iter().enumerate() {
        match (entry, times.get(number)) {
            // A loss of power may have taken any of what no mark covers.
            (Entry::Frame(frame), None) if !whole(&file, frame).map_err(io)? => damaged.push(frame.number),
            (_, durable) => catalog.apply(entry, durable.copied().unwrap_or(now)),
        }
    }
    for number in damaged {
        catalog.damage(number);
    }
    let length = file.metadata().map_err(io)?.len();
    file.sync_data().map_err(io)?;
    let allocator = Allocator::new(used(&file, &contents.entries).map_err(io)?.max(ALIGN_BYTES), ALIGN_BYTES);
    let end = commit::publish(&file, &Length::new(length), &allocator, &mut catalog).map_err(io)?;
    file.set_len(end).and_then(|()| file.sync_all()).map_err(io)?;
    remove_journal(path).map_err(io)?;
    Ok(Recovered { counts: catalog.counts(), torn_bytes: contents.torn_bytes })
}

/// When each of the entries that marks cover was synced.
fn durable_times(entries: &[Entry]) -> Vec<u64> {
    let mut times = Vec::new();
    for entry in entries {
        if let Entry::Durable { entries: covered, time } = entry {
            let covered = (*covered).min(entries.len() as u64) as usize;
            times.resize(covered.max(times.len()), *time);
        }
    }
    times
}

/// The end of all that the journal or a reader knows of; what lies above was never named.
fn used(file: &File, entries: &[Entry]) -> io::Result<u64> {
    let mut head = [0; superblock::LENGTH];
    let mut end = match file.read_exact_at(&mut head, 0) {
        Ok(()) => Superblock::decode(&head).map_or(0, |superblock| superblock.end),
        // Killed before its first commit.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
        Err(error) => return Err(error),
    };
    for entry in entries {
        if let Entry::Frame(frame) = entry {
            end = frame.chunks.iter().map(|chunk| chunk.address.saturating_add(chunk.size)).fold(end, u64::max);
        }
    }
    Ok(end)
}

/// Whether all chunks of a frame lie in the file as they were written.
fn whole(file: &File, frame: &FrameEntry) -> io::Result<bool> {
    let length = file.metadata()?.len();
    for chunk in &frame.chunks {
        if chunk.address.checked_add(chunk.size).is_none_or(|end| end > length) {
            return Ok(false);
        }
        let mut bytes = vec![0; chunk.size as usize];
        file.read_exact_at(&mut bytes, chunk.address)?;
        if xxh3_64(&bytes) != chunk.checksum {
            return Ok(false);
        }
    }
    Ok(true)
}
