//! Closes a worker's shards. Shards that failed because of trouble that is over are opened once more first, to confirm
//! that nothing is lost.

use super::OpenPurpose;
use crate::server::worker::Worker;
use crate::shards::{Cause, PREPARED_VALID, Shard};
use futures::future;
use futures::stream::{self, StreamExt};
use std::rc::Rc;
use std::time::Duration;
use varve_types::ShardId;

/// Shards that one worker closes concurrently; a close mostly waits for the store.
const CLOSING_MAX: usize = 8;

/// How long a stop waits for failed shards: an attempt that the store refuses takes some seconds, and the next one
/// starts after a pause. Together with the time to close the shards this is below the deadline of a stop.
const LAST_MAX: Duration = Duration::from_secs(10);

impl Worker {
    /// Opens failed shards once more, waits for openings in progress, starts nothing else, and closes all open shards
    /// even if some fail. Returns the first failure, or the cause of a possible loss.
    pub(in crate::server) async fn close_shards(self: &Rc<Self>) -> Result<(), String> {
        self.open_failed().await;
        self.opening.give_up();
        self.changed.notify_waiters();
        loop {
            let changed = self.changed.notified();
            if self.opening.under_way.get() == 0 {
                break;
            }
            changed.await;
        }
        let shards: Vec<_> = self.shards.borrow().values().cloned().collect();
        let closed = stream::iter(shards).map(|shard| self.close_shard(shard));
        let closed: Vec<_> = closed.buffer_unordered(CLOSING_MAX).collect().await;
        self.shards.borrow_mut().clear();
        let read_only = std::mem::take(&mut *self.opening.read_only.borrow_mut());
        future::join_all(read_only.values().map(|shard| shard.close_read_only())).await;
        closed.into_iter().collect::<Result<(), String>>()?;
        self.opening.loss().map_or(Ok(()), |cause| Err(cause.reason))
    }

    /// Returns when the failed shards that this worker has had open are open again, or cannot be opened.
    async fn open_failed(self: &Rc<Self>) {
        self.reopen_failed();
        let opened =
            future::join_all(self.opening.size_stale().into_iter().map(|shard| self.opened(shard, OpenPurpose::End)));
        if tokio::time::timeout(LAST_MAX, opened).await.is_err() {
            tracing::warn!("failed shards did not reopen within {LAST_MAX:?}");
        }
    }

    /// Closes a shard. A shard whose failure nobody had noticed, or that its store refuses to close, is opened once
    /// more and then closed.
    async fn close_shard(&self, shard: Rc<Shard>) -> Result<(), String> {
        let id = shard.id();
        let Err(error) = Rc::clone(&shard).close().await else { return Ok(()) };
        let reason = format!("shard {id} cannot be closed: {error}");
        self.shards.borrow_mut().remove(&id);
        self.opening.owes(
            &shard,
            Cause { errno: error.errno(), reason: reason.clone() },
            self.shared.sessions.working(),
        );
        drop(shard);
        if !self.tables.table.store.is_there() {
            return Err(reason);
        }
        tracing::warn!("{reason}; reopening it");
        tokio::time::sleep(PREPARED_VALID).await;
        if self.open_shard(id).await.is_err() {
            return Err(reason);
        }
        let Some(again) = self.shard(id) else { return Err(reason) };
        again.close().await.map_err(|error| format!("shard {id} cannot be closed: {error}"))
    }

    /// Returns when the worker must not open anything more.
    pub(super) async fn given_up(&self) {
        loop {
            let changed = self.changed.notified();
            if self.opening.has_given_up() {
                return;
            }
            changed.await;
        }
    }
}

impl super::ShardOpening {
    /// Shards that failed and are not open again, out of those that this server has had open.
    fn size_stale(&self) -> Vec<ShardId> {
        let (failed, owing) = (self.failed.borrow(), self.owing.borrow());
        let mut shards: Vec<_> = failed.keys().chain(owing.keys()).copied().collect();
        shards.sort_unstable();
        shards.dedup();
        shards
    }
}
