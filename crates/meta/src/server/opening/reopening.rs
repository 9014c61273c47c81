//! Opening again what could not be opened, or was open and failed.

use super::OpenFailure;
use crate::server::worker::Worker;
use crate::shards::{Cause, PREPARED_VALID, Shard};
use futures::future;
use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;
use std::time::Duration;
use varve_types::ShardId;

/// Before the second attempt to open a shard; the pauses double up to the others, with a store that fails, and with a
/// shard that is damaged. Each attempt leaves some small files behind.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
const REOPEN_PAUSE_MAX: Duration = Duration::from_secs(5);
const DAMAGED_PAUSE_MAX: Duration = Duration::from_secs(60);

/// How often a store that is not there is looked for.
const LOOKED_FOR_EVERY: Duration = Duration::from_millis(500);

impl Worker {
    /// Tries until the shard is open, or the worker ends; sooner where a sync waits for it. One that is damaged is left alone until
    /// somebody asks for it. What was `refused` before for the same reason is not told again.
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
                // In one that is not there nothing can be opened, and then all of it is wanted at once.
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
            // Who cannot be asked will say so to who opens a table.
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

    /// Opens all again that have failed, whether or not anybody has found that.
    pub fn reopen_failed(self: &Rc<Self>) {
        let shards: Vec<_> = self.shards.borrow().values().cloned().collect();
        shards.iter().filter(|shard| shard.has_failed()).for_each(|shard| self.reopen(shard));
    }

    /// Opens a shard again whose table has refused a write: nobody knows whether it was written, and opening it answers
    /// that. Until then its calls wait for a while, unless its store takes no writes. `failed` may be another call's
    /// discovery too.
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
            // A table that has failed writes no more, though it may take seconds to say so.
            let owned = Some(failed.epoch());
            let (closed, ()) = future::join(Rc::clone(&failed).close(), worker.serve_read_only(id, owned, errno)).await;
            if let Err(error) = closed {
                tracing::debug!("shard {id} was not closed well: {error}");
            }
            // Known only now: a close syncs what it can. Syncs have waited for it.
            worker.opening.owes(&failed, cause, worker.shared.sessions.working());
            worker.changed.notify_waiters();
            drop(failed);
            // What it held in memory for others is not relied on any longer than that.
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
