//! Cross-shard transactions, the participant's side (the coordinator's is in `transaction.rs`): checks an intent, locks
//! the keys it will change, and applies or drops it when the coordinator says so. Without news it asks the coordinator.

use super::execution::RequestAddress;
use super::fetch::peer_reply;
use super::open_files::Openness;
use super::opens_elsewhere::AskedFiles;
use super::peers::{LOST, PeerCall, PeerReply};
use super::refusal::ShardRefusal;
use super::resident::BatchNumber;
use super::shard::{Shard, ShardState};
use super::transaction_parts::{digest, directory_of, orphans_of};
use super::transaction_state::{ASK_AFTER, ASK_AGAIN, Prepared};
use std::rc::Rc;
use std::time::Duration;
use varve_posix::KeyState;
use varve_schema::{Change, IntentRow, Key, ReadRecord, Row, TransactionId};
use varve_types::{InodeId, SessionId, Timestamp};

impl Shard {
    pub(super) async fn prepare(
        self: &Rc<Self>,
        transaction: TransactionId,
        intent: IntentRow,
        unopened: &[InodeId],
        session: Option<SessionId>,
    ) -> PeerReply {
        let of_removal = intent.is_of_removal();
        let batch = match self.place_intent(transaction, intent, (unopened, session)).await {
            Ok(Some(batch)) => batch,
            Ok(None) => return PeerReply::Vote(true),
            Err(reply) => return reply,
        };
        self.work.notify_one();
        if of_removal {
            self.watch_removals();
            return self.appended(batch).await.map_or_else(peer_reply, |()| PeerReply::Vote(true));
        }
        let durable = match self.appended(batch).await {
            Ok(()) => self.sync().await,
            Err(refusal) => Err(refusal),
        };
        // The intent is locked whatever the fsync returned. If the store hangs and the abort did not arrive either,
        // only this task asks for the outcome.
        if let Some(prepared) = self.state.borrow_mut().transactions.prepared.get_mut(&transaction) {
            prepared.asks = true;
            tokio::task::spawn_local(self.clone().ask_if_forgotten(transaction, ASK_AFTER));
        }
        durable.map_or_else(peer_reply, |()| PeerReply::Vote(true))
    }

    /// Checks an intent and locks the keys it will change; `None` if it changes nothing here. No session may have one
    /// of `unopened` open, whose rows are changed here. From the lock on, no session opens one, because an open reads
    /// the row first. Nor may a session other than `session` hold a lease that the change ends.
    async fn place_intent(
        self: &Rc<Self>,
        transaction: TransactionId,
        intent: IntentRow,
        (unopened, session): (&[InodeId], Option<SessionId>),
    ) -> Result<Option<BatchNumber>, PeerReply> {
        self.fetch_for_intent(&intent).await?;
        let mut asked = AskedFiles::default();
        let elsewhere = unopened.iter().copied().filter(|inode| inode.shard() != self.id);
        self.ask_openness(elsewhere, &mut asked).await.map_err(peer_reply)?;
        let now = self.clock.monotonic();
        let is_closed = |inode: &InodeId| match inode.shard() == self.id {
            true => self.open_files.openness(*inode, now) == Openness::Closed,
            false => asked.openness(*inode) == Some(Openness::Closed),
        };
        let mut state = self.state.borrow_mut();
        if !self.may_prepare(&state, &intent) || !unopened.iter().all(is_closed) {
            return Err(PeerReply::Vote(false));
        }
        if intent.changes.is_empty() {
            // Nothing to lock: the rows read were unchanged while the coordinator's own part was locked.
            return Ok(None);
        }
        if self.end_leases(&state, &intent.changes, session).is_err() {
            return Err(PeerReply::Vote(false));
        }
        self.keep_intent(&mut state, transaction, intent);
        Ok(Some(state.open.number))
    }

