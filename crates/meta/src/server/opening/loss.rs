//! Tracks acknowledged changes of failed shards. Whether some are lost is known when the shard is open again. Each
//! session that may be affected then gets the error once, from its next sync. A failure that lost nothing is not
//! reported.

use super::ShardOpening;
use crate::shards::{Cause, Shard};
use std::collections::HashSet;
use varve_types::{SessionId, ShardId};

/// State of a failed shard until it is open again.
pub(super) struct Owing {
    cause: Cause,
    /// Number of the last acknowledged batch.
    acknowledged: u64,
    /// Some of it may not be on disk: while the shard cannot be opened, a sync reports the failure.
    unsaved: bool,
    /// Sessions that existed at the failure and have not got the error.
    untold: HashSet<SessionId>,
}

/// A shard that was reopened without some acknowledged changes.
pub(super) struct LostChanges {
    cause: Cause,
    untold: HashSet<SessionId>,
}

impl ShardOpening {
    /// Records the loss candidates of `failed`, which is closed and takes no more changes.
    pub(super) fn owes(&self, failed: &Shard, cause: Cause, sessions: HashSet<SessionId>) {
        let (acknowledged, unsaved) = (failed.acknowledged(), failed.may_have_lost());
        self.owing.borrow_mut().insert(failed.id(), Owing { cause, acknowledged, unsaved, untold: sessions });
    }

    pub(super) fn may_have_lost(&self, shard: ShardId) -> bool {
        self.owing.borrow().get(&shard).is_some_and(|owing| owing.unsaved)
    }

    /// The shard is open again and holds the batches up to `found`.
    pub(super) fn has_found(&self, shard: ShardId, found: u64) {
        let Some(owing) = self.owing.borrow_mut().remove(&shard) else { return };
        if found >= owing.acknowledged {
            return;
        }
        let cause = owing.cause.met(format!("acknowledged, unsynced changes of shard {shard} are lost"));
        tracing::error!("{cause}");
        let mut lost = self.lost.borrow_mut();
        let lost = lost.entry(shard).or_insert_with(|| LostChanges { cause, untold: HashSet::new() });
        lost.untold.extend(owing.untold);
    }

    /// A sync of `session` has reported that the shard is in trouble.
    pub fn reported(&self, shard: ShardId, session: SessionId) {
        if let Some(owing) = self.owing.borrow_mut().get_mut(&shard) {
            owing.untold.remove(&session);
        }
    }

    /// The loss that a sync of `session` must report, if any; reported once.
    pub fn report_lost(&self, shard: ShardId, session: SessionId) -> Option<Cause> {
        let mut lost = self.lost.borrow_mut();
        let of_shard = lost.get_mut(&shard)?;
        let cause = of_shard.untold.remove(&session).then(|| of_shard.cause.clone());
        if of_shard.untold.is_empty() {
            lost.remove(&shard);
        }
        cause
    }

    /// The loss that an ending server reports: changes that are lost, or that may be lost and can no longer be checked.
    /// A loss that every affected session has already got as an error is left out.
    pub(super) fn loss(&self) -> Option<Cause> {
        let lost = self.lost.borrow().values().map(|lost| lost.cause.clone()).next();
        let may_be = || {
            let owing = self.owing.borrow();
            let (shard, owing) = owing.iter().find(|(_, owing)| owing.unsaved)?;
            Some(owing.cause.clone().met(format!("acknowledged changes of shard {shard} may be lost")))
        };
        lost.or_else(may_be)
    }

    /// The session has ended: its pending loss reports are dropped.
    pub fn forget(&self, session: SessionId) {
        for owing in self.owing.borrow_mut().values_mut() {
            owing.untold.remove(&session);
        }
        self.lost.borrow_mut().retain(|_, lost| {
            lost.untold.remove(&session);
            !lost.untold.is_empty()
        });
    }
}
