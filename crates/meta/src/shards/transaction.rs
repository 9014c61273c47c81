//! Cross-shard transactions, the coordinator's side: one round, in which all shards store their parts in parallel. The
//! participant's side is in `participant.rs`, what follows the commit and the recovery in `carry_out.rs`.
//!
//! (A transaction for which other shards only remove rows of a directory needs no fsync: `removal.rs`.)
//!
//! The coordinator is the shard that received the request. **A transaction is committed if and only if the intents of
//! the coordinator and of every participant are on stable storage.** Order of what becomes durable:
//!
//! 1. Each participant checks that the rows the decision depends on are unchanged and that no session has opened an
//!    inode that the decision takes to be open nowhere. It writes an intent, fsyncs, and votes. From then on the keys
//!    it will change are locked: no other request sees or changes them. At the same time, the coordinator writes its
//!    own intent, with its changes, the reply and the participants, and fsyncs. It does not write the intent before the
//!    shards have voted of which the transaction only reads rows: recovery does not ask them.
//! 2. When all have voted and the coordinator's intent is fsynced, the coordinator applies its changes, replaces its
//!    intent by a decision, and replies. The reply waits for one fsync latency, that of the slowest shard.
//! 3. Each participant applies its intent, and keeps it without changes as a mark.
//! 4. For many transactions at once: the coordinator fsyncs its decisions, the participants fsync and delete their
//!    marks, the coordinator deletes the decisions.
//!
//! If the coordinator ends between 1 and 2, its next owner finds the intent and asks the participants: each that has an
//! intent or a mark answers yes, and any other answer aborts. A participant that has waited too long, or was opened
//! again, asks the coordinator. Neither an intent nor a decision there means aborted. A conflict never waits but fails
//! with `Busy`, so opposite changes cannot deadlock.
//!
//! Moves of directories between parents could make a cycle without changing a common row. So each of them also changes
//! the row [`Key::DirectoryMoves`].

