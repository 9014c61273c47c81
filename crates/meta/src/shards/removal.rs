//! Removes a directory whose rows are in other shards. It needs no stored intents and no fsync before the reply, only
//! an order:
//!
//! 1. Each shard with rows of the directory checks that they are unchanged and that the directory is empty, and
//!    prepares the removal: no other request sees or changes the rows. A shard that has all of them, which is the usual
//!    case, does so when it is asked for the rows.
//! 2. The shard of the directory's entry writes its changes and the reply, and replies when they are appended.
//! 3. That shard fsyncs, once for many removals.
//! 4. The other shards delete the prepared rows.
//!
//! A prepared removal exists only in memory. A crash between 2 and 4 leaves rows that no name reaches, under an id that
//! is never allocated again; fsck calls them leftovers. The rows are not deleted before the removal is durable:
//! otherwise a power failure could bring the directory back without the attributes set on it since it was made. A shard
//! that is opened again has lost its prepared removals and would accept creates, so a prepared removal is valid for
//! [`PREPARED_VALID`], and no shard is opened again sooner than that.

use super::decide::{Decided, DecisionOutcome, TxnContext};
use super::fast_path::FastPathRun;
use super::foreign::Foreign;
use super::participant::{ASK_AFTER, IntentKept, Prepared};
use super::peers::{ForeignRow, PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::resident::BatchNumber;
use super::shard::{Execution, Shard, ShardState};
use super::transaction::{ASK_AGAIN, BegunTransaction, Sorted, digest};
use futures::future::join_all;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;
use varve_env::clock::Instant;
use varve_posix::{KeyState, Verb};
use varve_schema::{Change, IntentRow, Key, PartitionState, ReadRecord, ReplyRecord, Row, TransactionId};
use varve_types::{InodeId, PartitionIndex, ShardId};

/// How long after the request a prepared removal is valid.
pub const PREPARED_VALID: Duration = Duration::from_millis(250);

/// How long removals are collected before they are fsynced and the rows deleted.
const GATHERED_FOR: Duration = Duration::from_millis(50);

/// Limit on removals that wait for that; above it new ones fail with `Busy`.
const REMOVALS_MAX: usize = 20_000;

/// Removals of this shard's entries whose rows elsewhere are still prepared.
#[derive(Default)]
pub(super) struct Removals {
    /// Each with a shard that has prepared rows for it.
    waiting: Vec<(TransactionId, ShardId)>,
    /// A task is scheduled to carry out the waiting removals.
    awaited: bool,
    /// Tasks carrying out removals.
    at_work: u32,
    /// A task watches the prepared removals of this shard.
    watched: bool,
}

impl Removals {
    fn are_many(&self) -> bool {
        self.waiting.len() >= REMOVALS_MAX
    }
}

/// Whether the changes of other shards only delete rows of a removed directory.
pub(super) fn only_removes(parts: &BTreeMap<ShardId, IntentRow>) -> bool {
    let goes =
        |change: &Change| matches!(change, Change::Delete(Key::Directory(_) | Key::Partition(..) | Key::Xattr(..)));
    parts.values().all(|part| part.changes.iter().all(goes))
}

/// Rows of a directory that its home has prepared for removal on request, until the removal is decided.
pub(super) struct PreparedRemoval {
    pub transaction: TransactionId,
    pub shard: ShardId,
    keys: Vec<Key>,
    asked: Instant,
}

impl PreparedRemoval {
    pub fn holds(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Whether `changes` delete exactly these rows.
    pub fn is_all_of(&self, changes: &[Change]) -> bool {
        let is_held = |change: &Change| matches!(change, Change::Delete(key) if self.holds(key));
        changes.len() == self.keys.len() && changes.iter().all(is_held)
    }
}

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

impl Shard {
    /// Asks `shard` for rows of a directory to be removed. Sets `held` if the shard has prepared the removal.
    pub(super) async fn fetch_to_remove(
        &self,
        shard: ShardId,
        keys: Vec<Key>,
        held: &mut Option<PreparedRemoval>,
    ) -> PeerReply {
        let transaction = self.state.borrow_mut().transactions.begin(self.id, self.table.epoch());
        let asked = self.clock.monotonic();
        let reply = self.peers.call(shard, PeerCall::FetchToRemove(transaction, keys.clone())).await;
        let hold = PreparedRemoval { transaction, shard, keys, asked };
        match reply {
            PeerReply::Held(rows) => {
                *held = Some(hold);
                PeerReply::Rows(rows)
            }
            // Without a reply, the shard may have prepared them.
            PeerReply::Failed(_) => {
                self.let_go(hold).await;
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
    pub(super) async fn remove_in_order(
        self: &Rc<Self>,
        begun: BegunTransaction,
        held: Option<PreparedRemoval>,
        reply: Option<ReplyRecord>,
    ) -> Result<(), ShardRefusal> {
        let BegunTransaction { transaction, sorted: Sorted { own, parts, holder, .. } } = begun;
        let holders: Vec<_> = parts.keys().copied().chain(holder).collect();
        let asked = held.as_ref().map_or_else(|| self.clock.monotonic(), |held| held.asked);
        if let Some(held) = held
            && holder.is_none()
        {
            self.call_off(transaction, [held.shard]).await;
        }
        let votes = join_all(parts.into_iter().map(|(shard, intent)| async move {
            (shard, self.peers.call(shard, PeerCall::Hold(transaction, intent)).await)
        }))
        .await;
        let refused = votes.into_iter().find(|(_, vote)| !matches!(vote, PeerReply::Vote(true)));
        let decided = match refused {
            _ if self.clock.monotonic() > asked.after(PREPARED_VALID) => Err(ShardRefusal::Busy),
            _ if self.state.borrow().removals.are_many() => Err(ShardRefusal::Busy),
            Some((_, PeerReply::Failed(cause))) => Err(ShardRefusal::Failed(cause)),
            Some(_) => Err(ShardRefusal::Busy),
            None => self.decide_removal(transaction, &own, &holders, reply),
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
        holders: &[ShardId],
        reply: Option<ReplyRecord>,
    ) -> Result<BatchNumber, ShardRefusal> {
        let mut state = self.state.borrow_mut();
        self.apply_own(&mut state, transaction, own, reply)?;
        let batch = self.note_removal(&mut state, transaction, holders);
        drop(state);
        self.changed.notify_waiters();
        Ok(batch)
    }

    /// Records a removal decided in the returned batch: its rows elsewhere are to be deleted.
    fn note_removal(
        self: &Rc<Self>,
        state: &mut ShardState,
        transaction: TransactionId,
        holders: &[ShardId],
    ) -> BatchNumber {
        if !holders.is_empty() {
            state.transactions.note_decided(transaction);
            state.removals.waiting.extend(holders.iter().map(|holder| (transaction, *holder)));
            self.carry_out_soon(state, GATHERED_FOR);
        }
        state.open.number
    }

    /// Starts a task that carries out the waiting removals, unless one is scheduled.
    fn carry_out_soon(self: &Rc<Self>, state: &mut ShardState, after: Duration) {
        if std::mem::replace(&mut state.removals.awaited, true) {
            return;
        }
        let shard = self.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(after).await;
            shard.carry_out_removals().await;
        });
    }

    /// Runs steps 1 and 2 without waiting, where a shard of the same worker has all rows of the directory, named by
    /// `keys`. `None`: the fast path is not possible, and nothing has been done.
    pub(super) fn try_remove<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        keys: Vec<Key>,
    ) -> Option<FastPathRun<V::Outcome>> {
        if self.state.borrow().removals.are_many() {
            return None;
        }
        let shard = self.place(&self.state.borrow(), keys.first()?);
        let transaction = self.state.borrow_mut().transactions.next_id(self.id, self.table.epoch());
        let asked = self.clock.monotonic();
        let reply = self.peers.call_now(shard, PeerCall::FetchToRemove(transaction, keys.clone()))?;
        let Some(PeerReply::Held(rows)) = self.peers.reply_now(&reply) else { return None };
        let mut foreign = Foreign::default();
        keys.iter().cloned().zip(rows).for_each(|(key, row)| foreign.insert(key, row));
        let held = PreparedRemoval { transaction, shard, keys, asked };
        let removed = self.try_remove_prepared(verb, run, &foreign, &held);
        if removed.is_none() {
            self.release_removal(transaction, shard);
        }
        removed
    }

    /// Cancels a removal that [`Shard::try_remove`] had prepared.
    fn release_removal(self: &Rc<Self>, transaction: TransactionId, holder: ShardId) {
        let abort = PeerCall::Resolve { transaction, commit: false };
        if self.peers.call_now(holder, abort).is_none() {
            let shard = self.clone();
            tokio::task::spawn_local(async move { shard.call_off(transaction, [holder]).await });
        }
    }

    fn try_remove_prepared<V: Verb>(
        self: &Rc<Self>,
        verb: &V,
        run: &Execution<'_, V::Outcome>,
        foreign: &Foreign,
        held: &PreparedRemoval,
    ) -> Option<FastPathRun<V::Outcome>> {
        let txn = TxnContext::of(InodeId::ROOT);
        let Decided { outcome: decided, .. } = self.decide(verb, run, &txn, foreign).ok()?;
        let DecisionOutcome::Several { own, elsewhere, effects, outcome, reply, .. } = decided else { return None };
        let sorted = self.sort((own, elsewhere), foreign, &[], Some(held));
        let Sorted { own, holder: Some(_), .. } = sorted else { return None };
        let mut state = self.state.borrow_mut();
        if own.iter().any(|change| self.must_wait(&state, change)) {
            return None;
        }
        own.into_iter().for_each(|change| self.apply(&mut state, change));
        if let Some(reply) = reply {
            self.remember(&mut state, reply);
        }
        let batch = self.note_removal(&mut state, held.transaction, &[held.shard]);
        Some(FastPathRun::Changed { outcome, batch, effects })
    }

    /// Runs steps 3 and 4 of all removals and returns when they are done. If the fsync fails, this shard is opened
    /// again; if a holder does not reply, that shard was opened again. Both leave rows behind, as a crash does.
    pub async fn end_removals(self: &Rc<Self>) {
        self.carry_out_removals().await;
        // Busy or failed: the remaining rows stay behind.
        let _ = self.wait_until(|state| state.removals.at_work == 0).await;
    }

    async fn carry_out_removals(self: &Rc<Self>) {
        let (waiting, batch) = {
            let mut state = self.state.borrow_mut();
            state.removals.awaited = false;
            state.removals.at_work += 1;
            (std::mem::take(&mut state.removals.waiting), state.open.number)
        };
        // The last removal may have been decided just now.
        if !waiting.is_empty() {
            if self.appended(batch).await.is_ok() && self.sync().await.is_ok() {
                self.remove_elsewhere(&waiting).await;
            } else if !self.stopping() {
                // The store may hang, for example: the removals are decided, and their rows stay prepared until the
                // removals are durable.
                let mut state = self.state.borrow_mut();
                state.removals.waiting.extend(waiting);
                self.carry_out_soon(&mut state, ASK_AGAIN);
            }
        }
        self.state.borrow_mut().removals.at_work -= 1;
        self.changed.notify_waiters();
    }

    async fn remove_elsewhere(self: &Rc<Self>, waiting: &[(TransactionId, ShardId)]) {
        let mut by_holder: BTreeMap<ShardId, Vec<TransactionId>> = BTreeMap::new();
        waiting.iter().for_each(|(transaction, holder)| by_holder.entry(*holder).or_default().push(*transaction));
        join_all(by_holder.into_iter().map(|(holder, held)| async move {
            match self.peers.call(holder, PeerCall::Remove(held)).await {
                PeerReply::Done => {}
                other => tracing::warn!("cannot remove rows of removed directories from shard {holder}: {other:?}"),
            }
        }))
        .await;
        let mut state = self.state.borrow_mut();
        waiting.iter().for_each(|(transaction, _)| state.transactions.forget_decided(*transaction));
    }

    // The holder's side.

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
        match self.hold(transaction, self.removal_of(&keys, reads)).await {
            PeerReply::Vote(true) => PeerReply::Held(rows),
            // The directory has an entry, or another change is in progress: the deciding shard sees that.
            _ => PeerReply::Rows(rows),
        }
    }

    /// The same without waiting. `None`: this is not possible, or the keys are not all rows of one empty directory.
    pub(super) fn try_prepare_removal(
        self: &Rc<Self>,
        transaction: TransactionId,
        keys: &[Key],
    ) -> Option<Vec<ForeignRow>> {
        let mut state = self.state.borrow_mut();
        let rows: Vec<ForeignRow> = {
            let [one, another] = keys else { return None };
            let rows = [self.appended_row(&state, one)?, self.appended_row(&state, another)?];
            if !are_all_of_one_directory(keys, rows) {
                return None;
            }
            rows.map(|row| Some(row.clone())).into()
        };
        let intent = self.removal_of(keys, Vec::new());
        if !self.may_prepare(&state, &intent) {
            return None;
        }
        self.keep_intent(&mut state, transaction, intent, IntentKept::InMemory);
        drop(state);
        self.watch_prepared();
        Some(rows)
    }

    /// Cancels a prepared removal without waiting. `false`: this shard has no such removal.
    pub(super) fn try_release(&self, transaction: TransactionId) -> bool {
        let prepared = matches!(
            self.state.borrow().transactions.prepared.get(&transaction),
            Some(Prepared { kept: IntentKept::InMemory, .. })
        );
        if prepared && self.end_intent(transaction, false).is_some() {
            self.changed.notify_waiters();
        }
        prepared
    }

    /// A row of this shard that may be shown to other shards now.
    fn appended_row<'s>(&self, state: &'s ShardState, key: &Key) -> Option<&'s Row> {
        match self.seen_here(state, key) {
            (KeyState::Present(row), changed_in) if changed_in <= state.appended => Some(row),
            _ => None,
        }
    }

    /// The intent to delete rows of this shard. It is not stored, so its list of participants is never read.
    fn removal_of(&self, keys: &[Key], reads: Vec<ReadRecord>) -> IntentRow {
        let changes = keys.iter().cloned().map(Change::Delete).collect();
        IntentRow { participants: Vec::new(), reads, changes, reply: None }
    }

    /// Step 1.
    pub(super) async fn hold(self: &Rc<Self>, transaction: TransactionId, intent: IntentRow) -> PeerReply {
        match self.place_intent(transaction, intent, &[], IntentKept::InMemory).await {
            Ok(None) => {}
            Ok(Some(_)) => self.watch_prepared(),
            Err(reply) => return reply,
        }
        PeerReply::Vote(true)
    }

    /// Step 4.
    pub(super) async fn remove_prepared(self: &Rc<Self>, held: Vec<TransactionId>) -> PeerReply {
        for transaction in held {
            self.end_intent(transaction, true);
        }
        self.changed.notify_waiters();
        self.work.notify_one();
        let batch = self.state.borrow().open.number;
        self.appended(batch).await.map_or_else(super::fetch::peer_reply, |()| PeerReply::Done)
    }

    /// Starts one task that checks on prepared removals without news, as long as there are any.
    fn watch_prepared(self: &Rc<Self>) {
        if std::mem::replace(&mut self.state.borrow_mut().removals.watched, true) {
            return;
        }
        let shard = self.clone();
        tokio::task::spawn_local(async move {
            loop {
                let any_over = shard.peers.any_over();
                let now = shard.clock.monotonic();
                let old: Vec<_> = {
                    let mut state = shard.state.borrow_mut();
                    if state.transactions.held().next().is_none() || state.closing || state.failed.is_some() {
                        state.removals.watched = false;
                        return;
                    }
                    let is_due = |(id, since): &(TransactionId, Instant)| {
                        since.after(ASK_AFTER) < now || shard.peers.is_over(id.coordinator, id.epoch)
                    };
                    state.transactions.held().filter(is_due).collect()
                };
                for (transaction, _) in old {
                    shard.clone().ask_if_forgotten(transaction, Duration::ZERO).await;
                }
                tokio::select! {
                    () = tokio::time::sleep(ASK_AFTER) => {}
                    () = any_over => {}
                }
            }
        });
    }
}
