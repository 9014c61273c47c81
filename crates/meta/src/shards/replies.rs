//! Answers given to changes, so that a retry gets the first one.
//!
//! A slot of a session has one call under way at a time, so its latest answer is enough. The answers of a batch are
//! stored in the batch as one row and found again at the next open.

use crate::tables::ReplyRecord;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use varve_types::{HashRange, InodeId, SessionId};
use varve_world::clock::Moment;

/// How long stored answers are kept: twice the longest deadline after which a client gives up a call.
pub(super) const KEPT: Duration = Duration::from_secs(120);

/// Slots remembered a shard. At 200 bytes an answer this is 20 MB; past it the oldest slots are forgotten.
const SLOTS_MAX: usize = 100_000;

#[derive(Default)]
pub(super) struct Replies {
    latest: HashMap<(SessionId, u32), ReplyRecord>,
    order: VecDeque<(SessionId, u32)>,
    /// Stored rows and when they were written.
    stored: VecDeque<(u64, Moment)>,
    next_row: u64,
}

impl Replies {
    pub fn remember(&mut self, record: ReplyRecord) {
        let slot = (record.session, record.slot);
        match self.latest.get_mut(&slot) {
            Some(known) if known.number > record.number => {}
            Some(known) => *known = record,
            None => {
                self.latest.insert(slot, record);
                self.order.push_back(slot);
            }
        }
        if self.latest.len() > SLOTS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.latest.remove(&oldest);
        }
    }

    /// The answer already given to this call.
    pub fn find(&self, session: SessionId, slot: u32, number: u64) -> Option<Bytes> {
        let record = self.latest.get(&(session, slot))?;
        (record.number == number).then(|| record.reply.clone())
    }

    pub fn end_session(&mut self, session: SessionId) {
        self.latest.retain(|(owner, _), _| *owner != session);
        self.order.retain(|(owner, _)| *owner != session);
    }

    /// The number of the next stored row.
    pub fn number_row(&mut self, now: Moment) -> u64 {
        let number = self.next_row;
        self.next_row += 1;
        self.stored.push_back((number, now));
        number
    }

    /// Takes in a row found at open.
    pub fn restore(&mut self, number: u64, records: Vec<ReplyRecord>, now: Moment) {
        self.next_row = self.next_row.max(number + 1);
        self.stored.push_back((number, now));
        records.into_iter().for_each(|record| self.remember(record));
    }

    /// A stored row that is old enough to go.
    pub fn expired(&mut self, now: Moment) -> Option<u64> {
        let (_, written) = self.stored.front()?;
        (now.since(*written) > KEPT).then(|| self.stored.pop_front().map(|(number, _)| number))?
    }

    /// Answers about names of `directory` in `range`, which a split takes along.
    pub fn about(&self, directory: InodeId, range: HashRange) -> Vec<ReplyRecord> {
        let concerns = |about: &Option<(InodeId, varve_types::NameHash)>| {
            about.is_some_and(|(id, hash)| id == directory && range.contains(hash))
        };
        self.latest.values().filter(|record| concerns(&record.about)).cloned().collect()
    }
}
