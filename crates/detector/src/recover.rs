//! Crash recovery: builds a valid file with every acknowledged frame from the journal and the bytes in the file. The
//! file's last commit supplies entries that a damaged journal has lost.

mod committed;
mod holes;
mod intact;
mod without_head;
mod without_journal;

pub use without_head::Headless;
pub use without_journal::{NoJournal, UnfinishedFile};

use crate::allocate::{Allocator, punch};
use crate::catalog::FrameCounts;
use crate::commit::publish;
use crate::hdf5::lock::WrittenFile;
use crate::hdf5::superblock::{self, Superblock};
use crate::journal::{self, Contents, Damage, Journal, JournalEntry, JournalError};
use crate::length::Length;
use crate::space_reservation::{Space, SpaceReservation};
use crate::stream::Ranges;
use crate::writer::{remove_journal, remove_unnamed};
pub(crate) use intact::IntactFrames;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use without_journal::Alone;

#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    #[error("{path}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("{path} is still being written by a running writer; stop that run, then recover")]
    Running { path: PathBuf },
    #[error("{path} needs no recovery: there is no journal beside it, and it is finished")]
    NothingToDo { path: PathBuf },
    #[error(transparent)]
    NoJournal(#[from] NoJournal),
    #[error("{path} is not a recoverable run file: {why}")]
    Foreign { path: PathBuf, why: String },
    #[error("{path} does not exist, but its journal {journal} records {frames} frames in it: put it back where it was")]
    TakenAway { path: PathBuf, journal: PathBuf, frames: usize },
    #[error("{journal} is not a run's journal any more ({why}), and {path} {what}")]
    Headless { journal: PathBuf, why: String, path: PathBuf, what: String },
}

/// Result of a recovery.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Recovered {
    #[serde(flatten)]
    pub counts: FrameCounts,
    /// Journal bytes of a record that a crash cut short.
    pub torn_bytes: u64,
    /// Damaged parts of the journal before those bytes.
    pub journal_damage: Damage,
    /// Frames restored from the file's last commit, or from a damaged record that the file's content confirms.
    pub restored: u64,
    /// New path of a damaged journal.
    pub damaged_journal: Option<PathBuf>,
    /// Frames that are in the file completely and unchanged.
    #[serde(skip)]
    pub whole: Ranges,
    /// Set if the journal's head is lost, so that its run is unknown: the file then has its last commit and nothing
    /// more.
    pub journal_head: Option<Headless>,
}

/// Completes the file at `path` from its journal. At the end the journal is removed, or kept under another name if it
/// is damaged. If the journal has lost its head, the file keeps its last commit.
///
/// Recovery may itself be interrupted anywhere and run again.
///
/// # Errors
/// If there is no journal, its writer still runs, or the files cannot be read or written.
pub fn recover(path: &Path) -> Result<Recovered, RecoverError> {
    let io = |source| RecoverError::Io { path: path.to_owned(), source };
    let held = hold(path)?;
    let found = match journal::read(&journal::path_beside(path)) {
        Err(JournalError::NotOne { path: journal, why }) => return without_head::recover(path, (journal, held), why),
        contents => UnfinishedRun::open(path, held, contents?)?,
    };
    let IntactFrames { entries, mut catalog, damage, restored, spoiled } = found.sound().map_err(io)?;
    catalog.keep_rows();
    let file = &found.file;
    file.sync_data().map_err(io)?;
    let bytes = file.metadata().map_err(io)?.len();
    let used = found.used(&entries).map_err(io)?;
    // Chunks whose records were lost with the journal's end may lie anywhere, and a copy of the journal may turn up.
    let used = if damage.end { without_head::data_end(file, used).map_err(io)? } else { used };
    if used < bytes {
        // Nothing refers to bytes above this address. Removing them frees space on a full disk. No entry will refer to
        // bytes that a joined process still writes there.
        punch(file, used..bytes).map_err(io)?;
    }
    // A joined process may continue to write for as long as it looks for the service. The file therefore continues, and
    // ends, above everything that was granted to it.
    let free = used.max(found.granted().unwrap_or(bytes));
    let (allocator, length) = (Allocator::new(free), Length::new(bytes));
    let space = Space { file, length: &length, allocator: &allocator };
    let room = Mutex::new(SpaceReservation::of_last(&mut catalog));
    let end = publish(space, &room, &mut catalog).map_err(|error| io(error.into()))?.end;
    file.set_len(end).and_then(|()| file.sync_all()).map_err(io)?;
    let torn_bytes = found.contents.torn_bytes;
    let damaged_journal = found.keep_damaged(path, (&damage, restored)).map_err(io)?;
    remove_journal(path).map_err(io)?;
    let counts = catalog.counts();
    let is_whole = |frame: &u64| catalog.status_of(*frame).is_whole() && !spoiled.contains(frame);
    let whole = (0..catalog.frames()).filter(is_whole).collect();
    Ok(Recovered { counts, torn_bytes, journal_damage: damage, restored, damaged_journal, whole, journal_head: None })
}

