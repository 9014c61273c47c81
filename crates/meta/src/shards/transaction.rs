//! Changes over several shards: two phases, presumed abort.
//!
//! (Changes of which other shards only remove rows of a directory go another way: `removal.rs`.)
//!
//! The coordinator is the shard that the request was sent to. Order of what is made durable:
//!
//! 1. Each participant checks that the rows the decision rests on are as they were read, writes an intent, fsyncs, and
//!    votes. From then on the keys it will change are locked: nobody sees or changes them.
//! 2. The coordinator writes its decision together with its own changes and the answer, and fsyncs. Then it answers.
//! 3. Each participant applies its intent and drops it, in one batch, and fsyncs.
//! 4. The coordinator forgets the decision.
//!
//! A participant that waits too long, or is opened again, asks. No decision means aborted; to ask about an undecided change
//! aborts it. An epoch that ends leaves nothing undecided: its successor knows only decisions. A conflict is never waited
//! for but answered Busy, so opposite changes cannot deadlock.

use super::foreign::Foreign;
use super::peers::{PeerCall, PeerReply};
use super::refusal::{Cause, Refusal};
use super::removal::{Held, only_removes};
use super::resident::BatchNumber;
use super::shard::{Shard, State};
use crate::namespace::Seen;
use crate::tables::codec;
use crate::tables::{Change, DecisionRow, IntentRow, Key, PartitionRow, ReadRecord, ReplyRecord, Row, TransactionId};
use futures::future::join_all;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;
use varve_types::{Epoch, InodeId, ShardId, Timestamp};
use varve_world::clock::Moment;
use varve_world::key_hash::KeyHashing;
use xxhash_rust::xxh3::xxh3_64;

/// A prepared participant that has heard nothing for so long asks the coordinator.
const ASK_AFTER: Duration = Duration::from_secs(10);

/// Pause between attempts to reach a shard about a decision. Without limit in number: a decision must be carried out,
/// and the shard either answers or this server stops.
const ASK_AGAIN: Duration = Duration::from_millis(200);

#[derive(Default)]
pub(super) struct Transactions {
    counter: u64,
    /// Coordinated here and not decided.
    undecided: HashSet<TransactionId, KeyHashing>,
    /// Coordinated here, committed, and not applied everywhere.
    decided: HashMap<TransactionId, Vec<ShardId>, KeyHashing>,
    /// Intents of this shard.
    prepared: HashMap<TransactionId, Prepared, KeyHashing>,
    /// Who may rename directories across parents, in the volume (kept by the root's home).
    pub rename_lock: Option<u64>,
}

impl Transactions {
    pub fn open(&self) -> usize {
        self.undecided.len() + self.decided.len() + self.prepared.len()
    }

    /// A removal is decided; asked for its outcome, this shard says so until its rows are gone elsewhere.
    pub fn note_decided(&mut self, transaction: TransactionId, participants: &[ShardId]) {
        self.decided.insert(transaction, participants.to_vec());
    }

    pub fn forget_undecided(&mut self, transaction: TransactionId) {
        self.undecided.remove(&transaction);
    }

    pub fn forget_decided(&mut self, transaction: TransactionId) {
        self.decided.remove(&transaction);
    }

    /// Intents in memory alone, with the moment of each.
    pub fn held(&self) -> impl Iterator<Item = (TransactionId, Moment)> {
        let in_memory = |prepared: &&Prepared| prepared.kept == IntentKept::InMemory;
        self.prepared
            .iter()
            .filter(move |(_, prepared)| in_memory(prepared))
            .map(|(id, prepared)| (*id, prepared.since))
    }

    /// Why the coordinator of an intent of this shard does not say what became of it, if it was asked.
    pub fn unanswered(&self, transaction: TransactionId) -> Option<Cause> {
        self.prepared.get(&transaction)?.unanswered.clone()
    }

