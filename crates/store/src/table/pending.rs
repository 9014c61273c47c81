//! Rows that are in the log and on their way into SlateDB.
//!
//! A write is acknowledged when the log has it. A background task passes the rows collected since the last time to
//! SlateDB as one batch: a row costs SlateDB several times what it costs the log, and a row that changes with every
//! batch is passed once. Reads check here first. Scans, snapshots and flushes wait until nothing is on its way
//! ([`Pending::settle`]).
//!
//! Invariants: batches have rising sequence numbers. A batch for SlateDB has the number of the last batch in it, so
//! that rows replayed after a crash are ordered correctly with rows in tables. Each batch for SlateDB consists of
//! complete groups of the log.

mod batches;

use super::TableError;
use crate::log::{BatchRows, Log, newest_of_each};
use batches::Batches;
use bytes::Bytes;
use parking_lot::Mutex;
use slatedb::config::WriteOptions;
use slatedb::{Db, ValueDeletable, WriteBatch};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use varve_types::ShardId;

/// How long rows are collected. A shard under load passes tens of thousands at a time, and an idle one sleeps. Rows go
/// in key order into a memtable, whose rows are scattered in memory: the more are collected, the closer each is to the
/// one before.
const COLLECTED_FOR: Duration = Duration::from_millis(200);
/// Bytes at which collection ends early, and bytes at which writes wait for SlateDB, which waits for its store.
const BYTES_EARLY: usize = 4 * 1024 * 1024;
const BYTES_MAX: usize = 8 * 1024 * 1024;

pub(super) struct Pending {
    shard: ShardId,
    db: Db,
    log: Arc<Log>,
    state: Mutex<PendingState>,
    /// `wake`: there are rows to pass on. `hurry`: a caller waits for them.
    wake: Notify,
    hurry: Notify,
    passed: watch::Sender<Passed>,
}

struct PendingState {
    /// Sequence number of the last batch.
    sequence: u64,
    collected: Batches,
    /// Rows being written to SlateDB.
    passing: Batches,
}

impl PendingState {
    fn bytes(&self) -> usize {
        self.collected.bytes() + self.passing.bytes()
    }
}

struct Passed {
    sequence: u64,
    failure: Option<TableError>,
}

/// The task that passes rows on. It ends when this is dropped.
pub(super) struct Passing(JoinHandle<()>);

impl Drop for Passing {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Pending {
    /// `sequence`: the last sequence number that `db` has.
    pub fn start(shard: ShardId, db: Db, log: Arc<Log>, sequence: u64, background: &Handle) -> (Arc<Pending>, Passing) {
        let state = PendingState { sequence, collected: Batches::default(), passing: Batches::default() };
        let pending = Arc::new(Pending {
            shard,
            db,
            log,
            state: Mutex::new(state),
            wake: Notify::new(),
            hurry: Notify::new(),
            passed: watch::Sender::new(Passed { sequence, failure: None }),
        });
        let passing = Passing(background.spawn(Arc::clone(&pending).run()));
        (pending, passing)
    }

    pub fn db(&self) -> &Db {
        &self.db
    }

    pub fn shard(&self) -> ShardId {
        self.shard
    }

    pub fn failed(&self, action: &'static str, error: slatedb::Error) -> TableError {
        TableError::new(self.shard, action, error, self.log.failure())
    }

    pub fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Sequence number of the last batch in the log.
    pub fn sequence(&self) -> u64 {
        self.state.lock().sequence
    }

    /// Writes a batch to the log. A later row of a key replaces an earlier one.
    pub async fn append(&self, rows: &BatchRows) -> Result<(), TableError> {
        self.wait_for_room().await?;
        let mut state = self.state.lock();
        let sequence = state.sequence + 1;
        let body = self.log.append(rows, sequence).map_err(|error| TableError::from_log(self.shard, error))?;
        state.sequence = sequence;
        let before = state.collected.bytes();
        state.collected.push(body);
        let early = before < BYTES_EARLY && state.collected.bytes() >= BYTES_EARLY;
        drop(state);
        if before == 0 {
            self.wake.notify_one();
        }
        if early {
            self.hurry.notify_one();
        }
        Ok(())
    }

    /// The row of `key`, if it is on its way: `Some(None)` if it is deleted.
    pub fn find(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let PendingState { collected, passing, .. } = &mut *self.state.lock();
        collected.find(key).or_else(|| passing.find(key))
    }

    /// Returns when SlateDB has everything that was written before.
    pub async fn settle(&self) -> Result<(), TableError> {
        let sequence = self.state.lock().sequence;
        self.wait_until_passed(|passed| passed.sequence >= sequence).await
    }

    async fn wait_for_room(&self) -> Result<(), TableError> {
        if self.state.lock().bytes() >= BYTES_MAX {
            self.wait_until_passed(|_| self.state.lock().bytes() < BYTES_MAX).await?;
        } else if let Some(failure) = &self.passed.borrow().failure {
            return Err(failure.clone());
        }
        self.log.wait_for_room().await.map_err(|error| TableError::from_log(self.shard, error))
    }

    async fn wait_until_passed(&self, enough: impl Fn(&Passed) -> bool) -> Result<(), TableError> {
        let enough = |passed: &Passed| passed.failure.is_some() || enough(passed);
        if !enough(&self.passed.borrow()) {
            self.hurry.notify_one();
        }
        let mut progress = self.passed.subscribe();
        // The sender lives as long as `self`.
        match progress.wait_for(enough).await.ok().and_then(|passed| passed.failure.clone()) {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    async fn run(self: Arc<Self>) {
        loop {
            self.wake.notified().await;
            tokio::select! {
                () = tokio::time::sleep(COLLECTED_FOR) => {}
                () = self.hurry.notified() => {}
            }
            if let Err(error) = self.pass_on().await {
                let failure = self.failed("write to", error);
                return self.passed.send_modify(|passed| passed.failure = Some(failure));
            }
        }
    }

    async fn pass_on(&self) -> Result<(), slatedb::Error> {
        let (batches, sequence) = {
            let PendingState { sequence, collected, passing } = &mut *self.state.lock();
            if collected.is_empty() {
                return Ok(());
            }
            self.log.hand_over();
            *passing = collected.take();
            (passing.shared(), *sequence)
        };
        let mut batch = WriteBatch::new();
        // In key order, each row is put beside the one before, which is in the processor's cache.
        for row in newest_of_each(batches.iter().flat_map(batches::rows_of)) {
            match row.value {
                ValueDeletable::Value(value) | ValueDeletable::Merge(value) => batch.put_bytes(row.key, value),
                ValueDeletable::Tombstone => batch.delete(row.key),
            }
        }
        drop(batches);
        self.db.write_with_options(batch, &WriteOptions { seqnum: sequence }).await?;
        let passed = std::mem::take(&mut self.state.lock().passing);
        self.passed.send_modify(|passed| passed.sequence = sequence);
        drop(passed);
        Ok(())
    }
}
