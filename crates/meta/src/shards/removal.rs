//! Removes a directory whose rows are in other shards: a cross-shard transaction that needs no fsync before the reply,
//! because the coordinator decides it alone.
//!
//! 1. Each shard with rows of the directory checks that they are unchanged and that the directory is empty, and stores
//!    an intent to delete them: no other request sees or changes the rows. It replies when the intent is appended. A
//!    shard that has all of the rows, which is the usual case, does so when it is asked for them.
//! 2. The coordinator, the shard of the directory's entry, writes its changes, the reply and a decision in one batch.
//!    It replies when they are appended.
//! 3. For many removals at once (`carry_out.rs`), the coordinator fsyncs its decisions, the other shards delete the rows
//!    and their intents and fsync, and the coordinator deletes the decisions.
//!
//! **The removal is committed if and only if the coordinator has the decision.** A shard without news of an intent asks
//! the coordinator, and does so at once if either of them was opened again. An owner that opens the coordinator carries
//! out the decisions that it finds.
//!
//! The intent is appended before the decision, so the death of processes cannot leave the decision alone. (An owner that
//! outlives its lease appends to a log that has ended, and no fsync tells it. So the vote, like every reply of a shard,
//! must not leave after the lease.)
//!
//! A power failure can leave the decision alone: then rows stay that no name reaches, under an id that is never allocated
//! again; fsck calls them leftovers. The rows are not deleted before the decision is durable: otherwise a power failure
//! could bring the directory back without the attributes set on it since it was made.

use super::peers::{ForeignRow, PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::resident::BatchNumber;
use super::shard::{Shard, ShardState};
use super::transaction::write_decision;
use super::transaction_parts::{BegunTransaction, NoVote, PreparedRemoval, Sorted, digest};
use super::transaction_state::{ASK_AFTER, Prepared};
use std::rc::Rc;
use std::time::Duration;
use varve_schema::{Change, IntentRow, Key, PartitionState, ReadRecord, ReplyRecord, Row, TransactionId};
use varve_types::{PartitionIndex, ShardId};

/// Whether these are all rows of one directory: it was never split and has no xattrs.
fn are_all_of_one_directory<'r>(keys: &[Key], rows: impl IntoIterator<Item = &'r Row>) -> bool {
    let (mut home, mut partition) = (None, None);
    for (key, row) in keys.iter().zip(rows) {
        match (key, row) {
            (Key::Directory(id), Row::Directory(row)) if row.xattrs.is_empty() => home = Some(id),
            (Key::Partition(id, PartitionIndex::FIRST), Row::Partition(row))
                if row.depth == 0 && row.state == PartitionState::Live =>
            {
                partition = Some(id);
            }
            _ => return false,
        }
    }
    keys.len() == 2 && home.is_some() && home == partition
}

/// A part of a removal.
fn part_of_removal(keys: &[Key], reads: Vec<ReadRecord>) -> IntentRow {
    let changes = keys.iter().cloned().map(Change::Delete).collect();
    IntentRow { participants: Vec::new(), reads, changes, reply: None }
}

impl Shard {
    /// Asks `shard` for rows of a directory to be removed. Sets `held` if the shard has prepared the removal.
    pub(super) async fn fetch_to_remove(
        &self,
        shard: ShardId,
        keys: Vec<Key>,
        held: &mut Option<PreparedRemoval>,
    ) -> PeerReply {
        let transaction = self.state.borrow_mut().transactions.begin(self.id, self.table.epoch());
        let reply = self.peers.call(shard, PeerCall::FetchToRemove(transaction, keys.clone())).await;
        let prepared = PreparedRemoval { transaction, shard, keys };
        match reply {
            PeerReply::Prepared(rows) => {
                *held = Some(prepared);
                PeerReply::Rows(rows)
            }
            // The shard may have prepared it.
            PeerReply::Failed(_) => {
                self.let_go(prepared).await;
                reply
            }
            _ => {
                self.state.borrow_mut().transactions.forget_undecided(transaction);
                reply
            }
        }
    }

    /// Cancels a prepared removal that is not carried out, or not now.
    pub(super) async fn let_go(&self, held: PreparedRemoval) {
        self.state.borrow_mut().transactions.forget_undecided(held.transaction);
        self.call_off(held.transaction, [held.shard]).await;
    }

