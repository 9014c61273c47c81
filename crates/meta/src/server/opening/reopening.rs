//! Opens shards again that could not be opened, or that were open and failed.

use super::slots::ShardSlot;
use super::{FailureKind, OpenFailure, end_read_only, released};
use crate::server::worker::Worker;
use crate::shards::{Cause, Shard};
use futures::future;
use std::rc::Rc;
use std::time::Duration;
use varve_types::ShardId;

/// Pause before the second attempt to open a shard. The pauses double up to a maximum, one for a failing store and one
/// for a damaged shard. Each attempt leaves some small files behind.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(5);
const DAMAGED_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Interval of the checks for a store that is unreachable.
const LOOKED_FOR_EVERY: Duration = Duration::from_millis(500);

impl Worker {
    /// Retries until the shard is open or the worker ends, and sooner if a sync waits for the shard. A damaged shard is
    /// retried only when a caller requests it, and one that another server has taken over never. A failure with the same
    /// cause as the one before (`refused`) is not logged again.
    pub(super) async fn open_later(self: Rc<Self>, id: ShardId, mut refused: OpenFailure) {
        let mut pause = REOPEN_PAUSE;
        while !refused.is(FailureKind::Fenced) {
            let due = async {
                tokio::time::sleep(REOPEN_PAUSE).await;
                let rest = tokio::time::sleep(pause - REOPEN_PAUSE);
                if refused.is(FailureKind::Damaged) {
                    rest.await;
                    return self.asked_for(id, |slot| &mut slot.asked).await;
                }
                tokio::select! {
                    () = rest => {}
                    () = self.asked_for(id, |slot| &mut slot.hurried) => {}
                }
                // Nothing can be opened while the store is unreachable, and after that all shards are needed
                // immediately.
                self.store_is_there().await;
            };
            tokio::select! {
                () = due => {}
                () = self.given_up() => return,
            }
            match self.open_shard(id).await {
                Ok(()) => return tracing::info!("shard {id} is open again"),
                Err(again) => {
                    if again.cause != refused.cause {
                        tracing::error!("{}", again.cause);
                    }
                    refused = again;
                }
            }
            let damaged = refused.is(FailureKind::Damaged);
            pause = (pause * 2).min(if damaged { DAMAGED_PAUSE_MAX } else { REOPEN_PAUSE_MAX });
        }
    }

    /// Returns when the directory of all tables is in its place.
    async fn store_is_there(&self) {
        loop {
            let store = self.tables.table.store.clone();
            // If the check itself cannot run, opening the table reports the error.
            if tokio::task::spawn_blocking(move || store.is_there()).await.unwrap_or(true) {
                return;
            }
            tokio::time::sleep(LOOKED_FOR_EVERY).await;
        }
    }

    async fn asked_for(&self, id: ShardId, asked: impl Fn(&mut ShardSlot) -> &mut bool) {
        loop {
            let changed = self.changed.notified();
            if std::mem::take(asked(&mut self.slots.of(id))) {
                return;
            }
            changed.await;
        }
    }

    /// Reopens all shards that have failed, whether or not a call has noticed the failure.
    pub fn reopen_failed(self: &Rc<Self>) {
        let shards = self.slots.all_open();
        shards.iter().filter(|shard| shard.has_failed()).for_each(|shard| self.reopen(shard));
    }

    /// Reopens a shard whose table has refused a write: it is unknown whether the data was written, and reopening the
    /// shard settles that. Until then calls wait for a while, unless the store takes no writes. Another call may
    /// already have reported the same `failed` shard. A shard that is moving away is left to the move.
    pub fn reopen(self: &Rc<Self>, failed: &Rc<Shard>) {
        let id = failed.id();
        let is_open = self.shard(id).is_some_and(|shard| Rc::ptr_eq(&shard, failed));
        if self.slots.has_given_up() || !is_open {
            return;
        }
        let cause = failed.failed().unwrap_or_else(|| Cause::from(format!("shard {id} has failed")));
        self.fail(failed, cause);
    }

    /// Records that a shard of this worker has failed, and opens it again unless another server has taken it over.
    pub(super) fn fail(self: &Rc<Self>, failed: &Rc<Shard>, cause: Cause) {
        self.slots.of(failed.id()).fail(cause.clone(), self.slots.now());
        self.spawn(Rc::clone(self).open_again(Rc::clone(failed), cause));
    }

    async fn open_again(self: Rc<Self>, failed: Rc<Shard>, cause: Cause) {
        let id = failed.id();
        // A failed table writes nothing more, but closing it may take seconds.
        let view = async {
            if let Some(view) = self.open_read_only(id, Some(failed.epoch()), cause.errno).await {
                let left = self.slots.of(id).add_view(view);
                end_read_only(left);
                self.changed.notify_waiters();
            }
        };
        let (closed, ()) = future::join(Rc::clone(&failed).close(), view).await;
        if let Err(error) = closed {
            tracing::debug!("shard {id} was not closed cleanly: {error}");
        }
        // The loss is known only after the close, which syncs as much as possible. Syncs have waited for it.
        self.slots.owes(&failed, cause, self.shared.sessions.working());
        if failed.is_fenced() {
            if !self.shared.joined {
                tracing::error!("{}", released(id));
            }
            self.release_shard(id);
            return self.changed.notify_waiters();
        }
        self.changed.notify_waiters();
        drop(failed);
        if self.slots.has_given_up() {
            return;
        }
        match self.open_shard(id).await {
            Ok(()) => tracing::info!("shard {id} is open again"),
            Err(refused) => {
                tracing::error!("{}", refused.cause);
                self.open_later(id, refused).await;
            }
        }
    }
}