    /// Locks the keys that a checked intent will change, and adds it to the open batch.
    pub(super) fn keep_intent(&self, state: &mut ShardState, transaction: TransactionId, mut intent: IntentRow) {
        intent.changes.iter_mut().for_each(|change| self.keep_counts(state, change));
        state.lock(transaction, &intent.changes);
        state.open.write(&Key::Intent(transaction), Some(&Row::Intent(intent.clone())));
        let since = self.clock.monotonic();
        let prepared = Prepared { intent, found_at_open: false, since, asks: false, unanswered: None };
        state.transactions.add_prepared(transaction, prepared);
    }

    /// Gives a partition row in `change` the current counts and, unless its time is set, the current mtime. Tallies
    /// since the row was read are no reason to decide again ([`digest`]), and none is added before the intent ends.
    fn keep_counts(&self, state: &ShardState, change: &mut Change) {
        let Change::Put(key, row) = change else { return };
        let Row::Partition(put) = &mut **row else { return };
        let KeyState::Present(Row::Partition(here)) = self.seen_here(state, key).0 else { return };
        (put.entries, put.subdirectories) = (here.entries, here.subdirectories);
        if put.mtime != Timestamp::NEVER {
            put.mtime = here.mtime;
        }
    }

    /// Makes the rows that an intent reads and changes resident, unless another change or a split hides one of them:
    /// that change may itself be waiting for rows that this change has locked elsewhere.
    async fn fetch_for_intent(self: &Rc<Self>, intent: &IntentRow) -> Result<(), PeerReply> {
        let changed = intent.changes.iter().filter_map(|change| match change {
            Change::Put(key, _) | Change::Delete(key) => Some(key),
            Change::Tally { .. } => None,
        });
        let hidden = |key: &Key| self.is_hidden(&self.state.borrow(), key);
        let keys = || intent.reads.iter().map(|record| &record.key).chain(changed.clone());
        if keys().any(hidden) {
            return Err(PeerReply::Vote(false));
        }
        for key in keys() {
            // The row may have been hidden while the rows before it were read.
            if hidden(key) {
                return Err(PeerReply::Vote(false));
            }
            self.fetch_here(key).await.map_err(peer_reply)?;
        }
        for change in &intent.changes {
            if let Change::Tally { directory, name, .. } = change {
                self.check_address(RequestAddress::Name(*directory, name.hash())).await.map_err(peer_reply)?;
            }
        }
        Ok(())
    }

    pub(super) fn may_prepare(&self, state: &ShardState, intent: &IntentRow) -> bool {
        let as_read = |record: &ReadRecord| match self.seen_here(state, &record.key).0 {
            KeyState::Unknown => false,
            KeyState::Absent => record.digest.is_none(),
            KeyState::Present(row) => record.digest == digest(Some(row)),
        };
        let free = |change: &Change| {
            let fits = match change {
                Change::Put(key, _) => self.seen_here(state, key).0 != KeyState::Unknown,
                Change::Delete(key) => match self.seen_here(state, key).0 {
                    KeyState::Unknown => false,
                    // Only an empty partition may be deleted.
                    KeyState::Present(Row::Partition(row)) => row.entries == 0,
                    KeyState::Present(_) | KeyState::Absent => true,
                },
                Change::Tally { directory, name, .. } => self
                    .partition_here(state, *directory)
                    .is_some_and(|row| row.index.range(row.depth).contains(name.hash())),
            };
            fits && self.place_of_change(state, change) == self.id && !self.must_wait(state, change)
        };
        state.failed.is_none() && intent.reads.iter().all(as_read) && intent.changes.iter().all(free)
    }

