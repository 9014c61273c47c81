//! A partition that arrives in this shard by a split: the target's side of [`super::split`].
//!
//! Arriving rows are written and kept in memory, because they were just in use at the source. No request decides on
//! them until the partition is live. Rows left by an abandoned attempt are dropped, here and in the table, before the
//! next attempt sends any.

use super::incoming::IncomingPartition;
use super::names::NameSet;
use super::peers::{PeerReply, SplitAttempt};
use super::refusal::{Cause, ShardRefusal};
use super::shard::{Shard, ShardState};
use std::rc::Rc;
use varve_schema::{Change, Key, ReplyRecord, Row};
use varve_types::{HashRange, InodeId};

impl Shard {
    /// Step 1. Refuses if the partition is live, or if this attempt or a later one has begun, even if all its rows have
    /// arrived: a source that has ended without knowing it, or a call that arrives late, must not touch rows that are
    /// about to become live.
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
            // The source, which made this call, is working on the partition.
            Err(ShardRefusal::Busy) => {}
            Err(refusal) => return Err(refusal),
        }
        let batch = {
            let state = &mut *self.state.borrow_mut();
            if !state.incoming_partitions.begin(directory, attempt) {
                return Err(self.of_another_attempt(directory));
            }
            state.open.number
        };
        // Rows of an attempt abandoned on a hung store may still be on their way to the table, where they must be
        // deleted.
        self.appended_with_work(batch).await?;
        // A later attempt may have begun since and have sent its own rows.
        let may = |state: &ShardState| match state.incoming_partitions.accept(directory, attempt) {
            true => Ok(()),
            false => Err(self.of_another_attempt(directory)),
        };
        self.delete_entries(directory, HashRange::ALL, may).await
    }

    /// The incoming partition that accepts rows of this attempt now.
    fn incoming_partition<'s>(
        &self,
        state: &'s mut ShardState,
        directory: InodeId,
        attempt: SplitAttempt,
    ) -> Result<&'s mut IncomingPartition, ShardRefusal> {
        let accepting = state.incoming_partitions.accepting(directory, attempt);
        accepting.ok_or_else(|| self.of_another_attempt(directory))
    }

    fn of_another_attempt(&self, directory: InodeId) -> ShardRefusal {
        ShardRefusal::Failed(
            format!("shard {} imports from another attempt to split directory {directory}", self.id).into(),
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
                        return Err(ShardRefusal::Failed(Cause::from("a split sent a tally instead of rows")));
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

    /// The row that a change of a row replaces. During the first copy of the half there is almost never one.
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
            if !self.incoming_partition(&mut state, directory, attempt)?.may_hold(name.hash()) {
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
            return Err(ShardRefusal::Failed(Cause::from("a split did not end with a partition row")));
        };
        let (batch, imported) = {
            let mut state = self.state.borrow_mut();
            let incoming_partition = self.incoming_partition(&mut state, directory, attempt)?;
            (row.entries, row.subdirectories) = incoming_partition.end();
            let imported = PeerReply::Imported { entries: row.entries, subdirectories: row.subdirectories };
            let key = Key::Partition(directory, row.index);
            // Not loaded: the first request for a name of the partition loads it, and thereby asks the source.
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
        self.state.borrow_mut().incoming_partitions.take_names(directory)
    }
}
