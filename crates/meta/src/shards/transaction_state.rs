//! The cross-shard transactions that a shard coordinates and takes part in (`transaction.rs` has the protocol).

use super::refusal::Cause;
use super::transaction_parts::directory_of;
use std::collections::{HashMap, HashSet};
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_schema::{Change, IntentRow, ReplyRecord, TransactionId};
use varve_types::{Epoch, InodeId, SessionId, ShardId};

/// Pause between attempts to reach a shard about a decision. The number of attempts has no limit: a decision must be
/// carried out, and the shard either replies or this server stops.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(200);

/// A prepared participant asks the coordinator after this time without news.
pub(super) const ASK_AFTER: Duration = Duration::from_secs(10);

/// Limit on committed transactions that are not settled; above it new ones fail with `Busy`.
const UNSETTLED_MAX: usize = 20_000;

#[derive(Default)]
pub(super) struct Transactions {
    counter: u64,
    /// Coordinated here, not decided.
    undecided: HashSet<TransactionId, KeyHashing>,
    /// Coordinated here, committed, and not settled.
    decided: HashSet<TransactionId, KeyHashing>,
    /// Committed transactions whose part this shard has applied, and which their coordinators have not settled.
    pub applied: HashSet<TransactionId, KeyHashing>,
    pub settling: Settling,
    /// Calls whose transactions an earlier owner left undecided: their replies, if any, are not known yet.
    recovering: HashSet<(SessionId, u32)>,
    /// Intents of this shard: parts of transactions that other shards coordinate, and parts of an earlier epoch.
    pub prepared: HashMap<TransactionId, Prepared, KeyHashing>,
    /// Directories affected by intents of an earlier epoch.
    to_pin: ToPin,
    /// A task watches the prepared removals among the intents.
    pub removals_watched: bool,
}

impl Transactions {
    pub fn open(&self) -> usize {
        self.undecided.len() + self.decided.len() + self.prepared.len()
    }

    pub fn are_many(&self) -> bool {
        self.decided.len() >= UNSETTLED_MAX
    }

    /// Records a committed transaction. This shard reports it as committed until the other shards have applied it.
    pub fn note_decided(&mut self, transaction: TransactionId) {
        self.decided.insert(transaction);
    }

    pub fn is_decided(&self, transaction: TransactionId) -> bool {
        self.decided.contains(&transaction)
    }

    /// `false`: the transaction is not undecided.
    pub fn forget_undecided(&mut self, transaction: TransactionId) -> bool {
        self.undecided.remove(&transaction)
    }

    pub fn forget_decided(&mut self, transaction: TransactionId) {
        self.decided.remove(&transaction);
    }

    /// Adds an intent of this shard.
    pub fn add_prepared(&mut self, transaction: TransactionId, prepared: Prepared) {
        if prepared.found_at_open {
            self.to_pin.add(&prepared.intent.changes);
        }
        self.prepared.insert(transaction, prepared);
    }

    /// Removes an intent of this shard that is to be applied or dropped.
    pub fn take_prepared(&mut self, transaction: TransactionId) -> Option<Prepared> {
        let prepared = self.prepared.remove(&transaction)?;
        if prepared.found_at_open {
            self.to_pin.remove(&prepared.intent.changes);
        }
        Some(prepared)
    }

    /// Number of intents of an earlier epoch that affect this directory.
    pub fn pins_of(&self, directory: InodeId) -> u32 {
        self.to_pin.count(directory)
    }

    pub fn begin_recovery(&mut self, reply: &ReplyRecord) {
        self.recovering.insert((reply.session, reply.slot));
    }

    pub fn end_recovery(&mut self, reply: &ReplyRecord) {
        self.recovering.remove(&(reply.session, reply.slot));
    }

    pub fn is_recovering(&self, session: SessionId, slot: u32) -> bool {
        !self.recovering.is_empty() && self.recovering.contains(&(session, slot))
    }

    /// The coordinator of an intent of this shard did not report the outcome when it was asked.
    pub fn note_unanswered(&mut self, transaction: TransactionId, cause: Cause) {
        if let Some(prepared) = self.prepared.get_mut(&transaction) {
            prepared.unanswered = Some(cause);
        }
    }

    /// Why the coordinator of an intent of this shard did not report the outcome, if it was asked.
    pub fn unanswered(&self, transaction: TransactionId) -> Option<Cause> {
        self.prepared.get(&transaction)?.unanswered.clone()
    }

    /// An id for an undecided change.
    pub fn begin(&mut self, coordinator: ShardId, epoch: Epoch) -> TransactionId {
        self.counter += 1;
        let transaction = TransactionId { coordinator, epoch, counter: self.counter };
        self.undecided.insert(transaction);
        transaction
    }
}

/// An intent of this shard.
pub(super) struct Prepared {
    pub intent: IntentRow,
    /// From an earlier epoch: its partitions stay loaded and unsplit once they are loaded.
    pub found_at_open: bool,
    pub since: Instant,
    /// A task asks the coordinator for the outcome, or decides it.
    pub asks: bool,
    /// The error of the coordinator's shard when it was last asked for the outcome.
    pub unanswered: Option<Cause>,
}

/// Transactions coordinated here that every participant has applied or is to apply now, until they are settled.
#[derive(Default)]
pub(super) struct Settling {
    waiting: Vec<(TransactionId, Vec<ShardId>)>,
    /// A task is scheduled to settle the waiting transactions.
    awaited: bool,
    /// Tasks that carry out or settle transactions.
    at_work: u32,
}

impl Settling {
    /// A task begins to carry out a transaction.
    pub fn begin_work(&mut self) {
        self.at_work += 1;
    }

    pub fn end_work(&mut self) {
        self.at_work -= 1;
    }

    pub fn is_idle(&self) -> bool {
        self.at_work == 0
    }

    /// Adds committed transactions with their participants.
    pub fn add(&mut self, committed: impl IntoIterator<Item = (TransactionId, Vec<ShardId>)>) {
        self.waiting.extend(committed);
    }

    /// `false`: a task is scheduled already.
    pub fn schedule(&mut self) -> bool {
        !std::mem::replace(&mut self.awaited, true)
    }

    /// Takes the waiting transactions for a task that settles them, which begins its work.
    pub fn take(&mut self) -> Vec<(TransactionId, Vec<ShardId>)> {
        self.awaited = false;
        self.begin_work();
        std::mem::take(&mut self.waiting)
    }
}

/// Directories whose partitions are affected by undecided changes of an earlier epoch, with the number of changes for
/// each. They are collected before any partition is loaded. A partition that is loaded later stays loaded and unsplit,
/// like those of locked changes: removing it would break a change that is committed.
#[derive(Default)]
struct ToPin(HashMap<InodeId, u32, KeyHashing>);

impl ToPin {
    fn add(&mut self, changes: &[Change]) {
        for directory in changes.iter().filter_map(directory_of) {
            *self.0.entry(directory).or_default() += 1;
        }
    }

    fn remove(&mut self, changes: &[Change]) {
        for directory in changes.iter().filter_map(directory_of) {
            if let Some(count) = self.0.get_mut(&directory) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(&directory);
                }
            }
        }
    }

    fn count(&self, directory: InodeId) -> u32 {
        self.0.get(&directory).copied().unwrap_or(0)
    }
}
