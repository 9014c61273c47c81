//! After a crash: the journal and what lies in the file make a valid file with every frame that was acknowledged.

mod alone;

pub use alone::{Left, NoJournal};

use crate::allocate::Allocator;
use crate::catalog::{Catalog, Counts};
use crate::commit::publish;
use crate::description::Allocate;
use crate::frame::FrameStatus;
use crate::hdf5::UNDEFINED;
use crate::hdf5::superblock::{self, Superblock};
use crate::journal::{self, Contents, Damage, Entry, Journal, JournalError, SlabEntry};
use crate::length::Length;
use crate::room::{Room, Space};
use crate::writer::{now, remove_journal};
use alone::Alone;
use parking_lot::Mutex;
use rustix::fs::FallocateFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64;

const HOLE: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);

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
    #[error(transparent)]
    NoJournal(#[from] NoJournal),
    #[error("{path} is no file of a run that can be recovered: {why}")]
    Foreign { path: PathBuf, why: String },
}

/// What recovery found.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    #[serde(flatten)]
    pub counts: Counts,
    /// Journal bytes that a crash had cut short.
    pub torn_bytes: u64,
    /// What of the journal before them could not be read.
    pub journal_damage: Damage,
    /// Where the journal was put for that.
    pub damaged_journal: Option<PathBuf>,
}

/// Makes the file at `path` whole from its journal, which is removed at the end, or kept by another name if it is damaged.
/// May itself be interrupted anywhere and run again.
///
/// # Errors
/// If there is no journal, its writer still runs, or the files cannot be read or written.
pub fn recover(path: &Path) -> Result<Recovered, RecoverError> {
    let io = |source| RecoverError::Io { path: path.to_owned(), source };
    let found = Found::read(path)?;
    let (_, mut catalog) = found.sound().map_err(io)?;
    let file = &found.file;
    file.sync_data().map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let used = found.used().map_err(io)?;
    if used < bytes {
        // What lies above was never named: without it there is room on a disk that is full.
        match rustix::fs::fallocate(file, HOLE, used, bytes - used) {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(io(error.into())),
        }
    }
    let (allocator, length) = (Allocator::new(used), Length::new(bytes));
    let space = Space { file, length: &length, allocator: &allocator };
    let room = Mutex::new(Room::of_last(&mut catalog));
    let end = publish(space, &room, &mut catalog).map_err(|error| io(error.into()))?.end;
    file.set_len(end).and_then(|()| file.sync_all()).map_err(io)?;
    let Contents { torn_bytes, damage: journal_damage, .. } = found.contents;
    let damaged_journal = found.keep_damaged(path).map_err(io)?;
    remove_journal(path).map_err(io)?;
    Ok(Recovered { counts: catalog.counts(), torn_bytes, journal_damage, damaged_journal })
}

/// What a crash left: the file, and its journal, which is held for as long as this is.
pub(crate) struct Found {
    pub file: File,
    pub contents: Contents,
    _held: Journal,
}