/// Checks a journal whose file is missing. The file was moved away if the journal refers to frames in it.
///
/// # Errors
/// If the file was moved away.
pub(crate) fn taken_away(path: &Path, journal: &[u8]) -> Result<(), RecoverError> {
    let (frames, path) = (journal::frames_told(journal).len(), path.to_owned());
    let journal = journal::path_beside(&path);
    if frames > 0 { Err(RecoverError::TakenAway { path, journal, frames }) } else { Ok(()) }
}

/// Opens and locks the journal of the file at `path`, so that no other process writes it.
fn hold(path: &Path) -> Result<Journal, RecoverError> {
    let io = |source| RecoverError::Io { path: path.to_owned(), source };
    let beside = journal::path_beside(path);
    if !beside.try_exists().map_err(io)? {
        // A missing file must be reported as missing, not as finished.
        let path = path.to_owned();
        return Err(match without_journal::look(&path).map_err(io)? {
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
    // If the run has been taken up meanwhile, this name belongs to a new journal and the one opened here is obsolete.
    match held.is_at(&beside).map_err(io)? {
        true => Ok(held),
        false => Err(RecoverError::Running { path: path.to_owned() }),
    }
}

/// A file and its journal after a crash. The journal stays locked for the lifetime of this object.
pub(crate) struct UnfinishedRun {
    path: PathBuf,
    pub file: WrittenFile,
    pub contents: Contents,
    _held: Journal,
}

impl UnfinishedRun {
    pub fn read(path: &Path) -> Result<UnfinishedRun, RecoverError> {
        let held = hold(path)?;
        let contents = journal::read(&journal::path_beside(path))?;
        UnfinishedRun::open(path, held, contents)
    }

    fn open(path: &Path, held: Journal, contents: Contents) -> Result<UnfinishedRun, RecoverError> {
        let io = |source| RecoverError::Io { path: path.to_owned(), source };
        if !path.try_exists().map_err(io)? {
            taken_away(path, &std::fs::read(journal::path_beside(path)).map_err(io)?)?;
            remove_unnamed(path).map_err(io)?;
        }
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        let file = WrittenFile::new(file).map_err(io)?;
        let (head, bytes) = (head(&file).map_err(io)?, file.metadata().map_err(io)?.len());
        let entries = &contents.entries[..intact::synced(&contents)];
        if bytes < entries.iter().map(JournalEntry::end).max().unwrap_or(0) && Superblock::decode(&head).is_none() {
            let why = format!(
                "its journal records more than its {bytes} bytes, and it does not begin as a run's file: if it was \
                replaced, put the run's file back; if that is lost, remove the journal {}",
                journal::path_beside(path).display()
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
        let kept = journal::keep_damaged(path)?;
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
fn head(file: &File) -> io::Result<[u8; superblock::LENGTH]> {
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
