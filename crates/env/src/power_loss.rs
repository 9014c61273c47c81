//! What a loss of power leaves of a directory: recorded while it is changed, chosen afterwards, made real elsewhere.
//!
//! A [`Recording`] notes every change below a directory that is made through [`crate::disk`]: bytes, lengths, names,
//! and what was fsynced. Its [`History`] can be cut off after any number of changes, the *points*, and asked what a
//! disk may hold if the power fails there: [`History::lose_power`] chooses one state of the many, by a seed, and
//! [`DiskState::write_to`] makes a directory of it, which the real code then opens. One run so gives the states of a
//! crash at each of its points.
//!
//! What a disk may hold, for whatever was not fsynced:
//!
//! - Each page of 4 KiB of a file is as it was after any of the changes to it since the last fsync, or torn between
//!   two of these, by sectors of 512 bytes; the length is any that the file had since then.
//! - [`CrashOrder::Journaled`], as ext4 and XFS do: names are lost from some moment on, in all directories; an fsync of
//!   anything keeps all names that were made before it; bytes that a length covers anew are there.
//! - [`CrashOrder::Anyhow`], the least that POSIX promises: each change of a name is kept or lost by itself, an fsync
//!   of a file keeps not even its name, and a length may cover pages that never arrived, which read as zeros.
//!
//! A rename within a directory is never half done. Owners, times and extended attributes are not looked at, nor is
//! what goes past the seam: mappings, descriptors that the kernel has. [`Recording::check`] finds bytes and names that
//! did.

mod disk_state;
mod replay;

pub use disk_state::DiskState;

use crate::disk::journal::{DiskChange, DiskJournal, DiskRecord, NodeKind, ROOT};
use replay::PowerLossReplay;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A page: what a file system writes at once, if nothing goes wrong.
pub const PAGE_BYTES: u64 = 4096;
/// What a disk writes at once.
pub const SECTOR_BYTES: usize = 512;

/// Records until it is dropped.
#[derive(Debug)]
pub struct Recording {
    root: PathBuf,
    before: DiskState,
    journal: Arc<DiskJournal>,
}

/// The changes of a recording, up to the moment when it was asked for.
#[derive(Clone, Debug)]
pub struct History {
    before: DiskState,
    record: DiskRecord,
}

/// What holds between names, lengths and bytes that were not fsynced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashOrder {
    Journaled,
    Anyhow,
}

/// What becomes of what was not fsynced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All is there, as after the death of the process.
    Kept,
    /// All is lost.
    Lost,
    /// Chance decides for each page, length and name.
    Chance { order: CrashOrder, seed: u64 },
}

impl Recording {
    /// Takes what is in `root` for durable, and records what becomes of it. Whoever changes something there must open
    /// its files after this.
    pub fn begin(root: &Path) -> io::Result<Recording> {
        let before = DiskState::read_from(root)?;
        let mut record = DiskRecord::default();
        assert_eq!(record.new_node(NodeKind::Directory), ROOT);
        let journal = DiskJournal::attach(root, record);
        journal.change(|record| {
            before.enter(root, record);
            record.changes.clear();
        });
        Ok(Recording { root: root.to_owned(), before, journal })
    }

    /// Notes that something has happened, to be found again by [`History::marks`].
    pub fn mark(&self, what: u64) {
        self.journal.change(|record| record.push(DiskChange::Mark(what)));
    }

    /// How many changes there were.
    pub fn points(&self) -> usize {
        self.journal.change(|record| record.changes.len())
    }

    pub fn history(&self) -> History {
        let record = self.journal.change(|record| record.clone());
        History { before: self.before.clone(), record }
    }

    /// Compares what the directory holds with what was recorded. The paths that differ were changed past the seam.
    /// Nothing may change there meanwhile.
    pub fn check(&self) -> io::Result<Vec<PathBuf>> {
        let history = self.history();
        Ok(history.lose_power(history.points(), Fate::Kept).difference(&DiskState::read_from(&self.root)?))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.journal.detach();
    }
}

impl History {
    /// How many changes there are. The power may fail after none of them, after all, and anywhere between.
    pub fn points(&self) -> usize {
        self.record.changes.len()
    }

    /// What was marked by the point, in order.
    pub fn marks(&self, point: usize) -> impl Iterator<Item = u64> + '_ {
        self.record.changes[..point].iter().filter_map(|change| match change {
            DiskChange::Mark(what) => Some(*what),
            _ => None,
        })
    }

    /// Whether the change that leads to the point is one of the disk at all.
    pub fn is_change(&self, point: usize) -> bool {
        point == 0 || !matches!(self.record.changes[point - 1], DiskChange::Mark(_) | DiskChange::SyncBegin { .. })
    }

    /// What the last changes before the point were, for people.
    pub fn describe(&self, point: usize, count: usize) -> String {
        let from = point.saturating_sub(count);
        let lines = (from..point).map(|at| format!("{at:6} {}\n", replay::describe(&self.record, at)));
        lines.collect()
    }

    /// What the directory holds if the power fails at the point.
    pub fn lose_power(&self, point: usize, fate: Fate) -> DiskState {
        let mut replay = PowerLossReplay::begin(&self.before, &self.record);
        for (at, change) in self.record.changes[..point].iter().enumerate() {
            replay.change(at, change);
        }
        replay.lose_power(fate)
    }
}

#[cfg(test)]
mod tests;
