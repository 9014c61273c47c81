//! Cross-shard transactions, the coordinator's side: two-phase commit with presumed abort. The participant's side is in
//! `participant.rs`.
//!
//! (Changes for which other shards only remove rows of a directory use another protocol: `removal.rs`.)
//!
//! The coordinator is the shard that received the request. Order of what becomes durable:
//!
//! 1. Each participant checks that the rows the decision depends on are unchanged and that no session has opened an
//!    inode that the decision takes to be open nowhere. It writes an intent, fsyncs, and votes. From then on the keys
//!    it will change are locked: no other request sees or changes them.
//! 2. The coordinator writes its decision together with its own changes and the reply, and fsyncs. Then it replies.
//! 3. Each participant applies its intent and deletes it, in one batch, and fsyncs.
//! 4. The coordinator deletes the decision.
//!
//! A participant that has waited too long, or was opened again, asks the coordinator. No decision means aborted; a
//! question about an undecided change aborts it. The end of an epoch leaves nothing undecided: the next epoch knows
//! only decisions. A conflict never waits but fails with `Busy`, so opposite changes cannot deadlock.

use super::foreign::Foreign;
use super::locks::{ToPin, lock, lock_keys, unlock};
use super::participant::{IntentKept, Prepared, orphans_of};
use super::peers::{PeerCall, PeerReply};
use super::refusal::{Cause, ShardRefusal};
use super::removal::{PreparedRemoval, only_removes};
use super::resident::BatchNumber;
use super::shard::{Shard, ShardState};
use futures::future::join_all;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_env::key_hash::KeyHashing;
use varve_schema::codec;
use varve_schema::{Change, DecisionRow, IntentRow, Key, PartitionRow, ReadRecord, ReplyRecord, Row, TransactionId};
use varve_types::{Epoch, InodeId, ShardId, Timestamp};
use xxhash_rust::xxh3::xxh3_64;

/// Pause between attempts to reach a shard about a decision. The number of attempts has no limit: a decision must be
/// carried out, and the shard either replies or this server stops.
pub(super) const ASK_AGAIN: Duration = Duration::from_millis(200);

#[derive(Default)]
pub(super) struct Transactions {
    counter: u64,
    /// Coordinated here, not decided.
    undecided: HashSet<TransactionId, KeyHashing>,
    /// Coordinated here, committed, and not applied everywhere.
    decided: HashSet<TransactionId, KeyHashing>,
    /// Intents of this shard.
    pub prepared: HashMap<TransactionId, Prepared, KeyHashing>,
    /// Directories affected by intents of an earlier epoch.
    pub to_pin: ToPin,
    /// The holder of the right to rename directories across parents in the volume (kept by the root's home).
    pub rename_lock: Option<u64>,
}

impl Transactions {
    pub fn open(&self) -> usize {
        self.undecided.len() + self.decided.len() + self.prepared.len()
    }

    /// Whether a decision made here is not carried out everywhere.
    pub fn any_decided(&self) -> bool {
        !self.decided.is_empty()
    }

    /// Records a decided removal. This shard reports it as committed until its rows are gone elsewhere.
    pub fn note_decided(&mut self, transaction: TransactionId) {
        self.decided.insert(transaction);
    }

    pub fn forget_undecided(&mut self, transaction: TransactionId) {
        self.undecided.remove(&transaction);
    }

    pub fn forget_decided(&mut self, transaction: TransactionId) {
        self.decided.remove(&transaction);
    }

    /// Intents kept only in memory, with the time of each.
    pub fn held(&self) -> impl Iterator<Item = (TransactionId, Instant)> {
        let in_memory = |prepared: &&Prepared| prepared.kept == IntentKept::InMemory;
        self.prepared
            .iter()
            .filter(move |(_, prepared)| in_memory(prepared))
            .map(|(id, prepared)| (*id, prepared.since))
    }

    /// Why the coordinator of an intent of this shard did not report the outcome, if it was asked.
    pub fn unanswered(&self, transaction: TransactionId) -> Option<Cause> {
        self.prepared.get(&transaction)?.unanswered.clone()
    }

    /// An id for a change that is decided before any shard can ask for its outcome.
    pub fn next_id(&mut self, coordinator: ShardId, epoch: Epoch) -> TransactionId {
        self.counter += 1;
        TransactionId { coordinator, epoch, counter: self.counter }
    }

