//! The states of a directory that a power loss may leave: recorded while the directory changes, chosen afterwards,
//! written to another directory.
//!
//! A [`Recording`] records every change below a directory that is made through [`crate::disk`]: bytes, lengths, names,
//! and fsyncs. Its [`History`] can be cut after any number of changes, the *points*. For a point,
//! [`History::lose_power`] chooses by a seed one of the many states in which a power failure may leave the disk, and
//! [`DiskState::write_to`] writes that state to a directory, which the real code then opens. So one run yields the
//! states of a crash at each of its points.
//!
//! Possible states of data that was not fsynced:
//!
//! - Each page of 4 KiB of a file is as it was after any of the changes to it since the last fsync, or torn between two
//!   of these, by sectors of 512 bytes. The length is any that the file had since then.
//! - [`CrashOrder::Journaled`], as ext4 and XFS behave: all changes of names after some point in time are lost, in all
//!   directories; an fsync of anything keeps all names that were made before it; bytes that a length newly covers are
//!   present.
//! - [`CrashOrder::Anyhow`], the minimum that POSIX guarantees: each change of a name is kept or lost independently, an
//!   fsync of a file does not even keep its name, and a length may cover pages that were never written, which read as
//!   zeros.
//!
//! A rename within a directory is atomic. The recording covers neither owners, times and extended attributes, nor
//! changes that bypass [`crate::disk`]: mappings, and descriptors passed to the kernel. [`Recording::check`] finds
//! bytes and names that changed that way.

mod disk_state;
mod replay;

pub use disk_state::DiskState;

use crate::disk::journal::{DiskChange, DiskJournal, DiskRecord, NodeKind, ROOT};
use replay::PowerLossReplay;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A page: the unit in which a file system normally writes.
pub const PAGE_BYTES: u64 = 4096;
/// A sector: the unit in which a disk writes.
pub const SECTOR_BYTES: usize = 512;

/// Records until it is dropped.
#[derive(Debug)]
pub struct Recording {
    root: PathBuf,
    before: DiskState,
    journal: Arc<DiskJournal>,
}

/// The changes of a recording up to the time at which the history was requested.
#[derive(Clone, Debug)]
pub struct History {
    before: DiskState,
    record: DiskRecord,
}

/// The order between names, lengths and bytes that were not fsynced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashOrder {
    Journaled,
    Anyhow,
}

/// Outcome for data that was not fsynced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// All of it survives, as after the death of the process.
    Kept,
    /// All of it is lost.
    Lost,
    /// Decided at random for each page, length and name.
    Chance { order: CrashOrder, seed: u64 },
}

impl Recording {
    /// Takes the present content of `root` as durable, and records later changes. Code that changes files there must
    /// open them after this call.
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

    /// Marks an event, which [`History::marks`] returns.
    pub fn mark(&self, what: u64) {
        self.journal.change(|record| record.push(DiskChange::Mark(what)));
    }

    /// Number of changes.
    pub fn points(&self) -> usize {
        self.journal.change(|record| record.changes.len())
    }

    pub fn history(&self) -> History {
        let record = self.journal.change(|record| record.clone());
        History { before: self.before.clone(), record }
    }

    /// Compares the directory's content with the recording. The returned paths were changed without [`crate::disk`].
    /// Nothing may change in the directory during the call.
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
    /// Number of changes. The power may fail after any number of them, from none to all.
    pub fn points(&self) -> usize {
        self.record.changes.len()
    }

    /// The marks up to the point, in order.
    pub fn marks(&self, point: usize) -> impl Iterator<Item = u64> + '_ {
        self.record.changes[..point].iter().filter_map(|change| match change {
            DiskChange::Mark(what) => Some(*what),
            _ => None,
        })
    }

    /// Whether the change that leads to the point is a change of the disk.
    pub fn is_change(&self, point: usize) -> bool {
        point == 0 || !matches!(self.record.changes[point - 1], DiskChange::Mark(_) | DiskChange::SyncBegin { .. })
    }

    /// Describes the last changes before the point in readable text.
    pub fn describe(&self, point: usize, count: usize) -> String {
        let from = point.saturating_sub(count);
        let lines = (from..point).map(|at| format!("{at:6} {}\n", replay::describe(&self.record, at)));
        lines.collect()
    }

    /// The state of the directory if the power fails at the point.
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