    /// Steps 1 and 2, for a change that is locked here.
    pub(super) async fn commit_removal(
        self: &Rc<Self>,
        begun: BegunTransaction,
        reply: Option<ReplyRecord>,
    ) -> Result<(), ShardRefusal> {
        let BegunTransaction { transaction, sorted: Sorted { own, parts, holder, unopened } } = begun;
        let changed = parts.iter().filter(|(_, part)| !part.changes.is_empty()).map(|(shard, _)| *shard);
        let holders: Vec<_> = changed.chain(holder).collect();
        let session = reply.as_ref().map(|reply| reply.session);
        let decided = match self.votes(transaction, parts.into_iter().collect(), &unopened, session).await {
            Ok(()) => self.decide_removal(transaction, &own, holders.clone(), reply),
            Err(NoVote::Refused) => Err(ShardRefusal::Busy),
            Err(NoVote::Unknown(refusal)) => Err(refusal),
        };
        match decided {
            Ok(batch) => {
                self.work.notify_one();
                self.appended(batch).await
            }
            Err(refusal) => {
                self.unlock_own(transaction, &own);
                self.call_off(transaction, holders).await;
                Err(refusal)
            }
        }
    }

    fn decide_removal(
        self: &Rc<Self>,
        transaction: TransactionId,
        own: &[Change],
        holders: Vec<ShardId>,
        reply: Option<ReplyRecord>,
    ) -> Result<BatchNumber, ShardRefusal> {
        let mut state = self.state.borrow_mut();
        self.apply_own(&mut state, transaction, own, reply)?;
        self.note_removal(&mut state, transaction, holders);
        let batch = state.open.number;
        drop(state);
        self.changed.notify_waiters();
        Ok(batch)
    }

    /// Adds the decision to the open batch. Step 3 begins once that is durable.
    fn note_removal(self: &Rc<Self>, state: &mut ShardState, transaction: TransactionId, holders: Vec<ShardId>) {
        if !holders.is_empty() {
            write_decision(state, transaction, &holders);
            self.settle_later(state, transaction, holders);
        }
    }

    // The other shard's side.

    /// Handles `FetchToRemove`.
    pub(super) async fn rows_to_remove(self: &Rc<Self>, transaction: TransactionId, keys: Vec<Key>) -> PeerReply {
        let rows = match self.rows_for_peer(keys.clone()).await {
            PeerReply::Rows(rows) => rows,
            other => return other,
        };
        if !are_all_of_one_directory(&keys, rows.iter().flatten()) {
            return PeerReply::Rows(rows);
        }
        let read = |(key, row): (&Key, &ForeignRow)| ReadRecord { key: key.clone(), digest: digest(row.as_ref()) };
        let reads = keys.iter().zip(&rows).map(read).collect();
        match self.prepare(transaction, part_of_removal(&keys, reads), &[], None).await {
            PeerReply::Vote(true) => PeerReply::Prepared(rows),
            PeerReply::Failed(cause) => PeerReply::Failed(cause),
            // The directory has an entry, or another change is in progress: the deciding shard sees that.
            _ => PeerReply::Rows(rows),
        }
    }

    /// Step 3: applies those of `transactions` that this shard has not applied, in the open batch.
    pub(super) async fn apply_settled(self: &Rc<Self>, transactions: &[TransactionId]) -> Result<(), PeerReply> {
        for transaction in transactions {
            let found_at_open =
                self.state.borrow().transactions.prepared.get(transaction).map(|prepared| prepared.found_at_open);
            match found_at_open {
                None => {}
                Some(false) => {
                    self.end_intent(*transaction, true);
                }
                Some(true) => match self.resolve(*transaction, true).await {
                    PeerReply::Done => {}
                    other => return Err(other),
                },
            }
        }
        self.changed.notify_waiters();
        Ok(())
    }

    /// Starts one task that asks for the outcome of prepared removals without news, as long as there are any. A task for
    /// each removal would make removals slower.
    pub(super) fn watch_removals(self: &Rc<Self>) {
        if std::mem::replace(&mut self.state.borrow_mut().transactions.removals_watched, true) {
            return;
        }
        let shard = self.clone();
        tokio::task::spawn_local(async move {
            loop {
                let any_over = shard.peers.any_over();
                if !shard.ask_of_old_removals() {
                    return;
                }
                tokio::select! {
                    () = tokio::time::sleep(ASK_AFTER) => {}
                    () = any_over => {}
                }
            }
        });
    }

    /// `false`: there are no removals to watch any more.
    fn ask_of_old_removals(self: &Rc<Self>) -> bool {
        let mut state = self.state.borrow_mut();
        let ends = state.closing || state.failed.is_some();
        let transactions = &mut state.transactions;
        let now = self.clock.monotonic();
        let watched = |prepared: &Prepared| prepared.intent.is_of_removal() && !prepared.asks;
        let mut others = false;
        for (id, prepared) in transactions.prepared.iter_mut().filter(|(_, prepared)| watched(prepared)) {
            if prepared.since.after(ASK_AFTER) < now || self.peers.is_over(id.coordinator, id.epoch) {
                prepared.asks = true;
                tokio::task::spawn_local(self.clone().ask_if_forgotten(*id, Duration::ZERO));
            } else {
                others = true;
            }
        }
        transactions.removals_watched = others && !ends;
        transactions.removals_watched
    }
}
