//! Opens shards again that could not be opened, or that were open and failed.

use super::OpenFailure;
use crate::server::worker::Worker;
use crate::shards::{Cause, PREPARED_VALID, Shard};
use futures::future;
use std::cell::RefCell;
use std::collections::HashSet;
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
    /// retried only when a caller requests it. A failure with the same cause as the one before (`refused`) is not
    /// logged again.
    pub(super) async fn open_later(self: Rc<Self>, id: ShardId, mut refused: OpenFailure) {
        let mut pause = REOPEN_PAUSE;
        loop {
            let due = async {
                tokio::time::sleep(REOPEN_PAUSE).await;
                let rest = tokio::time::sleep(pause - REOPEN_PAUSE);
                if refused.damaged {
                    rest.await;
                    return self.asked_for(id, &self.opening.asked).await;
                }
                tokio::select! {
                    () = rest => {}
                    () = self.asked_for(id, &self.opening.hurried) => {}
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
            pause = (pause * 2).min(if refused.damaged { DAMAGED_PAUSE_MAX } else { REOPEN_PAUSE_MAX });
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

    async fn asked_for(&self, id: ShardId, asked: &RefCell<HashSet<ShardId>>) {
        loop {
            let changed = self.changed.notified();
            if asked.borrow_mut().remove(&id) {
                return;
            }
            changed.await;
        }
    }

    /// Reopens all shards that have failed, whether or not a call has noticed the failure.
    pub fn reopen_failed(self: &Rc<Self>) {
        let shards: Vec<_> = self.shards.borrow().values().cloned().collect();
        shards.iter().filter(|shard| shard.has_failed()).for_each(|shard| self.reopen(shard));
    }

    /// Reopens a shard whose table has refused a write: it is unknown whether the data was written, and reopening the
    /// shard settles that. Until then calls wait for a while, unless the store takes no writes. Another call may
    /// already have reported the same `failed` shard.
    pub fn reopen(self: &Rc<Self>, failed: &Rc<Shard>) {
        let id = failed.id();
        let mut shards = self.shards.borrow_mut();
        if self.opening.has_given_up() || !shards.get(&id).is_some_and(|shard| Rc::ptr_eq(shard, failed)) {
            return;
        }
        shards.remove(&id);
        let cause = failed.failed().unwrap_or_else(|| Cause::from(format!("shard {id} has failed")));
        let errno = cause.errno;
        self.opening.failed.borrow_mut().insert(id, cause.clone());
        let (worker, failed) = (Rc::clone(self), Rc::clone(failed));
        self.spawn(async move {
            // A failed table writes nothing more, but closing it may take seconds.
            let owned = Some(failed.epoch());
            let (closed, ()) = future::join(Rc::clone(&failed).close(), worker.serve_read_only(id, owned, errno)).await;
            if let Err(error) = closed {
                tracing::debug!("shard {id} was not closed cleanly: {error}");
            }
            // The loss is known only after the close, which syncs as much as possible. Syncs have waited for it.
            worker.opening.owes(&failed, cause, worker.shared.sessions.working());
            worker.changed.notify_waiters();
            drop(failed);
            // Other shards may rely for this long on removals that the failed shard prepared in memory.
            tokio::time::sleep(PREPARED_VALID).await;
            if worker.opening.has_given_up() {
                return;
            }
            match worker.open_shard(id).await {
                Ok(()) => tracing::info!("shard {id} is open again"),
                Err(refused) => {
                    tracing::error!("{}", refused.cause);
                    worker.open_later(id, refused).await;
                }
            }
        });
    }
}