impl Found {
    pub fn read(path: &Path) -> Result<Found, RecoverError> {
        let io = |source| RecoverError::Io { path: path.to_owned(), source };
        let beside = journal::path_beside(path);
        if !beside.try_exists().map_err(io)? {
            // A missing file is said to be missing, not to be in order.
            let path = path.to_owned();
            return Err(match alone::look(&path).map_err(io)? {
                Alone::Finished => RecoverError::NothingToDo { path },
                Alone::Unfinished(left) => NoJournal { path, journal: beside, left }.into(),
                Alone::Foreign(why) => RecoverError::Foreign { path, why },
            });
        }
        let held = OpenOptions::new().append(true).open(&beside).map_err(io)?;
        let held = Journal::lock(held).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => RecoverError::Running { path: path.to_owned() },
            _ => io(error),
        })?;
        // A run that was taken up has a new journal by this name, and the one that was opened here is no more.
        if !held.is_at(&beside).map_err(io)? {
            return Err(RecoverError::Running { path: path.to_owned() });
        }
        let contents = journal::read(&beside)?;
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        Ok(Found { file, contents, _held: held })
    }

    /// The journal's entries, those of frames that are not whole in the file replaced by marks of damage; and the
    /// catalog that they make.
    pub fn sound(&self) -> io::Result<(Vec<Entry>, Catalog)> {
        let mut catalog = Catalog::new(self.contents.description.clone());
        let times = durable_times(&self.contents.entries);
        let now = now();
        let mut entries = Vec::new();
        for (number, entry) in self.contents.entries.iter().enumerate() {
            let first = entries.len();
            // Nobody knows how many records are lost, and so where those stand that a mark behind damage has counted.
            let synced = times.get(number).filter(|_| number < self.contents.intact);
            match (entry, synced) {
                // A loss of power may have taken any of what no mark covers.
                (Entry::Slab(slab), None) if !whole(&self.file, slab)? => {
                    entries.extend(slab.frames.iter().map(|frame| Entry::Damaged { frame: frame.number }));
                }
                _ => entries.push(entry.clone()),
            }
            for entry in &entries[first..] {
                catalog.apply(entry, times.get(number).copied().unwrap_or(now));
            }
        }
        blank_missing(&self.file, &catalog)?;
        Ok((entries, catalog))
    }

    /// Others may write below this; `None` if the journal does not say.
    pub fn granted(&self) -> Option<u64> {
        let ends = self.contents.entries.iter().filter_map(|entry| match entry {
            Entry::Granted { end } => Some(*end),
            _ => None,
        });
        ends.max().filter(|_| self.contents.damage.is_none())
    }

    /// A damaged journal is kept, for whoever wants to look what it was; where it is then.
    pub fn keep_damaged(&self, path: &Path) -> io::Result<Option<PathBuf>> {
        let damage = self.contents.damage;
        if damage.is_none() {
            return Ok(None);
        }
        let kept = journal::keep_damaged(path)?;
        tracing::warn!(
            path = %path.display(),
            "its journal is damaged: {} bytes at {} places are no records, and frames are missing of which only they told; \
             it is kept as {}",
            damage.bytes,
            damage.places,
            kept.display()
        );
        Ok(Some(kept))
    }

    /// The end of all that the journal or a reader knows of; what lies above was never named.
    pub fn used(&self) -> io::Result<u64> {
        Ok(used(&self.file, &self.contents.entries)?.max(self.contents.description.first_address()))
    }
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

fn used(file: &File, entries: &[Entry]) -> io::Result<u64> {
    let mut head = [0; superblock::LENGTH];
    let end = match file.read_exact_at(&mut head, 0) {
        Ok(()) => Superblock::decode(&head).map_or(0, |superblock| superblock.end),
        // Killed before its first commit.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
        Err(error) => return Err(error),
    };
    Ok(entries.iter().map(Entry::end).fold(end, u64::max))
}

/// Where addresses follow from numbers, whatever of a frame lies in the file reads as the frame, even if it never came as
/// a whole.
fn blank_missing(file: &File, catalog: &Catalog) -> io::Result<()> {
    let description = &catalog.description;
    if description.allocate != Allocate::Implicit {
        return Ok(());
    }
    let chunks = description.chunks_per_frame();
    let zeros = vec![0; description.chunk_bytes()];
    let absent = |frame: &u64| matches!(catalog.status_of(*frame), FrameStatus::Missing | FrameStatus::Damaged);
    let first = description.first_address();
    if file.metadata()?.len() < first {
        file.set_len(first)?;
    }
    for frame in (0..description.frames_max().unwrap_or(0)).filter(absent) {
        for chunk in frame * chunks..(frame + 1) * chunks {
            let address = description.implicit_address(chunk);
            match rustix::fs::fallocate(file, HOLE, address, zeros.len() as u64) {
                Ok(()) => {}
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.write_all_at(&zeros, address)?,
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Whether all chunks of a slab lie in the file as they were written.
fn whole(file: &File, slab: &SlabEntry) -> io::Result<bool> {
    let length = file.metadata()?.len();
    for chunk in slab.chunks.iter().filter(|chunk| chunk.address != UNDEFINED) {
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
