//! Group commit: the decisions of many requests are sent to the table as one batch while the next one fills, by one
//! task per shard or inline by a caller ([`super::committer`]).

use super::batch::{CommitBatch, Waiter};
use super::fetch::peer_reply;
use super::peers::PeerReply;
use super::refusal::{Cause, ShardRefusal};
use super::resident::BatchNumber;
use super::shard::{Shard, ShardState};
use futures::FutureExt;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;
use tokio::sync::oneshot;
use varve_env::stages::{self, Stage};
use varve_schema::{Key, TransactionId};
use varve_store::{TableBatch, TableError};
use varve_types::Errno;

/// How long a request waits for its batch at most. After that the store counts as hung.
pub(super) const APPEND_MAX: Duration = Duration::from_secs(30);

/// Rows fetched before the cache is checked against its budget, if no batch comes in between.
const FETCHED_MAX: usize = 256;

/// Replies of ended sessions deleted per batch, so that they never make a batch long.
const OBSOLETE_A_BATCH: usize = 4;

impl Shard {
    /// Sends batches until the shard closes or fails.
    pub(super) async fn commit_batches(self: Rc<Self>) {
        loop {
            self.spawn_splits();
            let Some(batch) = self.take_batch() else {
                if self.state.borrow().closing {
                    return;
                }
                self.work.notified().await;
                continue;
            };
            let (number, rows) = batch;
            let result = self.write(&rows).await;
            let mut state = self.state.borrow_mut();
            let answer = match result {
                Ok(()) => {
                    state.appended = number;
                    Ok(())
                }
                Err(error) => {
                    let cause =
                        Cause { errno: error.errno(), reason: format!("shard {} cannot write: {error}", self.id) };
                    tracing::error!("{cause}; reopening the shard");
                    state.failed = Some(cause.clone());
                    Err(ShardRefusal::Failed(cause))
                }
            };
            let failed = answer.is_err();
            let mut waiters = std::mem::take(&mut state.in_flight);
            if failed {
                waiters.append(&mut state.open.waiters);
            }
            if !failed {
                self.shrink(&mut state);
            }
            drop(state);
            for waiter in waiters.drain(..) {
                // A request that gave up waiting has failed already.
                let _ = waiter.send(answer.clone());
            }
            if failed {
                self.changed.notify_waiters();
                return;
            }
            self.state.borrow_mut().open.reuse(rows, waiters);
        }
    }

    /// Writes a batch. While the store hangs, waiting requests fail once per [`APPEND_MAX`], and the write continues.
    async fn write(&self, batch: &TableBatch) -> Result<(), TableError> {
        let mut write = pin!(self.table.write(batch));
        // Most writes need no wait and no timer.
        if let Some(result) = write.as_mut().now_or_never() {
            return result;
        }
        loop {
            if let Ok(result) = tokio::time::timeout(APPEND_MAX, &mut write).await {
                return result;
            }
            let reason = format!("shard {}: the store has not taken a write for {APPEND_MAX:?}", self.id);
            let cause = Cause { errno: Errno::ETIMEDOUT, reason };
            tracing::error!("{cause}");
            let mut state = self.state.borrow_mut();
            let mut waiters = std::mem::take(&mut state.in_flight);
            waiters.append(&mut state.open.waiters);
            drop(state);
            for waiter in waiters {
                let _ = waiter.send(Err(ShardRefusal::Failed(cause.clone())));
            }
        }
    }

    fn spawn_splits(self: &Rc<Self>) {
        let mut wanted = std::mem::take(&mut self.state.borrow_mut().split_wanted);
        wanted.dedup();
        for directory in wanted {
            tokio::task::spawn_local(self.clone().split(directory));
        }
    }