    /// An id for an undecided change.
    pub fn begin(&mut self, coordinator: ShardId, epoch: Epoch) -> TransactionId {
        let transaction = self.next_id(coordinator, epoch);
        self.undecided.insert(transaction);
        transaction
    }
}

/// The digest of a row, as far as a cross-shard decision depends on it. The counts and times of a partition row are
/// left out: tallies commute, and otherwise every create would conflict with every rename into its directory.
pub(super) fn digest(row: Option<&Row>) -> Option<u64> {
    let bytes = match row? {
        Row::Partition(partition) => codec::encode_row(&Row::Partition(PartitionRow {
            entries: 0,
            subdirectories: 0,
            mtime: Timestamp::default(),
            ..partition.clone()
        })),
        row => codec::encode_row(row),
    };
    Some(xxh3_64(&bytes))
}

impl Shard {
    /// Commits a decision that depends on or changes rows of other shards. `Busy`: a row was changed or locked in the
    /// meantime; decide again.
    pub(super) async fn commit_over_shards(
        self: &Rc<Self>,
        sorted: Sorted,
        held: &mut Option<PreparedRemoval>,
        reply: Option<ReplyRecord>,
        rename_lock: &mut Option<u64>,
    ) -> Result<(), ShardRefusal> {
        let begun = self.begin(sorted, held.as_ref())?;
        let held = held.take();
        if rename_lock.is_none() && only_removes(&begun.sorted.parts) {
            return self.remove_in_order(begun, held, reply).await;
        }
        if let Some(held) = &held {
            self.call_off(held.transaction, [held.shard]).await;
        }
        let carried_out = self.commit_in_two_phases(begun, reply, rename_lock).await?;
        // The next holder of the lock must find the change applied everywhere.
        if rename_lock.is_some() && !carried_out.await.unwrap_or(false) {
            // The change is committed: the next owner of this shard reports that to a retry.
            let ended = format!("shard {} has ended before a committed change was applied everywhere", self.id);
            return Err(ShardRefusal::Failed(self.failed().unwrap_or_else(|| ended.into())));
        }
        Ok(())
    }

    /// Returns the task that carries the decision out (see [`Shard::carry_out`]).
    async fn commit_in_two_phases(
        self: &Rc<Self>,
        begun: BegunTransaction,
        reply: Option<ReplyRecord>,
        rename_lock: &mut Option<u64>,
    ) -> Result<tokio::task::JoinHandle<bool>, ShardRefusal> {
        let BegunTransaction { transaction, sorted: Sorted { own, parts, unopened, .. } } = begun;
        let participants: Vec<_> = parts.keys().copied().collect();
        let unopened = &unopened;
        let votes = join_all(parts.into_iter().map(|(shard, intent)| async move {
            (shard, self.peers.call(shard, PeerCall::Prepare(transaction, intent, unopened.clone())).await)
        }))
        .await;
        let refused = votes.iter().find(|(_, vote)| !matches!(vote, PeerReply::Vote(true)));
        let decided = match refused {
            None => {
                let locked = self.check_rename_lock(rename_lock).await;
                locked.and_then(|()| self.decide_commit(transaction, &own, &participants, reply))
            }
            Some((shard, vote)) => {
                tracing::debug!("transaction {transaction:?}: shard {shard} votes {vote:?}");
                Err(match vote {
                    PeerReply::Failed(cause) => ShardRefusal::Failed(cause.clone()),
                    _ => ShardRefusal::Busy,
                })
            }
        };
        let batch = match decided {
            Ok(batch) => batch,
            Err(refusal) => {
                self.unlock_own(transaction, &own);
                self.call_off(transaction, participants).await;
                return Err(refusal);
            }
        };
        self.work.notify_one();
        orphans_of(&own).into_iter().for_each(|inode| self.reap_if_orphan(inode));
        if let Err(refusal) = self.durable(batch).await {
            tokio::task::spawn_local(self.clone().carry_out_late(batch, transaction, participants));
            return Err(refusal);
        }
        Ok(tokio::task::spawn_local(self.clone().carry_out(transaction, participants)))
    }

    /// Checks that the rename lock, if it was taken, is still held: only the memory of the root's shard records it, and
    /// that shard may have been opened again. A later holder finds the keys locked that the votes locked; an earlier
    /// holder may have moved a directory that this change depends on.
    async fn check_rename_lock(&self, rename_lock: &mut Option<u64>) -> Result<(), ShardRefusal> {
        let Some(holder) = *rename_lock else { return Ok(()) };
        match self.peers.call(InodeId::ROOT.shard(), PeerCall::HoldsRenames(holder)).await {
            PeerReply::Vote(true) => Ok(()),
            PeerReply::Vote(false) => {
                *rename_lock = None;
                Err(ShardRefusal::Busy)
            }
            PeerReply::Busy => Err(ShardRefusal::Busy),
            other => Err(other.unexpected("cannot check whether the rename lock is still held")),
        }
    }

