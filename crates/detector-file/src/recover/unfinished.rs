//! A file and its journal after a crash.

use super::outcome::RecoverError;
use super::without_journal::{self, Alone, NoJournal};
use crate::compact;
use crate::journal::{self, Contents, Damage, Journal};
use crate::run_files::{self, remove_if_there, remove_unnamed};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use varve_detector_dataset::journal_entry::JournalEntry;
use varve_detector_hdf5::lock::WrittenFile;
use varve_detector_hdf5::superblock::{self, Superblock};

/// Checks a journal whose file is missing. The file was moved away if the journal refers to frames in it.
///
/// # Errors
/// If the file was moved away.
pub fn taken_away(path: &Path, journal: &[u8]) -> Result<(), RecoverError> {
    let (frames, path) = (journal::frames_told(journal).len(), path.to_owned());
    let journal = run_files::journal_of(&path);
    if frames > 0 { Err(RecoverError::TakenAway { path, journal, frames }) } else { Ok(()) }
}

/// Opens and locks the journal of the file at `path`, so that no other process writes it.
pub(super) fn hold(path: &Path) -> Result<Journal, RecoverError> {
    let io = |source| RecoverError::Io { path: path.to_owned(), source };
    let beside = run_files::journal_of(path);
    if !beside.try_exists().map_err(io)? {
        // A missing file must be reported as missing, not as finished.
        let path = path.to_owned();
        return Err(match without_journal::look(&path).map_err(io)? {
            Alone::Finished => {
                // Left behind if the run was killed just before its copy took the file's name.
                remove_if_there(&run_files::compacted(&path)).map_err(io)?;
                RecoverError::NothingToDo { path }
            }
            Alone::Unfinished(left) => NoJournal { path, journal: beside, left }.into(),
            Alone::Foreign(why) => RecoverError::Foreign { path, why },
        });
    }
    let held = OpenOptions::new().append(true).open(&beside).map_err(io)?;
    let held = Journal::lock(held).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => RecoverError::Running { path: path.to_owned() },
        _ => io(error),
    })?;
    // If the run has been taken up meanwhile, this name belongs to a new journal and the one opened here is obsolete.
    match held.is_at(&beside).map_err(io)? {
        true => Ok(held),
        false => Err(RecoverError::Running { path: path.to_owned() }),
    }
}

/// A file and its journal after a crash. The journal stays locked for the lifetime of this object.
pub struct UnfinishedRun {
    pub(super) path: PathBuf,
    pub file: WrittenFile,
    pub contents: Contents,
    _held: Journal,
}

impl UnfinishedRun {
    pub fn read(path: &Path) -> Result<UnfinishedRun, RecoverError> {
        let held = hold(path)?;
        let contents = journal::read(&run_files::journal_of(path))?;
        UnfinishedRun::open(path, held, contents)
    }

    pub(super) fn open(path: &Path, held: Journal, contents: Contents) -> Result<UnfinishedRun, RecoverError> {
        let io = |source| RecoverError::Io { path: path.to_owned(), source };
        if !path.try_exists().map_err(io)? {
            taken_away(path, &std::fs::read(run_files::journal_of(path)).map_err(io)?)?;
            remove_unnamed(path).map_err(io)?;
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        let file = WrittenFile::new(file).map_err(io)?;
        let (head, bytes) = (head(&file).map_err(io)?, file.metadata().map_err(io)?.len());
        if compact::is_copy(&file).map_err(io)? {
            let why = format!(
                "it is finished, and a smaller copy of the file that its journal describes: remove the journal {}",
                run_files::journal_of(path).display()
            );
            return Err(RecoverError::Foreign { path: path.to_owned(), why });
        }
        let entries = &contents.entries[..synced(&contents)];
        if bytes < entries.iter().map(JournalEntry::end).max().unwrap_or(0) && Superblock::decode(&head).is_none() {
            let why = format!(
                "its journal records more than its {bytes} bytes, and it does not begin as a run's file: if it was \
                replaced, put the run's file back; if that is lost, remove the journal {}",
                run_files::journal_of(path).display()
            );
            return Err(RecoverError::Foreign { path: path.to_owned(), why });
        }
        Ok(UnfinishedRun { path: path.to_owned(), file, contents, _held: held })
    }

    /// Other processes may write below this address; `None` if the journal does not record it.
    pub fn granted(&self) -> Option<u64> {
        let ends = self.contents.entries.iter().filter_map(|entry| match entry {
            JournalEntry::Granted { end } => Some(*end),
            _ => None,
        });
        ends.max().filter(|_| self.contents.damage.is_none())
    }

    /// Keeps a damaged journal for inspection and returns its new path.
    pub fn keep_damaged(&self, path: &Path, (damage, restored): (&Damage, u64)) -> io::Result<Option<PathBuf>> {
        if damage.is_none() {
            return Ok(None);
        }
        let kept = run_files::keep_damaged(path)?;
        tracing::warn!(
            path = %path.display(),
            "its journal is damaged: {} bytes at {} places are unreadable; {restored} frames that it lacks were found \
            in the file, at most {} recorded only there are missing{}; it is kept as {}",
            damage.bytes,
            damage.places,
            damage.frames_max,
            if damage.end { ", and everything after the file's last commit" } else { "" },
            kept.display()
        );
        Ok(Some(kept))
    }

    /// End of all bytes that the journal, the last commit or recovered entries refer to. Nothing refers to bytes above
    /// it.
    pub fn used(&self, sound: &[JournalEntry]) -> io::Result<u64> {
        let reported = self.contents.entries.iter().chain(sound);
        Ok(used(&self.file, reported)?.max(self.contents.description.first_address()))
    }
}

/// The first bytes of a file, padded with zeros if the file is shorter.
pub(super) fn head(file: &File) -> io::Result<[u8; superblock::LENGTH]> {
    let mut head = [0; superblock::LENGTH];
    let _bytes = file.read_at(&mut head, 0)?;
    Ok(head)
}

fn used<'e>(file: &File, entries: impl Iterator<Item = &'e JournalEntry>) -> io::Result<u64> {
    let mut head = [0; superblock::LENGTH];
    let end = match file.read_exact_at(&mut head, 0) {
        Ok(()) => Superblock::decode(&head).map_or(0, |superblock| superblock.end),
        // The run was killed before its first commit.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
        Err(error) => return Err(error),
    };
    Ok(entries.map(JournalEntry::end).fold(end, u64::max))
}

/// Number of entries that were synced according to marks before any damage.
fn synced(contents: &Contents) -> usize {
    durable_times(&contents.entries).len().min(contents.intact)
}

/// Sync times of the entries that marks cover.
pub(super) fn durable_times(entries: &[JournalEntry]) -> Vec<u64> {
    let mut times = Vec::new();
    for entry in entries {
        if let JournalEntry::Durable { entries: covered, time } = entry {
            let covered = (*covered).min(entries.len() as u64) as usize;
            times.resize(covered.max(times.len()), *time);
        }
    }
    times
}