    /// Closes the open batch.
    fn take_batch(&self) -> Option<(BatchNumber, TableBatch)> {
        let mut state = self.state.borrow_mut();
        let state = &mut *state;
        if state.open.is_empty() && !state.partitions.has_dirty() {
            return None;
        }
        let mut batch = state.open.close();
        self.write_partition_rows(state, &mut batch);
        for _ in 0..OBSOLETE_A_BATCH {
            let Some(obsolete) = state.replies.obsolete(|| self.clock.monotonic()) else { break };
            batch.write(&obsolete, None);
        }
        debug_assert!(state.in_flight.is_empty(), "somebody waits for the batch before");
        state.in_flight = batch.waiters;
        Some((batch.number, batch.rows))
    }

    fn write_partition_rows(&self, state: &mut ShardState, batch: &mut CommitBatch) {
        let ShardState { partitions, resident, .. } = state;
        let number = batch.number;
        partitions.clean(number, |directory, index| {
            let key = Key::Partition(directory, index);
            if let Some(row) = resident.row_mut(&key, number) {
                batch.write(&key, Some(row));
            }
        });
    }

    /// Rows fetched by requests that change nothing count too.
    pub(super) fn shrink_after_fetch(&self, state: &mut ShardState) {
        state.fetched += 1;
        if state.fetched >= FETCHED_MAX {
            self.shrink(state);
        }
    }

    pub(super) fn shrink(&self, state: &mut ShardState) {
        state.fetched = 0;
        state.partitions.shrink(state.appended);
        let (partitions, locks) = (&state.partitions, &state.locks);
        let pinned = |key: &Key| partitions.hold(key) || locks.holds(key);
        let may_go = |key: &Key| match key {
            Key::Entry(..) => partitions.know_absent(key),
            // A directory's id is never reused: requests for it are rare, and the table has the answer.
            Key::Partition(..) | Key::Directory(_) => true,
            _ => false,
        };
        state.resident.forget_absent(state.appended, |key| may_go(key) && !pinned(key));
        state.resident.shrink(state.appended, pinned);
    }

    /// Gives back this shard's part of the excess memory of all shards together.
    pub async fn give_back(&self) {
        let (bytes_max, steps) = {
            let mut state = self.state.borrow_mut();
            let appended = state.appended;
            state.partitions.give_back(appended);
            state.resident.begin_give_back()
        };
        for _ in 0..steps {
            let more = {
                let mut state = self.state.borrow_mut();
                let ShardState { resident, partitions, locks, appended, .. } = &mut *state;
                resident.shrink_to(bytes_max, *appended, |key| partitions.hold(key) || locks.holds(key))
            };
            if !more {
                break;
            }
            tokio::task::yield_now().await;
        }
        self.state.borrow_mut().resident.give_up_places();
    }

    /// Ready when `batch` is appended to the log.
    pub(super) async fn appended(&self, batch: BatchNumber) -> Result<(), ShardRefusal> {
        let receiver = {
            let mut state = self.state.borrow_mut();
            if batch <= state.appended {
                return Ok(());
            }
            if let Some(cause) = &state.failed {
                return Err(ShardRefusal::Failed(cause.clone()));
            }
            if let Some(cause) = self.takes_no_changes() {
                return Err(ShardRefusal::Failed(cause));
            }
            let (sender, receiver) = oneshot::channel();
            state.wait_for(batch, sender);
            receiver
        };
        self.work.notify_one();
        let _passage = stages::enter(Stage::Log);
        receiver.await.unwrap_or_else(|_| Err(ShardRefusal::Failed(format!("shard {} was closed", self.id).into())))
    }

    pub(super) async fn appended_with_work(&self, batch: BatchNumber) -> Result<(), ShardRefusal> {
        self.work.notify_one();
        self.appended(batch).await
    }

    /// Ready when `batch` is appended to the log and fsynced.
    pub(super) async fn durable(&self, batch: BatchNumber) -> Result<(), ShardRefusal> {
        self.appended(batch).await?;
        self.sync().await
    }

    /// The reply to a peer whose call is done once `batch` is appended to the log.
    pub(super) async fn done_when_appended(&self, batch: BatchNumber) -> PeerReply {
        self.appended(batch).await.map_or_else(peer_reply, |()| PeerReply::Done)
    }

