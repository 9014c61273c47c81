//! A partition that arrives here by a split: the target's side of [`super::split`].
//!
//! What arrives is written and kept in memory, for it is what was in use at the source a moment ago. Until the partition is
//! live nobody decides on its rows; what an attempt that was given up left of them is dropped, here and in the table, before
//! the next one brings any.

use super::names::NameSet;
use super::peers::{PeerReply, SplitAttempt};
use super::refusal::{Cause, Refusal};
use super::shard::{Shard, State};
use crate::tables::codec;
use crate::tables::{Change, EntryBody, Key, ReplyRecord, Row};
use std::collections::HashMap;
use std::rc::Rc;
use varve_types::{HashRange, InodeId, Name};
use varve_world::key_hash::KeyHashing;

/// Arrivals that a target knows of. Above it all are forgotten, and begun anew by their sources.
const ARRIVALS_MAX: usize = 10_000;

/// Names of an arrival that are kept while it lasts, some hundred bytes each. Of more the table is asked when all are there.
const NAMES_KEPT_MAX: usize = 64 * 1024;

/// A split to here: the attempt whose rows are taken.
pub(super) struct Arrival {
    attempt: SplitAttempt,
    /// All rows are there.
    ended: bool,
    /// The names that have come, and whether each is a directory's; `None`: too many.
    names: Option<HashMap<Name, bool, KeyHashing>>,
}

impl Arrival {
    fn new(attempt: SplitAttempt) -> Arrival {
        Arrival { attempt, ended: false, names: Some(HashMap::default()) }
    }

    fn note(&mut self, change: &Change) {
        let Some(names) = &mut self.names else { return };
        match change {
            Change::Put(Key::Entry(_, name), Row::Entry(entry)) => {
                names.insert(name.clone(), matches!(entry.body, EntryBody::Directory(_)));
            }
            Change::Delete(Key::Entry(_, name)) => {
                names.remove(name);
            }
            _ => {}
        }
        if names.len() > NAMES_KEPT_MAX {
            self.names = None;
        }
    }

    /// Entries, and how many of them are directories.
    fn counts(&self) -> Option<(u64, u64)> {
        let names = self.names.as_ref()?;
        Some((names.len() as u64, names.values().filter(|is_directory| **is_directory).count() as u64))
    }
}

impl Shard {
    /// Step 2. Refused once the partition is live, and while a later attempt is under way: a source that has ended and
    /// does not know it must not touch what its successor has moved.
    pub(super) async fn adopt_begin(self: &Rc<Self>, directory: InodeId, attempt: SplitAttempt) -> Result<(), Refusal> {
        match self.load_partition(directory).await {
            Ok(()) => {
                let live = format!("the partition of directory {directory} in shard {} is live", self.id);
                return Err(Refusal::Failed(live.into()));
            }
            // The source is working on it, and this is the source.
            Err(Refusal::Busy) => {}
            Err(refusal) => return Err(refusal),
        }
        {
            let arrivals = &mut self.state.borrow_mut().arrivals;
            if arrivals.get(&directory).is_some_and(|known| !known.ended && known.attempt > attempt) {
                return Err(self.of_another_attempt(directory));
            }
            if arrivals.len() >= ARRIVALS_MAX {
                arrivals.clear();
            }
            arrivals.insert(directory, Arrival::new(attempt));
        }
        self.delete_entries(directory, HashRange::ALL).await
    }

    /// The arrival that takes the rows of this attempt at this moment.
    fn arrival<'s>(
        &self,
        state: &'s mut State,
        directory: InodeId,
        attempt: SplitAttempt,
    ) -> Result<&'s mut Arrival, Refusal> {
        match state.arrivals.get_mut(&directory) {
            Some(arrival) if arrival.attempt == attempt && !arrival.ended => Ok(arrival),
            _ => Err(self.of_another_attempt(directory)),
        }
    }

    fn of_another_attempt(&self, directory: InodeId) -> Refusal {
        Refusal::Failed(format!("shard {} adopts from another attempt to split directory {directory}", self.id).into())
    }

    pub(super) async fn adopt_rows(
        &self,
        directory: InodeId,
        attempt: SplitAttempt,
        changes: Vec<Change>,
        replies: Vec<ReplyRecord>,
    ) -> Result<(), Refusal> {
        let batch = {
            let mut state = self.state.borrow_mut();
            let arrival = self.arrival(&mut state, directory, attempt)?;
            changes.iter().for_each(|change| arrival.note(change));
            let number = state.open.number;
            for change in changes {
                let (key, row) = match change {
                    Change::Put(key, row) => (key, Some(row)),
                    Change::Delete(key) => (key, None),
                    Change::Tally { .. } => {
                        return Err(Refusal::Failed(Cause::from("a split sends rows, not tallies")));
                    }
                };
                state.open.write(&key, row.as_ref());
                state.resident.set(key, row, number);
            }
            replies.into_iter().for_each(|record| self.remember(&mut state, record));
            number
        };
        self.appended_with_work(batch).await
    }

    /// Step 5.
    pub(super) async fn adopt_end(
        self: &Rc<Self>,
        directory: InodeId,
        attempt: SplitAttempt,
        partition: Row,
    ) -> Result<PeerReply, Refusal> {
        let Row::Partition(mut row) = partition else {
            return Err(Refusal::Failed(Cause::from("a split ends with a partition row")));
        };
        let counted = self.arrival(&mut self.state.borrow_mut(), directory, attempt)?.counts();
        let (entries, subdirectories) = match counted {
            Some(counts) => counts,
            None => self.count_entries(directory, row.index.range(row.depth)).await?,
        };
        (row.entries, row.subdirectories) = (entries, subdirectories);
        let batch = {
            let mut state = self.state.borrow_mut();
            self.arrival(&mut state, directory, attempt)?.ended = true;
            let key = Key::Partition(directory, row.index);
            // Not loaded: whoever asks for a name of it loads it, and so asks the source.
            state.open.write(&key, Some(&Row::Partition(row)));
            state.resident.forget(|resident| *resident != key);
            state.open.number
        };
        self.work.notify_one();
        match self.done_when_durable(batch).await {
            PeerReply::Done => Ok(PeerReply::Adopted { entries, subdirectories }),
            failed => Ok(failed),
        }
    }

    async fn count_entries(&self, directory: InodeId, range: HashRange) -> Result<(u64, u64), Refusal> {
        let bytes = codec::entries_of(directory, range);
        let mut cursor = self.table.scan(bytes.start.into(), bytes.end.into()).await.map_err(|e| self.unreadable(e))?;
        let (mut entries, mut subdirectories) = (0, 0);
        while let Some((key, row)) = cursor.next().await.map_err(|e| self.unreadable(e))? {
            entries += 1;
            if let (_, Row::Entry(entry)) = self.decoded(&key, &row)?
                && matches!(entry.body, EntryBody::Directory(_))
            {
                subdirectories += 1;
            }
        }
        Ok((entries, subdirectories))
    }

    /// The names of a partition that has just arrived here and becomes live now, if they were kept.
    pub(super) fn arrived_names(&self, directory: InodeId) -> Option<NameSet> {
        let arrival = self.state.borrow_mut().arrivals.remove(&directory)?;
        let mut set = NameSet::default();
        arrival.names.filter(|_| arrival.ended)?.keys().for_each(|name| set.insert(name.hash()));
        Some(set)
    }
}