    /// Applies or drops an intent. The result is appended when this returns `Done`.
    pub(super) async fn resolve(self: &Rc<Self>, transaction: TransactionId, commit: bool) -> PeerReply {
        let found = match self.state.borrow().transactions.prepared.get(&transaction) {
            Some(Prepared { intent, found_at_open: true, .. }) => Some(intent.clone()),
            _ => None,
        };
        if let Some(intent) = found
            && commit
            && let Err(refusal) = self.load_for_intent(&intent).await
        {
            return peer_reply(refusal);
        }
        let orphans = match self.state.borrow().transactions.prepared.get(&transaction) {
            Some(Prepared { intent, .. }) if commit => orphans_of(&intent.changes),
            _ => Vec::new(),
        };
        let Some(batch) = self.end_intent(transaction, commit) else {
            // An earlier call may have just applied it. An abort needs no record: without the coordinator's intent or
            // decision, the transaction is aborted.
            let batch = self.state.borrow().open.number;
            return if commit { self.done_when_appended(batch).await } else { PeerReply::Done };
        };
        self.changed.notify_waiters();
        orphans.into_iter().for_each(|inode| self.reap_if_orphan(inode));
        self.work.notify_one();
        self.done_when_appended(batch).await
    }

    /// Applies or drops an intent, in memory and in the open batch. An intent that is applied leaves a mark until
    /// [`Shard::settle`], except for one of a removal. `None`: there is no such intent.
    pub(super) fn end_intent(&self, transaction: TransactionId, commit: bool) -> Option<BatchNumber> {
        let mut state = self.state.borrow_mut();
        let Prepared { intent, .. } = state.transactions.take_prepared(transaction)?;
        state.unlock(transaction, &intent.changes);
        let leaves_mark = commit && !intent.is_of_removal();
        let IntentRow { participants, changes, .. } = intent;
        if commit {
            changes.into_iter().for_each(|change| self.apply(&mut state, change));
        }
        let mark = IntentRow { participants, changes: Vec::new(), reads: Vec::new(), reply: None };
        let mark = leaves_mark.then_some(Row::Intent(mark));
        state.open.write(&Key::Intent(transaction), mark.as_ref());
        if leaves_mark {
            state.transactions.applied.insert(transaction);
        }
        Some(state.open.number)
    }

    /// Asks the coordinator for the outcome of an intent after a while without news, and at once if the coordinator's
    /// shard has a new owner.
    pub(super) async fn ask_if_forgotten(self: Rc<Self>, transaction: TransactionId, after: Duration) {
        tokio::select! {
            () = tokio::time::sleep(after) => {}
            () = self.peers.over(transaction.coordinator, transaction.epoch) => {}
        }
        while self.state.borrow().transactions.prepared.contains_key(&transaction) && !self.stopping() {
            match self.peers.call(transaction.coordinator, PeerCall::Outcome(transaction)).await {
                PeerReply::Committed(commit) => match self.resolve(transaction, commit).await {
                    PeerReply::Done => continue,
                    // Happens immediately if rows that it changes are damaged.
                    other => tracing::warn!("transaction {transaction:?}: cannot end it in this shard: {other:?}"),
                },
                // The coordinator recovers the transaction.
                PeerReply::Busy => {}
                other => {
                    tracing::warn!("transaction {transaction:?}: its coordinator does not answer: {other:?}");
                    if let PeerReply::Failed(cause) = other
                        && cause.errno != LOST
                    {
                        self.state.borrow_mut().transactions.note_unanswered(transaction, cause);
                    }
                }
            }
            tokio::time::sleep(ASK_AGAIN).await;
        }
    }

    /// Hides the rows that `intent`, found in a read-only view, changes.
    pub(super) fn lock_for(&self, transaction: TransactionId, intent: &IntentRow) {
        self.state.borrow_mut().locks.lock_keys(transaction, &intent.changes);
    }

    /// Makes the rows resident that an intent of an earlier epoch changes. The intent itself has locked their keys.
    pub(super) async fn load_for_intent(self: &Rc<Self>, intent: &IntentRow) -> Result<(), ShardRefusal> {
        for directory in intent.changes.iter().filter_map(directory_of) {
            self.load_partition(directory).await?;
        }
        for change in &intent.changes {
            if let Change::Put(key, _) | Change::Delete(key) = change {
                self.read_row(key).await?;
            }
        }
        Ok(())
    }
}
