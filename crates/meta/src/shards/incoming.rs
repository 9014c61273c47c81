//! Partitions that arrive by splits: which attempt's rows are accepted, and what has arrived. `import.rs` receives
//! them.

use super::names::NameSet;
use super::peers::SplitAttempt;
use std::collections::HashMap;
use varve_schema::{Change, EntryBody, Key, Row};
use varve_types::{InodeId, NameHash};

/// Limit on incoming partitions of a target. Above it all are dropped, and their sources begin again.
const INCOMING_MAX: usize = 10_000;

/// A split to this shard: the attempt whose rows are accepted.
pub(super) struct IncomingPartition {
    attempt: SplitAttempt,
    /// All rows have arrived.
    ended: bool,
    /// The names of the rows that have arrived.
    names: NameSet,
    entries: u64,
    subdirectories: u64,
}

impl IncomingPartition {
    fn new(attempt: SplitAttempt) -> IncomingPartition {
        IncomingPartition { attempt, ended: false, names: NameSet::default(), entries: 0, subdirectories: 0 }
    }

    fn takes(&self, attempt: SplitAttempt) -> bool {
        self.attempt == attempt && !self.ended
    }

    pub fn may_hold(&self, hash: NameHash) -> bool {
        self.names.may_hold(hash)
    }

    /// Records that all rows have arrived. Returns the numbers of entries and of subdirectories among them.
    pub fn end(&mut self) -> (u64, u64) {
        self.ended = true;
        (self.entries, self.subdirectories)
    }

    /// Updates the names and counts. `before`: the row that the change replaces, if there is one.
    pub fn note(&mut self, change: &Change, before: Option<&Row>) {
        let (key, after) = match change {
            Change::Put(key, row) => (key, Some(&**row)),
            Change::Delete(key) => (key, None),
            Change::Tally { .. } => return,
        };
        let Key::Entry(_, name) = key else { return };
        if before.is_some() {
            self.names.remove(name.hash());
        }
        if after.is_some() {
            self.names.insert(name.hash());
        }
        let of = |row: Option<&Row>| (u64::from(row.is_some()), u64::from(row.is_some_and(is_directory)));
        let ((gone, gone_directories), (come, come_directories)) = (of(before), of(after));
        self.entries = (self.entries + come).saturating_sub(gone);
        self.subdirectories = (self.subdirectories + come_directories).saturating_sub(gone_directories);
    }
}

/// All incoming partitions of a shard.
#[derive(Default)]
pub(super) struct IncomingPartitions(HashMap<InodeId, IncomingPartition>);

impl IncomingPartitions {
    /// Begins an attempt. `false`: it or a later one has begun before, even if all its rows have arrived.
    pub fn begin(&mut self, directory: InodeId, attempt: SplitAttempt) -> bool {
        if self.0.get(&directory).is_some_and(|known| known.attempt >= attempt) {
            return false;
        }
        if self.0.len() >= INCOMING_MAX {
            self.0.clear();
        }
        self.0.insert(directory, IncomingPartition::new(attempt));
        true
    }

    /// Whether rows of this attempt are accepted now.
    pub fn accept(&self, directory: InodeId, attempt: SplitAttempt) -> bool {
        self.0.get(&directory).is_some_and(|incoming_partition| incoming_partition.takes(attempt))
    }

    /// The incoming partition that accepts rows of this attempt now.
    pub fn accepting(&mut self, directory: InodeId, attempt: SplitAttempt) -> Option<&mut IncomingPartition> {
        self.0.get_mut(&directory).filter(|incoming_partition| incoming_partition.takes(attempt))
    }

    /// Removes an incoming partition. Returns its names, if all its rows have arrived.
    pub fn take_names(&mut self, directory: InodeId) -> Option<NameSet> {
        let incoming_partition = self.0.remove(&directory)?;
        incoming_partition.ended.then_some(incoming_partition.names)
    }
}

fn is_directory(row: &Row) -> bool {
    matches!(row, Row::Entry(entry) if matches!(entry.body, EntryBody::Directory(_)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::Epoch;

    /// Promise: only rows of the latest attempt are accepted, and none after its last one.
    #[test]
    fn only_the_latest_attempt_is_accepted() {
        let [first, second] = [1, 2].map(|number| SplitAttempt { epoch: Epoch(1), number });
        let (mut incoming, directory) = (IncomingPartitions::default(), InodeId::ROOT);
        assert!(incoming.begin(directory, first) && incoming.begin(directory, second));
        assert!(!incoming.begin(directory, second) && !incoming.begin(directory, first));
        assert!(!incoming.accept(directory, first) && incoming.accept(directory, second));
        incoming.accepting(directory, second).unwrap().end();
        assert!(!incoming.accept(directory, second) && !incoming.begin(directory, second));
        assert!(incoming.take_names(directory).is_some());
    }

    /// Promise: the names of an attempt whose rows have not all arrived are dropped.
    #[test]
    fn unfinished_import_has_no_names() {
        let mut incoming = IncomingPartitions::default();
        assert!(incoming.begin(InodeId::ROOT, SplitAttempt { epoch: Epoch(1), number: 1 }));
        assert!(incoming.take_names(InodeId::ROOT).is_none());
    }
}
