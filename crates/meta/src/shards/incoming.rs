//! A partition that arrives here by a split: the target's side of [`super::split`].
//!
//! What arrives is written and kept in memory, for it is what was in use at the source a moment ago. Until the partition is
//! live nobody decides on its rows; what an attempt that was given up left of them is dropped, here and in the table, before
//! the next one brings any.

use super::names::NameSet;
use super::peers::{PeerReply, SplitAttempt};
use super::refusal::{Cause, ShardRefusal};
use super::shard::{Shard, ShardState};
use crate::tables::{Change, EntryBody, Key, ReplyRecord, Row};
use std::rc::Rc;
use varve_types::{HashRange, InodeId};

/// Arrivals that a target knows of. Above it all are forgotten, and begun anew by their sources.
const INCOMING_MAX: usize = 10_000;

/// A split to here: the attempt whose rows are taken.
pub(super) struct IncomingPartition {
    attempt: SplitAttempt,
    /// All rows are there.
    ended: bool,
    /// Of the rows that have come.
    names: NameSet,
    entries: u64,
    subdirectories: u64,
}

impl IncomingPartition {
    fn new(attempt: SplitAttempt) -> IncomingPartition {
        IncomingPartition { attempt, ended: false, names: NameSet::default(), entries: 0, subdirectories: 0 }
    }

    pub fn takes(&self, attempt: SplitAttempt) -> bool {
        self.attempt == attempt && !self.ended
    }

    /// `before`: the row that the change takes the place of, if there is one.
    fn note(&mut self, change: &Change, before: Option<&Row>) {
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
        self.entries = self.entries + come - gone;
        self.subdirectories = self.subdirectories + come_directories - gone_directories;
    }
}

fn is_directory(row: &Row) -> bool {
    matches!(row, Row::Entry(entry) if matches!(entry.body, EntryBody::Directory(_)))
}

impl Shard {
    /// Step 1. Refused once the partition is live, and while a later attempt is under way: a source that has ended and
    /// does not know it must not touch what its successor has moved.
    pub(super) async fn import_begin(
        self: &Rc<Self>,
        directory: InodeId,
        attempt: SplitAttempt,
    ) -> Result<(), ShardRefusal> {
        match self.load_partition(directory).await {
            Ok(()) => {
                let live = format!("the partition of directory {directory} in shard {} is live", self.id);
                return Err(ShardRefusal::Failed(live.into()));
            }
            // The source is working on it, and this is the source.
            Err(ShardRefusal::Busy) => {}
            Err(refusal) => return Err(refusal),
        }
        let batch = {
            let state = &mut *self.state.borrow_mut();
            let incoming_partitions = &mut state.incoming_partitions;
            if incoming_partitions.get(&directory).is_some_and(|known| !known.ended && known.attempt > attempt) {
                return Err(self.of_another_attempt(directory));
            }
            if incoming_partitions.len() >= INCOMING_MAX {
                incoming_partitions.clear();
            }
            incoming_partitions.insert(directory, IncomingPartition::new(attempt));
            state.open.number
        };
        // What an attempt brought that was given up over a store that hung may still be on its way to where it is looked for.
        self.appended_with_work(batch).await?;
        // A later attempt may have begun since, and have brought its own.
        let may = |state: &ShardState| match state.incoming_partitions.get(&directory) {
            Some(incoming_partition) if incoming_partition.takes(attempt) => Ok(()),
            _ => Err(self.of_another_attempt(directory)),
        };
        self.delete_entries(directory, HashRange::ALL, may).await
    }

    /// The arrival that takes the rows of this attempt at this moment.
    fn incoming_partition<'s>(
        &self,
        state: &'s mut ShardState,
        directory: InodeId,
        attempt: SplitAttempt,
    ) -> Result<&'s mut IncomingPartition, ShardRefusal> {
        match state.incoming_partitions.get_mut(&directory) {
            Some(incoming_partition) if incoming_partition.takes(attempt) => Ok(incoming_partition),
            _ => Err(self.of_another_attempt(directory)),
        }
    }

    fn of_another_attempt(&self, directory: InodeId) -> ShardRefusal {
        ShardRefusal::Failed(
            format!("shard {} adopts from another attempt to split directory {directory}", self.id).into(),
        )
    }

    pub(super) async fn import_rows(
        &self,
        directory: InodeId,
        attempt: SplitAttempt,
        changes: Vec<Change>,
        replies: Vec<ReplyRecord>,
    ) -> Result<(), ShardRefusal> {
        let mut before = Vec::with_capacity(changes.len());
        for change in &changes {
            before.push(self.arrived_before(directory, attempt, change).await?);
        }
        let batch = {
            let mut state = self.state.borrow_mut();
            let incoming_partition = self.incoming_partition(&mut state, directory, attempt)?;
            changes.iter().zip(&before).for_each(|(change, before)| incoming_partition.note(change, before.as_ref()));
            let number = state.open.number;
            for change in changes {
                let (key, row) = match change {
                    Change::Put(key, row) => (key, Some(row)),
                    Change::Delete(key) => (key, None),
                    Change::Tally { .. } => {
                        return Err(ShardRefusal::Failed(Cause::from("a split sends rows, not tallies")));
                    }
                };
                state.open.write(&key, row.as_deref());
                state.resident.set(key, row, number);
            }
            replies.into_iter().for_each(|record| self.remember(&mut state, record));
            number
        };
        self.appended_with_work(batch).await
    }

    /// The row that a change of a row takes the place of. Almost none does while the half is copied for the first time.
    async fn arrived_before(
        &self,
        directory: InodeId,
        attempt: SplitAttempt,
        change: &Change,
    ) -> Result<Option<Row>, ShardRefusal> {
        let (Change::Put(key, _) | Change::Delete(key)) = change else { return Ok(None) };
        let Key::Entry(_, name) = key else { return Ok(None) };
        {
            let mut state = self.state.borrow_mut();
            if !self.incoming_partition(&mut state, directory, attempt)?.names.may_hold(name.hash()) {
                return Ok(None);
            }
        }
        self.decided_row(key).await
    }

    /// Step 5.
    pub(super) async fn import_end(
        self: &Rc<Self>,
        directory: InodeId,
        attempt: SplitAttempt,
        partition: Row,
    ) -> Result<PeerReply, ShardRefusal> {
        let Row::Partition(mut row) = partition else {
            return Err(ShardRefusal::Failed(Cause::from("a split ends with a partition row")));
        };
        let (batch, imported) = {
            let mut state = self.state.borrow_mut();
            let incoming_partition = self.incoming_partition(&mut state, directory, attempt)?;
            incoming_partition.ended = true;
            (row.entries, row.subdirectories) = (incoming_partition.entries, incoming_partition.subdirectories);
            let imported = PeerReply::Imported { entries: row.entries, subdirectories: row.subdirectories };
            let key = Key::Partition(directory, row.index);
            // Not loaded: whoever asks for a name of it loads it, and so asks the source.
            state.open.write(&key, Some(&Row::Partition(row)));
            state.resident.forget(|resident| *resident != key);
            (state.open.number, imported)
        };
        self.work.notify_one();
        match self.done_when_durable(batch).await {
            PeerReply::Done => Ok(imported),
            failed => Ok(failed),
        }
    }

    /// The names of a partition that has just arrived here and becomes live now.
    pub(super) fn arrived_names(&self, directory: InodeId) -> Option<NameSet> {
        let incoming_partition = self.state.borrow_mut().incoming_partitions.remove(&directory)?;
        incoming_partition.ended.then_some(incoming_partition.names)
    }
}
