//! Crash recovery: builds a valid file with every acknowledged frame from the journal and the bytes in the file. The
//! file's last commit supplies entries that a damaged journal has lost.

mod committed;
mod holes;
mod intact;
mod outcome;
mod stored;
mod unfinished;
mod without_head;
mod without_journal;

pub use intact::IntactFrames;
pub use outcome::{Headless, RecoverError, Recovered};
pub use unfinished::{UnfinishedRun, taken_away};
pub use without_journal::{NoJournal, UnfinishedFile};

use crate::allocate::{Allocator, punch};
use crate::commit::publish;
use crate::compact;
use crate::journal::{self, JournalError};
use crate::length::Length;
use crate::run_files::{self, remove_journal};
use crate::space_reservation::{Space, SpaceReservation};
use parking_lot::Mutex;
use std::path::Path;
use unfinished::hold;

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
    let found = match journal::read(&run_files::journal_of(path)) {
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
    // A whole copy of a damaged journal, put back, needs the file as it is.
    // Other processes may have left holes, whose number is not known.
    let copied = match damage.is_none() && found.granted() == Some(0) {
        true => compact::copy_if_possible(path, file, &mut catalog, (end, 0)),
        false => None,
    };
    remove_journal(path).map_err(io)?;
    compact::take_name_if_possible(copied, path, file);
    let counts = catalog.counts();
    let is_whole = |frame: &u64| catalog.status_of(*frame).is_whole() && !spoiled.contains(frame);
    let whole = (0..catalog.frames()).filter(is_whole).collect();
    Ok(Recovered { counts, torn_bytes, journal_damage: damage, restored, damaged_journal, whole, journal_head: None })
}