    /// Makes other shards drop what they keep for a change that is not committed.
    pub(super) async fn call_off(&self, transaction: TransactionId, shards: impl IntoIterator<Item = ShardId>) {
        let ask = |shard| self.peers.call(shard, PeerCall::Resolve { transaction, commit: false });
        join_all(shards.into_iter().map(ask)).await;
    }

    /// Locks this shard's part. A prepared removal already has an id, which the change takes over. `Busy`: this shard's
    /// part has to wait.
    fn begin(&self, sorted: Sorted, held: Option<&PreparedRemoval>) -> Result<BegunTransaction, ShardRefusal> {
        let mut state = self.state.borrow_mut();
        if sorted.own.iter().any(|change| self.must_wait(&state, change)) {
            return Err(ShardRefusal::Busy);
        }
        let transaction = match held {
            Some(held) => held.transaction,
            None => state.transactions.begin(self.id, self.table.epoch()),
        };
        lock(&mut state, transaction, &sorted.own);
        Ok(BegunTransaction { transaction, sorted })
    }

    /// Sorts by shard the changes of a decision elsewhere and the rows it read there.
    pub(super) fn sort(
        &self,
        own: Vec<Change>,
        elsewhere: Vec<Change>,
        foreign: &Foreign<'_>,
        held: Option<&PreparedRemoval>,
    ) -> Sorted {
        let is_held =
            |held: &&PreparedRemoval| held.is_all_of(&elsewhere) && foreign.fetched().all(|(key, _)| held.holds(key));
        if let Some(held) = held.filter(is_held) {
            return Sorted { own, parts: BTreeMap::new(), holder: Some(held.shard), unopened: Vec::new() };
        }
        let state = self.state.borrow();
        let mut parts: BTreeMap<ShardId, IntentRow> = BTreeMap::new();
        let empty = || IntentRow { participants: Vec::new(), changes: Vec::new(), reads: Vec::new(), reply: None };
        for change in elsewhere {
            parts.entry(self.place_of_change(&state, &change)).or_insert_with(empty).changes.push(change);
        }
        for (key, row) in foreign.fetched() {
            let record = ReadRecord { key: key.clone(), digest: digest(row.as_ref()) };
            parts.entry(self.place(&state, key)).or_insert_with(empty).reads.push(record);
        }
        // A row may have been another shard's when it was fetched and be this shard's now.
        parts.remove(&self.id);
        let mut participants: Vec<_> = parts.keys().copied().collect();
        if !own.is_empty() {
            participants.push(self.id);
        }
        participants.sort_unstable();
        parts.values_mut().for_each(|part| part.participants.clone_from(&participants));
        Sorted { own, parts, holder: None, unopened: Vec::new() }
    }

    /// Commits in memory and in the open batch: the decision, this shard's changes and the reply.
    fn decide_commit(
        &self,
        transaction: TransactionId,
        own: &[Change],
        participants: &[ShardId],
        reply: Option<ReplyRecord>,
    ) -> Result<BatchNumber, ShardRefusal> {
        let mut state = self.state.borrow_mut();
        self.apply_own(&mut state, transaction, own, reply)?;
        let row = Row::Decision(DecisionRow { participants: participants.to_vec() });
        state.open.write(&Key::Decision(transaction), Some(&row));
        state.transactions.decided.insert(transaction);
        let batch = state.open.number;
        drop(state);
        self.changed.notify_waiters();
        Ok(batch)
    }

    /// Applies this shard's part of a change that is being committed; `Busy` if it was aborted in the meantime.
    pub(super) fn apply_own(
        &self,
        state: &mut ShardState,
        transaction: TransactionId,
        own: &[Change],
        reply: Option<ReplyRecord>,
    ) -> Result<(), ShardRefusal> {
        if !state.transactions.undecided.remove(&transaction) {
            return Err(ShardRefusal::Busy);
        }
        if let Some(cause) = &state.failed {
            return Err(ShardRefusal::Failed(cause.clone()));
        }
        unlock(state, transaction, own);
        own.iter().cloned().for_each(|change| self.apply(state, change));
        if let Some(reply) = reply {
            self.remember(state, reply);
        }
        Ok(())
    }