use super::foreign::Foreign;
use super::peers::{self, PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::resident::BatchNumber;
use super::shard::{Shard, ShardState};
use super::transaction_parts::{BegunTransaction, NoVote, PreparedRemoval, Sorted, digest, only_removes, orphans_of};
use futures::future::join_all;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use varve_schema::{Change, DecisionRow, IntentRow, Key, ReadRecord, ReplyRecord, Row, TransactionId};
use varve_types::{InodeId, SessionId, ShardId};

impl Shard {
    /// Commits a decision that depends on or changes rows of other shards. `Busy`: a row was changed or locked in the
    /// meantime; decide again.
    pub(super) async fn commit_over_shards(
        self: &Rc<Self>,
        sorted: Sorted,
        held: &mut Option<PreparedRemoval>,
        reply: Option<ReplyRecord>,
    ) -> Result<(), ShardRefusal> {
        let begun = self.begin(sorted, held.as_ref())?;
        if let Some(unused) = held.take().filter(|_| begun.sorted.holder.is_none()) {
            self.let_go(unused).await;
        }
        match only_removes(&begun.sorted.parts) {
            true => self.commit_removal(begun, reply).await,
            false => self.commit_in_one_round(begun, reply).await,
        }
    }

    async fn commit_in_one_round(
        self: &Rc<Self>,
        begun: BegunTransaction,
        reply: Option<ReplyRecord>,
    ) -> Result<(), ShardRefusal> {
        let BegunTransaction { transaction, sorted: Sorted { own, parts, unopened, .. } } = begun;
        let (changing, reading): (Vec<_>, Vec<_>) = parts.into_iter().partition(|(_, part)| !part.changes.is_empty());
        let participants: Vec<_> = changing.iter().map(|(shard, _)| *shard).collect();
        let proposed = Cell::new(false);
        let session = reply.as_ref().map(|reply| reply.session);
        let own_part = async {
            self.votes(transaction, reading, &unopened, session).await?;
            let (participants, changes, reads) = (participants.clone(), own.clone(), Vec::new());
            let intent = IntentRow { participants, changes, reads, reply: reply.clone() };
            proposed.set(true);
            self.durable(self.write_own_intent(transaction, intent)).await.map_err(NoVote::Unknown)
        };
        let (stored, voted) = futures::join!(own_part, self.votes(transaction, changing, &unopened, session));
        let decided = match (stored, voted) {
            (Ok(()), Ok(())) => self.decide_commit(transaction, &own, &participants, reply).map_err(NoVote::Unknown),
            // A participant's refusal is final, whatever the others did.
            (_, Err(NoVote::Refused)) => Err(NoVote::Refused),
            (Err(no), _) | (_, Err(no)) => Err(no),
        };
        let outcome = if decided.is_ok() { "committed" } else { "aborted" };
        metrics::counter!("varve_transactions_total", "outcome" => outcome).increment(1);
        match decided {
            Ok(batch) => {
                self.work.notify_one();
                orphans_of(&own).into_iter().for_each(|inode| self.reap_if_orphan(inode));
                self.begin_to_carry_out(&mut self.state.borrow_mut(), transaction, participants);
                self.appended(batch).await
            }
            Err(no) => Err(self.abort(transaction, &own, participants, no, proposed.get()).await),
        }
    }

    /// Asks shards to prepare their parts.
    pub(super) async fn votes(
        &self,
        transaction: TransactionId,
        parts: Vec<(ShardId, IntentRow)>,
        unopened: &BTreeMap<ShardId, Vec<InodeId>>,
        session: Option<SessionId>,
    ) -> Result<(), NoVote> {
        let votes = join_all(parts.into_iter().map(|(shard, intent)| async move {
            let unopened = unopened.get(&shard).cloned().unwrap_or_default();
            (shard, self.peers.call(shard, PeerCall::Prepare(transaction, intent, unopened, session)).await)
        }))
        .await;
        let refused = |(_, vote): &(ShardId, PeerReply)| matches!(vote, PeerReply::Vote(false));
        if votes.iter().any(refused) {
            tracing::debug!("transaction {transaction:?}: a shard votes no: {votes:?}");
            return Err(NoVote::Refused);
        }
        let unclear = votes.into_iter().find(|(_, vote)| !matches!(vote, PeerReply::Vote(true)));
        unclear.map_or(Ok(()), |(shard, vote)| {
            tracing::debug!("transaction {transaction:?}: shard {shard} votes {vote:?}");
            Err(NoVote::Unknown(match vote {
                PeerReply::Failed(cause) => peers::refusal(cause, None::<&str>),
                _ => ShardRefusal::Busy,
            }))
        })
    }

    /// Writes the coordinator's part to the open batch. It is the only record of the transaction until the decision.
    pub(super) fn write_own_intent(&self, transaction: TransactionId, intent: IntentRow) -> BatchNumber {
        let mut state = self.state.borrow_mut();
        state.open.write(&Key::Intent(transaction), Some(&Row::Intent(intent)));
        let batch = state.open.number;
        drop(state);
        self.work.notify_one();
        batch
    }

    /// Aborts a transaction and returns the refusal for its caller.
    ///
    /// If every part may be on stable storage, the next owner of this shard would commit the transaction after a power
    /// failure. So the abort is fsynced before the caller decides again. A participant that refused has no part and
    /// never gets one, so then the abort needs no record; nor does it if the caller gets a failure, whose outcome is
    /// unknown to it.
    async fn abort(
        self: &Rc<Self>,
        transaction: TransactionId,
        own: &[Change],
        participants: Vec<ShardId>,
        no: NoVote,
        proposed: bool,
    ) -> ShardRefusal {
        self.unlock_own(transaction, own);
        let mut refusal = match no {
            NoVote::Refused => ShardRefusal::Busy,
            NoVote::Unknown(ref refusal) => refusal.clone(),
        };
        if proposed {
            let batch = {
                let mut state = self.state.borrow_mut();
                state.open.write(&Key::Intent(transaction), None);
                state.open.number
            };
            self.work.notify_one();
            if matches!(no, NoVote::Unknown(ShardRefusal::Busy))
                && let Err(failed) = self.durable(batch).await
            {
                refusal = failed;
            }
        }
        // The next owner decides what a shard leaves that has failed. An abort from here could reach a participant after
        // that.
        if !self.stopping() {
            self.call_off(transaction, participants).await;
        }
        refusal
    }

    /// Makes other shards drop what they keep for a change that is not committed.
    pub(super) async fn call_off(&self, transaction: TransactionId, shards: impl IntoIterator<Item = ShardId>) {
        let ask = |shard| self.peers.call(shard, PeerCall::Resolve { transaction, commit: false });
        join_all(shards.into_iter().map(ask)).await;
    }

    /// Locks this shard's part. If the prepared removal is all that other shards do, the change takes over its id. Else
    /// it gets another id, because a late abort of the removal must not meet it. `Busy`: this shard's part has to wait,
    /// or too many transactions are not settled.
    fn begin(&self, sorted: Sorted, held: Option<&PreparedRemoval>) -> Result<BegunTransaction, ShardRefusal> {
        let mut state = self.state.borrow_mut();
        if state.transactions.are_many() || sorted.own.iter().any(|change| self.must_wait(&state, change)) {
            return Err(ShardRefusal::Busy);
        }
        let transaction = match held.filter(|_| sorted.holder.is_some()) {
            Some(held) => held.transaction,
            None => state.transactions.begin(self.id, self.table.epoch()),
        };
        state.lock(transaction, &sorted.own);
        Ok(BegunTransaction { transaction, sorted })
    }

    /// Sorts by shard the changes of a decision elsewhere, the rows it read there, and the files that it takes to be
    /// open nowhere and whose rows are there.
    pub(super) fn sort(
        &self,
        (own, elsewhere): (Vec<Change>, Vec<Change>),
        foreign: &Foreign,
        unopened: &[InodeId],
        held: Option<&PreparedRemoval>,
    ) -> Sorted {
        let is_held =
            |held: &&PreparedRemoval| held.is_all_of(&elsewhere) && foreign.fetched().all(|(key, _)| held.holds(key));
        if let Some(held) = held.filter(is_held) {
            return Sorted { own, parts: BTreeMap::new(), holder: Some(held.shard), unopened: BTreeMap::new() };
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
        if !only_removes(&parts) {
            let changes = |(shard, part): (&ShardId, &IntentRow)| (!part.changes.is_empty()).then_some(*shard);
            let participants: Vec<_> = parts.iter().filter_map(changes).collect();
            parts.values_mut().for_each(|part| part.participants.clone_from(&participants));
        }
        let mut unopened_at: BTreeMap<ShardId, Vec<InodeId>> = BTreeMap::new();
        for inode in unopened {
            let shards = foreign.rows_of(*inode).map(|key| self.place(&state, key));
            shards.for_each(|shard| unopened_at.entry(shard).or_default().push(*inode));
        }
        Sorted { own, parts, holder: None, unopened: unopened_at }
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
        note_decision(&mut state, transaction, participants);
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
        if !state.transactions.forget_undecided(transaction) {
            return Err(ShardRefusal::Busy);
        }
        if let Some(cause) = &state.failed {
            return Err(ShardRefusal::Failed(cause.clone()));
        }
        state.unlock(transaction, own);
        own.iter().cloned().for_each(|change| self.apply(state, change));
        if let Some(reply) = reply {
            self.remember(state, reply);
        }
        Ok(())
    }

    pub(super) fn unlock_own(&self, transaction: TransactionId, own: &[Change]) {
        let mut state = self.state.borrow_mut();
        state.transactions.forget_undecided(transaction);
        state.unlock(transaction, own);
        drop(state);
        self.changed.notify_waiters();
    }
}

/// Replaces the coordinator's intent by a decision, in the open batch.
pub(super) fn note_decision(state: &mut ShardState, transaction: TransactionId, participants: &[ShardId]) {
    state.open.write(&Key::Intent(transaction), None);
    write_decision(state, transaction, participants);
}

/// Adds a decision to the open batch.
pub(super) fn write_decision(state: &mut ShardState, transaction: TransactionId, participants: &[ShardId]) {
    let row = Row::Decision(DecisionRow { participants: participants.to_vec() });
    state.open.write(&Key::Decision(transaction), Some(&row));
    state.transactions.note_decided(transaction);
}
