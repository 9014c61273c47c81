//! Carries out committed transactions, and recovers those that the last owner of a shard has left
//! (`transaction.rs` has the protocol).
//!
//! A participant that has applied its part keeps a mark, an intent without changes. The mark proves to a coordinator
//! that is recovered without its decision that the transaction was committed. It is deleted only when the coordinator's
//! decision is on stable storage; the decision is deleted only when the applied parts of all participants are. Both
//! are done for many transactions at once, so that their fsyncs cost little. The parts of a removal (`removal.rs`) are
//! applied only then, and leave no marks.

use super::fetch::peer_reply;
use super::peers::{LOST, PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::shard::{Shard, ShardState};
use super::transaction::note_decision;
use super::transaction_parts::orphans_of;
use super::transaction_state::{ASK_AFTER, ASK_AGAIN, Prepared};
use futures::future::join_all;
use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;
use std::time::Duration;
use varve_schema::{IntentRow, Key, Row, TransactionId};
use varve_types::ShardId;

/// How long committed transactions are collected before they are settled together.
const GATHERED_FOR: Duration = Duration::from_millis(50);

impl Shard {
    /// Starts a task that makes every participant apply a committed transaction. If this shard ends first, its next
    /// owner does the rest.
    pub(super) fn begin_to_carry_out(
        self: &Rc<Self>,
        state: &mut ShardState,
        transaction: TransactionId,
        participants: Vec<ShardId>,
    ) {
        state.transactions.settling.begin_work();
        tokio::task::spawn_local(self.clone().carry_out(transaction, participants));
    }

    async fn carry_out(self: Rc<Self>, transaction: TransactionId, participants: Vec<ShardId>) {
        let this = &self;
        let applied = join_all(participants.iter().map(|shard| async move {
            let mut has_warned = false;
            loop {
                match this.peers.call(*shard, PeerCall::Resolve { transaction, commit: true }).await {
                    PeerReply::Done => return true,
                    _ if this.stopping() => return false,
                    _ if has_warned => {}
                    other => {
                        tracing::warn!("transaction {transaction:?}: shard {shard} did not apply: {other:?}");
                        has_warned = true;
                    }
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }))
        .await;
        let mut state = self.state.borrow_mut();
        state.transactions.settling.end_work();
        if !applied.contains(&false) {
            self.settle_later(&mut state, transaction, participants);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Settles a committed transaction together with others.
    pub(super) fn settle_later(
        self: &Rc<Self>,
        state: &mut ShardState,
        transaction: TransactionId,
        participants: Vec<ShardId>,
    ) {
        state.transactions.settling.add([(transaction, participants)]);
        self.settle_soon(state, GATHERED_FOR);
    }

    /// Starts a task that settles the waiting transactions, unless one is scheduled.
    fn settle_soon(self: &Rc<Self>, state: &mut ShardState, after: Duration) {
        if !state.transactions.settling.schedule() {
            return;
        }
        let shard = self.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(after).await;
            shard.settle_waiting().await;
        });
    }

    /// Carries out and settles the committed transactions of this shard, as far as its participants reply, and returns.
    /// The next owner does what is left.
    pub async fn end_transactions(self: &Rc<Self>) {
        // Busy or failed: the rest is left.
        let _ = self.wait_until(|state| state.transactions.settling.is_idle()).await;
        self.settle_waiting().await;
        let _ = self.wait_until(|state| state.transactions.settling.is_idle()).await;
    }

    async fn settle_waiting(self: &Rc<Self>) {
        let (waiting, batch) = {
            let mut state = self.state.borrow_mut();
            (state.transactions.settling.take(), state.open.number)
        };
        // The last decision may have been made just now.
        let rest = match waiting.is_empty() || self.durable(batch).await.is_ok() {
            true => self.settle_at_participants(waiting).await,
            false => waiting,
        };
        let mut state = self.state.borrow_mut();
        state.transactions.settling.end_work();
        let stopping = state.closing || state.failed.is_some();
        if !rest.is_empty() && !stopping {
            state.transactions.settling.add(rest);
            self.settle_soon(&mut state, ASK_AGAIN);
        }
        drop(state);
        self.changed.notify_waiters();
    }

    /// Deletes the decisions of those transactions that every participant has settled, and returns the others.
    async fn settle_at_participants(
        &self,
        waiting: Vec<(TransactionId, Vec<ShardId>)>,
    ) -> Vec<(TransactionId, Vec<ShardId>)> {
        let mut by_shard: BTreeMap<ShardId, Vec<TransactionId>> = BTreeMap::new();
        for (transaction, participants) in &waiting {
            participants.iter().for_each(|shard| by_shard.entry(*shard).or_default().push(*transaction));
        }
        let settled: HashSet<ShardId> = join_all(by_shard.into_iter().map(|(shard, transactions)| async move {
            match self.peers.call(shard, PeerCall::Settle(transactions)).await {
                PeerReply::Done => Some(shard),
                other => {
                    tracing::debug!("shard {shard} has not settled its transactions: {other:?}");
                    None
                }
            }
        }))
        .await
        .into_iter()
        .flatten()
        .collect();
        let is_settled =
            |(_, participants): &(_, Vec<ShardId>)| participants.iter().all(|shard| settled.contains(shard));
        let (done, rest): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_settled);
        let mut state = self.state.borrow_mut();
        for (transaction, _) in &done {
            state.transactions.forget_decided(*transaction);
            state.open.write(&Key::Decision(*transaction), None);
        }
        drop(state);
        if !done.is_empty() {
            self.work.notify_one();
        }
        rest
    }

    /// The participant's side: applies what is not applied, makes the applied parts durable and deletes their marks.
    pub(super) async fn settle(self: &Rc<Self>, transactions: Vec<TransactionId>) -> PeerReply {
        if let Err(reply) = self.apply_settled(&transactions).await {
            return reply;
        }
        self.work.notify_one();
        let batch = self.state.borrow().open.number;
        if let Err(refusal) = self.durable(batch).await {
            return peer_reply(refusal);
        }
        let mut state = self.state.borrow_mut();
        for transaction in transactions {
            delete_mark(&mut state, transaction);
        }
        drop(state);
        self.work.notify_one();
        PeerReply::Done
    }

    /// Whether the shard was closed or has failed: another owner may have it by now.
    pub(super) fn stopping(&self) -> bool {
        let state = self.state.borrow();
        state.closing || state.failed.is_some() || self.peers.superseded().is_some()
    }

    /// Reports whether a transaction coordinated here is committed; aborts it if this owner has not decided it. `Busy`:
    /// it was left by an earlier owner, and is being recovered.
    pub(super) async fn outcome(self: &Rc<Self>, transaction: TransactionId) -> PeerReply {
        let decided = {
            let mut state = self.state.borrow_mut();
            if state.transactions.prepared.contains_key(&transaction) {
                return PeerReply::Busy;
            }
            state.transactions.forget_undecided(transaction);
            state.transactions.is_decided(transaction)
        };
        if decided {
            // The decision of a removal may be made and not yet in the log.
            let batch = self.state.borrow().open.number;
            if let Err(refusal) = self.durable(batch).await {
                return peer_reply(refusal);
            }
        }
        PeerReply::Committed(decided)
    }

    // Recovery.

    /// Restores an intent or a decision of an earlier epoch, found in the table at open.
    pub(super) fn restore_transaction(self: &Rc<Self>, key: Key, row: Row) {
        let mut state = self.state.borrow_mut();
        match (key, row) {
            (Key::Intent(transaction), Row::Intent(intent)) => {
                let is_own = transaction.coordinator == self.id;
                if !is_own && intent.changes.is_empty() {
                    state.transactions.applied.insert(transaction);
                    tokio::task::spawn_local(self.clone().delete_forgotten_mark(transaction));
                    return;
                }
                state.locks.lock_keys(transaction, &intent.changes);
                if let Some(reply) = intent.reply.as_ref().filter(|_| is_own) {
                    state.transactions.begin_recovery(reply);
                }
                let (found_at_open, asks, since) = (true, true, self.clock.monotonic());
                let prepared = Prepared { intent, found_at_open, asks, since, unanswered: None };
                state.transactions.add_prepared(transaction, prepared);
                match is_own {
                    true => tokio::task::spawn_local(self.clone().recover(transaction)),
                    false => tokio::task::spawn_local(self.clone().ask_if_forgotten(transaction, Duration::ZERO)),
                };
            }
            (Key::Decision(transaction), Row::Decision(decision)) => {
                state.transactions.note_decided(transaction);
                self.begin_to_carry_out(&mut state, transaction, decision.participants);
            }
            (key, row) => unreachable!("{key:?} of kind {:?} is no transaction", row.kind()),
        }
    }

    /// Decides a transaction that the last owner of this shard coordinated and left undecided.
    async fn recover(self: Rc<Self>, transaction: TransactionId) {
        let mut has_warned = false;
        while !self.stopping() {
            let Some(intent) = self.state.borrow().transactions.prepared.get(&transaction).map(|p| p.intent.clone())
            else {
                return;
            };
            let recovered = match self.is_prepared_everywhere(transaction, &intent.participants).await {
                Ok(true) => self.commit_recovered(transaction, &intent).await,
                Ok(false) => self.abort_recovered(transaction, intent).await,
                Err(reply) => Err(reply),
            };
            let Err(reply) = recovered else { return };
            if !has_warned && !matches!(reply, PeerReply::Busy) {
                tracing::warn!("transaction {transaction:?}: cannot recover it yet: {reply:?}");
                has_warned = true;
            }
            if let PeerReply::Failed(cause) = reply
                && cause.errno != LOST
            {
                self.state.borrow_mut().transactions.note_unanswered(transaction, cause);
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    async fn is_prepared_everywhere(
        &self,
        transaction: TransactionId,
        participants: &[ShardId],
    ) -> Result<bool, PeerReply> {
        let ask = |shard: &ShardId| self.peers.call(*shard, PeerCall::IsPrepared(transaction));
        let replies = join_all(participants.iter().map(ask)).await;
        if replies.iter().any(|reply| matches!(reply, PeerReply::Vote(false))) {
            return Ok(false);
        }
        replies.into_iter().find(|reply| !matches!(reply, PeerReply::Vote(true))).map_or(Ok(true), Err)
    }

    async fn commit_recovered(
        self: &Rc<Self>,
        transaction: TransactionId,
        intent: &IntentRow,
    ) -> Result<(), PeerReply> {
        self.load_for_intent(intent).await.map_err(peer_reply)?;
        {
            let mut state = self.state.borrow_mut();
            let Some(Prepared { intent, .. }) = state.transactions.take_prepared(transaction) else { return Ok(()) };
            state.unlock(transaction, &intent.changes);
            intent.changes.into_iter().for_each(|change| self.apply(&mut state, change));
            if let Some(reply) = intent.reply {
                state.transactions.end_recovery(&reply);
                self.remember(&mut state, reply);
            }
            note_decision(&mut state, transaction, &intent.participants);
            self.begin_to_carry_out(&mut state, transaction, intent.participants);
        }
        self.work.notify_one();
        self.changed.notify_waiters();
        orphans_of(&intent.changes).into_iter().for_each(|inode| self.reap_if_orphan(inode));
        Ok(())
    }

    async fn abort_recovered(&self, transaction: TransactionId, intent: IntentRow) -> Result<(), PeerReply> {
        let batch = {
            let mut state = self.state.borrow_mut();
            state.transactions.take_prepared(transaction);
            state.unlock(transaction, &intent.changes);
            if let Some(reply) = &intent.reply {
                state.transactions.end_recovery(reply);
            }
            state.open.write(&Key::Intent(transaction), None);
            state.open.number
        };
        self.work.notify_one();
        self.changed.notify_waiters();
        // Once a participant has heard of the abort, no later owner may find the transaction undecided.
        let durable: Result<(), ShardRefusal> = self.durable(batch).await;
        if durable.is_ok() {
            self.call_off(transaction, intent.participants).await;
        }
        // Otherwise the participants ask, or the next owner decides again.
        Ok(())
    }

    /// The participant's side of a recovery: whether this shard has stored its part.
    pub(super) async fn is_prepared(&self, transaction: TransactionId) -> PeerReply {
        let batch = {
            let state = self.state.borrow();
            if state.transactions.applied.contains(&transaction) {
                return PeerReply::Vote(true);
            }
            match state.transactions.prepared.get(&transaction) {
                Some(_) => state.open.number,
                None => return PeerReply::Vote(false),
            }
        };
        self.durable(batch).await.map_or_else(peer_reply, |()| PeerReply::Vote(true))
    }

    /// Deletes a mark of an earlier epoch once its coordinator does not need it. It usually says so itself; it has
    /// forgotten the transaction if only the deletion of the mark was lost.
    async fn delete_forgotten_mark(self: Rc<Self>, transaction: TransactionId) {
        loop {
            tokio::time::sleep(ASK_AFTER).await;
            if self.stopping() || !self.state.borrow().transactions.applied.contains(&transaction) {
                return;
            }
            let asked = self.peers.call(transaction.coordinator, PeerCall::Outcome(transaction)).await;
            if matches!(asked, PeerReply::Committed(false)) {
                delete_mark(&mut self.state.borrow_mut(), transaction);
                self.work.notify_one();
                return;
            }
        }
    }
}

fn delete_mark(state: &mut ShardState, transaction: TransactionId) {
    if state.transactions.applied.remove(&transaction) {
        state.open.write(&Key::Intent(transaction), None);
    }
}