    pub(super) fn unlock_own(&self, transaction: TransactionId, own: &[Change]) {
        let mut state = self.state.borrow_mut();
        state.transactions.forget_undecided(transaction);
        unlock(&mut state, transaction, own);
        drop(state);
        self.changed.notify_waiters();
    }

    /// Makes every participant apply a committed change, then deletes the decision. `false`: this shard ended before
    /// all participants replied, and leaves the rest, with the decision, to its next owner.
    pub(super) async fn carry_out(self: Rc<Self>, transaction: TransactionId, participants: Vec<ShardId>) -> bool {
        let this = &self;
        let applied = join_all(participants.into_iter().map(|shard| async move {
            loop {
                match this.peers.call(shard, PeerCall::Resolve { transaction, commit: true }).await {
                    PeerReply::Done => return true,
                    _ if this.stopping() => return false,
                    other => tracing::warn!("transaction {transaction:?}: shard {shard} did not apply: {other:?}"),
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }))
        .await;
        if applied.contains(&false) {
            return false;
        }
        let mut state = self.state.borrow_mut();
        state.transactions.decided.remove(&transaction);
        state.open.write(&Key::Decision(transaction), None);
        drop(state);
        self.work.notify_one();
        true
    }

    /// Carries out a decision that was not durable when its caller got the error that the store hangs. `batch`, which
    /// holds the decision, is still being written. No participant learns of it before it is durable. If this shard
    /// ends, its next owner either finds the decision or does not.
    async fn carry_out_late(
        self: Rc<Self>,
        batch: BatchNumber,
        transaction: TransactionId,
        participants: Vec<ShardId>,
    ) {
        loop {
            let durable = self.durable(batch).await;
            if self.stopping() {
                return;
            }
            if durable.is_ok() {
                break;
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
        self.carry_out(transaction, participants).await;
    }

    /// Whether the shard was closed or has failed: another owner may have it by now.
    pub(super) fn stopping(&self) -> bool {
        let state = self.state.borrow();
        state.closing || state.failed.is_some()
    }

    /// Reports whether a change coordinated here is committed; aborts it if it is undecided.
    pub(super) async fn outcome(self: &Rc<Self>, transaction: TransactionId) -> PeerReply {
        let decided = {
            let mut state = self.state.borrow_mut();
            state.transactions.undecided.remove(&transaction);
            state.transactions.decided.contains(&transaction)
        };
        if decided {
            // The decision may be made and not yet in the log.
            let batch = self.state.borrow().open.number;
            if let Err(refusal) = self.durable(batch).await {
                return super::fetch::peer_reply(refusal);
            }
        }
        PeerReply::Committed(decided)
    }

    /// Restores an intent or a decision of an earlier epoch, found in the table at open.
    pub(super) fn restore_transaction(self: &Rc<Self>, key: Key, row: Row) {
        let mut state = self.state.borrow_mut();
        match (key, row) {
            (Key::Intent(transaction), Row::Intent(intent)) => {
                lock_keys(&mut state, transaction, &intent.changes);
                state.transactions.to_pin.add(&intent.changes);
                let (found_at_open, kept, since) = (true, IntentKept::Stored, self.clock.monotonic());
                let prepared = Prepared { intent, found_at_open, kept, since, unanswered: None };
                state.transactions.prepared.insert(transaction, prepared);
                tokio::task::spawn_local(self.clone().ask_if_forgotten(transaction, Duration::ZERO));
            }
            (Key::Decision(transaction), Row::Decision(decision)) => {
                state.transactions.decided.insert(transaction);
                tokio::task::spawn_local(self.clone().carry_out(transaction, decision.participants));
            }
            (key, row) => unreachable!("{key:?} of kind {:?} is no transaction", row.kind()),
        }
    }
}

/// A cross-shard change with its coordinator's part locked.
pub(super) struct BegunTransaction {
    pub transaction: TransactionId,
    pub sorted: Sorted,
}

/// A decision sorted by shard.
pub(super) struct Sorted {
    /// The coordinator's changes.
    pub own: Vec<Change>,
    /// For each other shard, the rows to check and the changes.
    pub parts: BTreeMap<ShardId, IntentRow>,
    /// The shard that has already prepared its part, and every row of other shards that the decision depends on.
    pub holder: Option<ShardId>,
    /// Inodes that the decision takes to be open nowhere.
    pub unopened: Vec<InodeId>,
}
