//! Shards that come from another server of the cluster, and go to one, as the thread of the membership says.

use super::slots::Gate;
use super::{FailureKind, OpenFailure, end_read_only, released};
use crate::server::worker::Worker;
use crate::shards::Cause;
use std::rc::Rc;
use std::time::Duration;
use varve_cluster::map::Term;
use varve_types::ShardId;

/// Interval of the checks whether the lease runs again.
const LEASE_LOOKED_AT_EVERY: Duration = Duration::from_millis(20);

impl Worker {
    /// Opens a shard that the cluster's map gives to this worker, as after a restart: sessions that had files open at its
    /// former owner register them here. Returns when it is open, or the worker ends.
    pub async fn own(self: Rc<Self>, id: ShardId, term: Term, after: Duration) {
        let now = self.slots.now();
        if self.slots.has_given_up() || !self.slots.of(id).begin_ownership(term, self.shared.sessions_return, now) {
            return;
        }
        self.changed.notify_waiters();
        tokio::select! {
            () = tokio::time::sleep(after) => {}
            () = self.given_up() => return,
        }
        match self.open_shard(id).await {
            Ok(()) => tracing::info!("worker {}: owns shard {id}", self.index),
            Err(refused) => {
                tracing::error!("{}; calls for it fail until it opens", refused.cause);
                self.open_later(id, refused).await;
            }
        }
    }

    /// Closes a shard for another owner. Its calls wait until the cluster's map names that one, or this worker again.
    pub async fn give_away(self: &Rc<Self>, id: ShardId) -> Result<(), String> {
        // One at a time, as in a move between workers.
        let _one = self.shared.moving.lock().await;
        let under_way = self.slots.begin();
        let closed = self.close_for_successor(id).await;
        if closed.is_ok() {
            self.slots.of(id).set_gate(Gate::Given);
        }
        drop(under_way);
        self.changed.notify_waiters();
        closed.map(drop)
    }

    /// Another server has opened a shard that no attempt is opening here. Releases it: opening it again would take it
    /// away from that server. If this server has joined others, the cluster's map says whose it is, and calls wait for it.
    pub(super) fn release_shard(&self, id: ShardId) {
        let mut slot = self.slots.of(id);
        let view = match self.shared.joined {
            false => slot.released(released(id), self.slots.now()),
            true => {
                tracing::warn!("another server has opened shard {id}; waiting for the cluster's map to name its owner");
                self.shared.released.report(id, slot.term);
                slot.released_to_map(released(id), self.slots.now())
            }
        };
        drop(slot);
        end_read_only(view);
    }

    /// The cluster's map names another owner of a shard that was closed or released for it.
    pub fn gone(&self, id: ShardId) {
        if self.slots.of(id).gone(self.slots.now()) {
            self.changed.notify_waiters();
        }
    }

    /// Waits until the lease of the server runs: only then may it open a shard.
    pub(super) async fn under_lease(&self) -> Result<(), OpenFailure> {
        while !self.shared.lease.is_valid() {
            if self.slots.has_given_up() {
                let cause = Cause::from("the lease of the server has ended".to_owned());
                return Err(OpenFailure { cause, kind: FailureKind::Passing });
            }
            tokio::time::sleep(LEASE_LOOKED_AT_EVERY).await;
        }
        Ok(())
    }
}
