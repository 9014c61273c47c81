//! Closes a worker's shards. Shards that failed because of trouble that is over are opened once more first, to confirm
//! that nothing is lost.

use super::OpenPurpose;
use super::slots::{ShardSlots, SlotState};
use crate::server::worker::Worker;
use crate::shards::{Cause, Shard};
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
        self.slots.give_up();
        self.changed.notify_waiters();
        loop {
            let changed = self.changed.notified();
            if !self.slots.is_under_way() {
                break;
            }
            changed.await;
        }
        let closed = stream::iter(self.slots.all_open()).map(|shard| self.close_shard(shard));
        let closed: Vec<_> = closed.buffer_unordered(CLOSING_MAX).collect().await;
        let mut read_only = Vec::new();
        self.slots.each(|slot| read_only.extend(slot.closed(self.slots.now())));
        future::join_all(read_only.iter().map(|shard| shard.close_read_only())).await;
        closed.into_iter().collect::<Result<(), String>>()?;
        self.slots.loss().map_or(Ok(()), |cause| Err(cause.reason))
    }

    /// Returns when the failed shards that this worker has had open are open again, or cannot be opened.
    async fn open_failed(self: &Rc<Self>) {
        self.reopen_failed();
        let opened =
            future::join_all(self.slots.failed().into_iter().map(|shard| self.opened(shard, OpenPurpose::End)));
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
        let cause = Cause { errno: error.errno(), reason: reason.clone() };
        self.slots.of(id).fail(cause.clone(), self.slots.now());
        self.slots.owes(&shard, cause, self.shared.sessions.working());
        let fenced = shard.is_fenced();
        drop(shard);
        if fenced || !self.tables.table.store.is_there() {
            return Err(reason);
        }
        tracing::warn!("{reason}; reopening it");
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
            if self.slots.has_given_up() {
                return;
            }
            changed.await;
        }
    }
}

impl ShardSlots {
    /// Shards that failed and are not open again, out of those that this server has had open.
    fn failed(&self) -> Vec<ShardId> {
        self.which(|slot| matches!(slot.state, SlotState::Failed { .. }) || slot.owing.is_some())
    }
}