    /// An id for what is decided before anybody can ask for its outcome.
    pub fn next_id(&mut self, coordinator: ShardId, epoch: Epoch) -> TransactionId {
        self.counter += 1;
        TransactionId { coordinator, epoch, counter: self.counter }
    }

    /// An id for what is not decided yet.
    pub fn begin(&mut self, coordinator: ShardId, epoch: Epoch) -> TransactionId {
        let transaction = self.next_id(coordinator, epoch);
        self.undecided.insert(transaction);
        transaction
    }
}

/// What of a row a several-shard decision rests on. Of a partition row, not its counts and times: tallies commute, and
/// else every create would collide with every rename into its directory.
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
    /// Commits a decision that rests on or changes rows of other shards. `Busy`: a row was changed or locked meanwhile;
    /// decide again.
    pub(super) async fn commit_over_shards(
        self: &Rc<Self>,
        sorted: Sorted,
        held: &mut Option<Held>,
        reply: Option<ReplyRecord>,
        answer: AnswerWhen,
    ) -> Result<(), Refusal> {
        let begun = self.begin(sorted, held.as_ref())?;
        let held = held.take();
        if answer == AnswerWhen::Decided && only_removes(&begun.sorted.parts) {
            return self.remove_in_order(begun, held, reply).await;
        }
        if let Some(held) = &held {
            self.call_off(held.transaction, [held.shard]).await;
        }
        let carried_out = self.commit_in_two_phases(begun, reply).await?;
        if answer == AnswerWhen::Applied {
            let _ = carried_out.await;
        }
        Ok(())
    }

    /// The task it returns carries the decision out.
    async fn commit_in_two_phases(
        self: &Rc<Self>,
        begun: Begun,
        reply: Option<ReplyRecord>,
    ) -> Result<tokio::task::JoinHandle<()>, Refusal> {
        let Begun { transaction, sorted: Sorted { own, parts, .. } } = begun;
        let participants: Vec<_> = parts.keys().copied().collect();
        let votes = join_all(parts.into_iter().map(|(shard, intent)| async move {
            (shard, self.peers.call(shard, PeerCall::Prepare(transaction, intent)).await)
        }))
        .await;
        let refused = votes.iter().find(|(_, vote)| !matches!(vote, PeerReply::Vote(true)));
        let decided = match refused {
            None => self.decide_commit(transaction, &own, &participants, reply),
            Some((shard, vote)) => {
                tracing::debug!("transaction {transaction:?}: shard {shard} votes {vote:?}");
                Err(match vote {
                    PeerReply::Failed(cause) => Refusal::Failed(cause.clone()),
                    _ => Refusal::Busy,
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
        self.appended(batch).await?;
        self.sync().await?;
        Ok(tokio::task::spawn_local(self.clone().carry_out(transaction, participants)))
    }

    /// Has others drop what they keep for a change that is not committed.
    pub(super) async fn call_off(&self, transaction: TransactionId, shards: impl IntoIterator<Item = ShardId>) {
        let ask = |shard| self.peers.call(shard, PeerCall::Resolve { transaction, commit: false });
        join_all(shards.into_iter().map(ask)).await;
    }

    /// Locks this shard's part. What is held for the change already gives it its id. `Busy`: this shard's part has to wait.
    fn begin(&self, sorted: Sorted, held: Option<&Held>) -> Result<Begun, Refusal> {
        let mut state = self.state.borrow_mut();
        if sorted.own.iter().any(|change| self.must_wait(&state, change)) {
            return Err(Refusal::Busy);
        }
        let transaction = match held {
            Some(held) => held.transaction,
            None => state.transactions.begin(self.id, self.table.epoch()),
        };
        lock(&mut state, transaction, &sorted.own);
        Ok(Begun { transaction, sorted })
    }

    /// Sorts by shards what a decision changes elsewhere, and what it has seen there.
    pub(super) fn sort(
        &self,
        own: Vec<Change>,
        elsewhere: Vec<Change>,
        foreign: &Foreign,
        held: Option<&Held>,
    ) -> Sorted {
        let is_held = |held: &&Held| held.is_all_of(&elsewhere) && foreign.iter().all(|(key, _)| held.holds(key));
        if let Some(held) = held.filter(is_held) {
            return Sorted { own, parts: BTreeMap::new(), holder: Some(held.shard) };
        }
        let state = self.state.borrow();
        let mut parts: BTreeMap<ShardId, IntentRow> = BTreeMap::new();
        let empty = || IntentRow { participants: Vec::new(), changes: Vec::new(), reads: Vec::new(), reply: None };
        for change in elsewhere {
            parts.entry(self.place_of_change(&state, &change)).or_insert_with(empty).changes.push(change);
        }
        for (key, row) in foreign.iter() {
            let record = ReadRecord { key: key.clone(), digest: digest(row.as_ref()) };
            parts.entry(self.place(&state, key)).or_insert_with(empty).reads.push(record);
        }
        // A row that was another shard's when it was fetched, and is this one's now.
        parts.remove(&self.id);
        let mut participants: Vec<_> = parts.keys().copied().collect();
        if !own.is_empty() {
            participants.push(self.id);
        }
        participants.sort_unstable();
        parts.values_mut().for_each(|part| part.participants.clone_from(&participants));
        Sorted { own, parts, holder: None }
    }

    /// Commits in memory and in the open batch: the decision, this shard's changes and the answer.
    fn decide_commit(
        &self,
        transaction: TransactionId,
        own: &[Change],
        participants: &[ShardId],
        reply: Option<ReplyRecord>,
    ) -> Result<BatchNumber, Refusal> {
        let mut state = self.state.borrow_mut();
        self.apply_own(&mut state, transaction, own, reply)?;
        let row = Row::Decision(DecisionRow { participants: participants.to_vec() });
        state.open.write(&Key::Decision(transaction), Some(&row));
        state.transactions.decided.insert(transaction, participants.to_vec());
        let batch = state.open.number;
        drop(state);
        self.changed.notify_waiters();
        Ok(batch)
    }

    /// This shard's part of a change that is being committed; `Busy` if it was aborted meanwhile.
    pub(super) fn apply_own(
        &self,
        state: &mut State,
        transaction: TransactionId,
        own: &[Change],
        reply: Option<ReplyRecord>,
    ) -> Result<(), Refusal> {
        if !state.transactions.undecided.remove(&transaction) {
            return Err(Refusal::Busy);
        }
        if let Some(cause) = &state.failed {
            return Err(Refusal::Failed(cause.clone()));
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

    /// Has every participant apply a committed change, then forgets it.
    pub(super) async fn carry_out(self: Rc<Self>, transaction: TransactionId, participants: Vec<ShardId>) {
        let this = &self;
        join_all(participants.into_iter().map(|shard| async move {
            loop {
                match this.peers.call(shard, PeerCall::Resolve { transaction, commit: true }).await {
                    PeerReply::Done => return,
                    _ if this.stopping() => return std::future::pending().await,
                    other => tracing::warn!("transaction {transaction:?}: shard {shard} did not apply: {other:?}"),
                }
                tokio::time::sleep(ASK_AGAIN).await;
            }
        }))
        .await;
        let mut state = self.state.borrow_mut();
        state.transactions.decided.remove(&transaction);
        state.open.write(&Key::Decision(transaction), None);
        drop(state);
        self.work.notify_one();
    }

    /// The shard was closed or has failed: another may own it by now.
    pub(super) fn stopping(&self) -> bool {
        let state = self.state.borrow();
        state.closing || state.failed.is_some()
    }

    // The participant's side.

    pub(super) async fn prepare(self: &Rc<Self>, transaction: TransactionId, intent: IntentRow) -> PeerReply {
        let batch = match self.place_intent(transaction, intent, IntentKept::Stored).await {
            Ok(Some(batch)) => batch,
            Ok(None) => return PeerReply::Vote(true),
            Err(reply) => return reply,
        };
        self.work.notify_one();
        let durable = match self.appended(batch).await {
            Ok(()) => self.sync().await,
            Err(refusal) => Err(refusal),
        };
        if let Err(refusal) = durable {
            return super::fetch::peer_reply(refusal);
        }
        tokio::task::spawn_local(self.clone().ask_if_forgotten(transaction, ASK_AFTER));
        PeerReply::Vote(true)
    }

    /// Checks an intent and locks what it will change; `None` if it changes nothing here.
    pub(super) async fn place_intent(
        self: &Rc<Self>,
        transaction: TransactionId,
        intent: IntentRow,
        kept: IntentKept,
    ) -> Result<Option<BatchNumber>, PeerReply> {
        let locked = |key: &Key| self.state.borrow().locks.contains_key(key);
        let changed = intent.changes.iter().filter_map(|change| match change {
            Change::Put(key, _) | Change::Delete(key) => Some(key),
            Change::Tally { .. } => None,
        });
        if changed.chain(intent.reads.iter().map(|record| &record.key)).any(locked) {
            return Err(PeerReply::Vote(false));
        }
        self.fetch_for_intent(&intent).await.map_err(super::fetch::peer_reply)?;
        let mut state = self.state.borrow_mut();
        if !self.may_prepare(&state, &intent) {
            return Err(PeerReply::Vote(false));
        }
        if intent.changes.is_empty() {
            // Nothing to lock: what it rests on was so while the coordinator's own part was locked.
            return Ok(None);
        }
        self.keep_intent(&mut state, transaction, intent, kept);
        Ok(Some(state.open.number))
    }

    /// Locks what a checked intent will change.
    pub(super) fn keep_intent(
        &self,
        state: &mut State,
        transaction: TransactionId,
        intent: IntentRow,
        kept: IntentKept,
    ) {
        lock(state, transaction, &intent.changes);
        if kept == IntentKept::Stored {
            state.open.write(&Key::Intent(transaction), Some(&Row::Intent(intent.clone())));
        }
        let since = self.clock.monotonic();
        state.transactions.prepared.insert(transaction, Prepared { intent, pins: true, kept, since, unanswered: None });
    }

    async fn fetch_for_intent(self: &Rc<Self>, intent: &IntentRow) -> Result<(), Refusal> {
        for record in &intent.reads {
            self.fetch_here(&record.key).await?;
        }
        for change in &intent.changes {
            match change {
                Change::Put(key, _) | Change::Delete(key) => self.fetch_here(key).await?,
                Change::Tally { directory, name, .. } => {
                    self.check_address(super::shard::Address::Name(*directory, name.hash())).await?;
                }
            }
        }
        Ok(())
    }

    pub(super) fn may_prepare(&self, state: &State, intent: &IntentRow) -> bool {
        let as_read = |record: &ReadRecord| match self.seen_here(state, &record.key).0 {
            Seen::Unknown => false,
            Seen::Absent => record.digest.is_none(),
            Seen::Present(row) => record.digest == digest(Some(row)),
        };
        let free = |change: &Change| {
            let known = match change {
                Change::Put(key, _) | Change::Delete(key) => self.seen_here(state, key).0 != Seen::Unknown,
                Change::Tally { directory, name, .. } => self
                    .partition_here(state, *directory)
                    .is_some_and(|row| row.index.range(row.depth).contains(name.hash())),
            };
            let empty = match change {
                Change::Delete(key @ Key::Partition(..)) => match self.seen_here(state, key).0 {
                    Seen::Present(Row::Partition(row)) => row.entries == 0,
                    _ => true,
                },
                _ => true,
            };
            known && empty && self.place_of_change(state, change) == self.id && !self.must_wait(state, change)
        };
        state.failed.is_none() && intent.reads.iter().all(as_read) && intent.changes.iter().all(free)
    }

    /// Applies or drops an intent. Appended and fsynced when it returns `Done`.
    pub(super) async fn resolve(self: &Rc<Self>, transaction: TransactionId, commit: bool) -> PeerReply {
        let unpinned = match self.state.borrow().transactions.prepared.get(&transaction) {
            Some(Prepared { intent, pins: false, .. }) => Some(intent.clone()),
            _ => None,
        };
        if let Some(intent) = unpinned
            && commit
            && let Err(refusal) = self.load_for_intent(&intent).await
        {
            return super::fetch::peer_reply(refusal);
        }
        let Some((batch, kept)) = self.end_intent(transaction, commit) else { return PeerReply::Done };
        self.changed.notify_waiters();
        if kept == IntentKept::InMemory {
            return PeerReply::Done;
        }
        self.work.notify_one();
        let durable = match self.appended(batch).await {
            Ok(()) => self.sync().await,
            Err(refusal) => Err(refusal),
        };
        durable.map_or_else(super::fetch::peer_reply, |()| PeerReply::Done)
    }

    /// Applies or drops an intent, in memory and in the open batch. `None`: there is none.
    pub(super) fn end_intent(&self, transaction: TransactionId, commit: bool) -> Option<(BatchNumber, IntentKept)> {
        let mut state = self.state.borrow_mut();
        let Prepared { intent, pins, kept, .. } = state.transactions.prepared.remove(&transaction)?;
        unlock_keys(&mut state, transaction, &intent.changes);
        if pins {
            unpin(&mut state, &intent.changes);
        }
        if commit {
            intent.changes.into_iter().for_each(|change| self.apply(&mut state, change));
        }
        if kept == IntentKept::Stored {
            state.open.write(&Key::Intent(transaction), None);
        }
        Some((state.open.number, kept))
    }

    /// Answers whether a change coordinated here is committed; aborts it if it is undecided.
    pub(super) async fn outcome(self: &Rc<Self>, transaction: TransactionId) -> PeerReply {
        let decided = {
            let mut state = self.state.borrow_mut();
            state.transactions.undecided.remove(&transaction);
            state.transactions.decided.contains_key(&transaction)
        };
        if decided {
            // The decision may be made and not yet in the log.
            let batch = self.state.borrow().open.number;
            let durable = match self.appended(batch).await {
                Ok(()) => self.sync().await,
                Err(refusal) => Err(refusal),
            };
            if let Err(refusal) = durable {
                return super::fetch::peer_reply(refusal);
            }
        }
        PeerReply::Committed(decided)
    }

    pub(super) async fn ask_if_forgotten(self: Rc<Self>, transaction: TransactionId, after: Duration) {
        tokio::time::sleep(after).await;
        while self.state.borrow().transactions.prepared.contains_key(&transaction) && !self.stopping() {
            match self.peers.call(transaction.coordinator, PeerCall::Outcome(transaction)).await {
                PeerReply::Committed(commit) => {
                    self.resolve(transaction, commit).await;
                }
                other => {
                    tracing::warn!("transaction {transaction:?}: its coordinator does not answer: {other:?}");
                    if let PeerReply::Failed(cause) = other
                        && let Some(prepared) = self.state.borrow_mut().transactions.prepared.get_mut(&transaction)
                    {
                        prepared.unanswered = Some(cause);
                    }
                    tokio::time::sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    /// Takes up what an earlier epoch left, found in the table at open.
    pub(super) fn restore_transaction(self: &Rc<Self>, key: Key, row: Row) {
        let mut state = self.state.borrow_mut();
        match (key, row) {
            (Key::Intent(transaction), Row::Intent(intent)) => {
                lock_keys(&mut state, transaction, &intent.changes);
                let (pins, kept, since) = (false, IntentKept::Stored, self.clock.monotonic());
                let prepared = Prepared { intent, pins, kept, since, unanswered: None };
                state.transactions.prepared.insert(transaction, prepared);
                tokio::task::spawn_local(self.clone().ask_if_forgotten(transaction, Duration::ZERO));
            }
            (Key::Decision(transaction), Row::Decision(decision)) => {
                state.transactions.decided.insert(transaction, decision.participants.clone());
                tokio::task::spawn_local(self.clone().carry_out(transaction, decision.participants));
            }
            (key, row) => unreachable!("{key:?} of kind {:?} is no transaction", row.kind()),
        }
    }

    /// Hides what `intent`, found at rest, changes.
    pub(super) fn lock_for(&self, transaction: TransactionId, intent: &IntentRow) {
        lock_keys(&mut self.state.borrow_mut(), transaction, &intent.changes);
    }

    /// Makes resident what an intent of an earlier epoch changes. Its keys are locked, by itself.
    async fn load_for_intent(self: &Rc<Self>, intent: &IntentRow) -> Result<(), Refusal> {
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

/// A several-shard change with its coordinator's part locked.
pub(super) struct Begun {
    pub transaction: TransactionId,
    pub sorted: Sorted,
}

/// A decision by shards.
pub(super) struct Sorted {
    /// What the coordinator changes.
    pub own: Vec<Change>,
    /// What each other shard is to check and change.
    pub parts: BTreeMap<ShardId, IntentRow>,
    /// The shard that holds its part already, and every row of others that the decision rests on.
    pub holder: Option<ShardId>,
}

/// An intent of this shard.
struct Prepared {
    intent: IntentRow,
    /// It keeps its partitions loaded; one found at open does not.
    pins: bool,
    kept: IntentKept,
    since: Moment,
    /// What its coordinator's shard failed with when it was last asked for the outcome.
    unanswered: Option<Cause>,
}

/// Where an intent is until it is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IntentKept {
    Stored,
    InMemory,
}

/// When a several-shard change is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AnswerWhen {
    Decided,
    /// Whoever comes next must find it applied everywhere.
    Applied,
}

/// The directory whose partition a change is about.
fn directory_of(change: &Change) -> Option<InodeId> {
    match change {
        Change::Put(Key::Entry(directory, _) | Key::Partition(directory, _), _)
        | Change::Delete(Key::Entry(directory, _) | Key::Partition(directory, _))
        | Change::Tally { directory, .. } => Some(*directory),
        _ => None,
    }
}

/// Locks the keys of `changes`, and keeps their partitions loaded and in one piece.
fn lock(state: &mut State, transaction: TransactionId, changes: &[Change]) {
    lock_keys(state, transaction, changes);
    for directory in changes.iter().filter_map(directory_of) {
        if let Some(partition) = state.partitions.get_mut(directory) {
            partition.pending_tallies += 1;
        }
    }
}

fn lock_keys(state: &mut State, transaction: TransactionId, changes: &[Change]) {
    for change in changes {
        if let Change::Put(key, _) | Change::Delete(key) = change {
            state.locks.insert(key.clone(), transaction);
        }
    }
}

fn unlock(state: &mut State, transaction: TransactionId, changes: &[Change]) {
    unlock_keys(state, transaction, changes);
    unpin(state, changes);
}

fn unlock_keys(state: &mut State, transaction: TransactionId, changes: &[Change]) {
    for change in changes {
        if let Change::Put(key, _) | Change::Delete(key) = change
            && state.locks.get(key) == Some(&transaction)
        {
            state.locks.remove(key);
        }
    }
}

fn unpin(state: &mut State, changes: &[Change]) {
    for directory in changes.iter().filter_map(directory_of) {
        if let Some(partition) = state.partitions.get_mut(directory) {
            partition.pending_tallies = partition.pending_tallies.saturating_sub(1);
        }
    }
}