    /// The reply to a peer whose call is done once `batch` is fsynced.
    pub(super) async fn done_when_durable(&self, batch: BatchNumber) -> PeerReply {
        self.durable(batch).await.map_or_else(peer_reply, |()| PeerReply::Done)
    }

    /// Returns when everything acknowledged before is fsynced. A shard whose log has ended is marked as failed here,
    /// because there may be no further write that would find out. A shard whose store only hangs is not.
    pub async fn sync(&self) -> Result<(), ShardRefusal> {
        let Err(error) = self.table.sync().await else { return Ok(()) };
        let cause = Cause { errno: error.errno(), reason: format!("shard {} cannot fsync its log: {error}", self.id) };
        if self.table.has_ended() {
            self.state.borrow_mut().failed.get_or_insert_with(|| cause.clone());
            self.work.notify_one();
            self.changed.notify_waiters();
        }
        Err(ShardRefusal::Failed(cause))
    }

    /// Whether the shard must be opened again. Reads call this to find a table that ended without a write, for example
    /// because its store was unreachable, and a shard that has a later owner.
    pub fn has_failed(&self) -> bool {
        let mut state = self.state.borrow_mut();
        let ended = || self.table.has_ended().then(|| Cause::from(format!("the table of shard {} has ended", self.id)));
        if state.failed.is_none()
            && let Some(cause) = self.peers.superseded().or_else(ended)
        {
            state.failed = Some(cause);
            drop(state);
            self.work.notify_one();
            self.changed.notify_waiters();
            return true;
        }
        state.failed.is_some()
    }

    /// The last batch that the table acknowledged.
    pub fn acknowledged(&self) -> u64 {
        self.table.last_sequence()
    }

    /// The last batch found at open.
    pub fn found(&self) -> u64 {
        self.table.found_sequence()
    }

    /// Whether acknowledged changes may be lost even if the shard is opened again.
    pub fn may_have_lost(&self) -> bool {
        self.table.unsaved_bytes() > 0
    }

    /// Waits while an undecided change locks the requested rows; returns whether one did. Fails immediately, with the
    /// cause, if the change's outcome is known not to come soon.
    pub(super) async fn wait_while_locked(
        &self,
        locked: impl Fn(&ShardState) -> Option<TransactionId>,
    ) -> Result<bool, ShardRefusal> {
        let unanswered = {
            let state = self.state.borrow();
            let Some(transaction) = locked(&state) else { return Ok(false) };
            self.takes_no_changes().or_else(|| state.transactions.unanswered(transaction))
        };
        if let Some(cause) = unanswered {
            return Err(ShardRefusal::Failed(
                cause.met("the request waits for the outcome of a cross-shard transaction"),
            ));
        }
        self.wait_until(|state| locked(state).is_none()).await?;
        Ok(true)
    }

    /// Waits until `ready` returns true for the state; `Busy` after a while.
    pub(super) async fn wait_until(&self, ready: impl Fn(&ShardState) -> bool) -> Result<(), ShardRefusal> {
        let wait = async {
            loop {
                let notified = self.changed.notified();
                let mut notified = std::pin::pin!(notified);
                notified.as_mut().enable();
                {
                    let state = self.state.borrow();
                    if let Some(cause) = &state.failed {
                        return Err(ShardRefusal::Failed(cause.clone()));
                    }
                    if ready(&state) {
                        return Ok(());
                    }
                }
                notified.await;
            }
        };
        tokio::time::timeout(super::shard::WAIT_MAX, wait).await.unwrap_or(Err(ShardRefusal::Busy))
    }
}

impl ShardState {
    /// Adds a waiter for `batch`, which is not appended yet.
    fn wait_for(&mut self, batch: BatchNumber, waiter: Waiter) {
        if batch == self.open.number {
            self.open.waiters.push(waiter);
        } else {
            self.in_flight.push(waiter);
        }
    }
}
