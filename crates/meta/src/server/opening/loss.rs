//! Tracks acknowledged changes of failed shards. Whether some are lost is known when the shard is open again. Each
//! session that may be affected then gets the error once, from its next sync. A failure that lost nothing is not
//! reported.

use super::slots::ShardSlots;
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
    /// Another server has opened the shard since: the numbers of its batches say nothing about those of this one.
    fenced: bool,
    /// Sessions that existed at the failure and have not got the error.
    untold: HashSet<SessionId>,
}

impl Owing {
    /// The text about the loss, if there is one. `found`: the last batch that the reopened shard holds.
    fn loss(&self, found: u64) -> Option<&'static str> {
        match found < self.acknowledged {
            true => Some("are lost"),
            // Somebody may have opened the shard without the lease, and seen less of the log.
            false if self.fenced && self.unsaved => Some("may be lost, because another server opened it meanwhile"),
            false => None,
        }
    }
}

/// A shard that was reopened without some acknowledged changes.
pub struct LostChanges {
    cause: Cause,
    untold: HashSet<SessionId>,
}

impl ShardSlots {
    /// Records the loss candidates of `failed`, which is closed and takes no more changes.
    pub(super) fn owes(&self, failed: &Shard, cause: Cause, sessions: HashSet<SessionId>) {
        let (acknowledged, unsaved) = (failed.acknowledged(), failed.may_have_lost());
        self.of(failed.id()).owing =
            Some(Owing { cause, acknowledged, unsaved, fenced: failed.is_fenced(), untold: sessions });
    }

    pub(super) fn may_have_lost(&self, shard: ShardId) -> bool {
        self.of(shard).owing.as_ref().is_some_and(|owing| owing.unsaved)
    }

    /// The shard is open again and holds the batches up to `found`.
    pub(super) fn has_found(&self, shard: ShardId, found: u64) {
        let mut slot = self.of(shard);
        let Some(owing) = slot.owing.take() else { return };
        let Some(what) = owing.loss(found) else { return };
        let cause = owing.cause.met(format!("acknowledged, unsynced changes of shard {shard} {what}"));
        tracing::error!("{cause}");
        let lost = slot.lost.get_or_insert_with(|| LostChanges { cause, untold: HashSet::new() });
        lost.untold.extend(owing.untold);
    }

    /// A sync of `session` has reported that the shard is in trouble.
    pub fn reported(&self, shard: ShardId, session: SessionId) {
        if let Some(owing) = &mut self.of(shard).owing {
            owing.untold.remove(&session);
        }
    }

    /// The loss that a sync of `session` must report, if any; reported once.
    pub fn report_lost(&self, shard: ShardId, session: SessionId) -> Option<Cause> {
        let mut slot = self.of(shard);
        let lost = slot.lost.as_mut()?;
        let cause = lost.untold.remove(&session).then(|| lost.cause.clone());
        if lost.untold.is_empty() {
            slot.lost = None;
        }
        cause
    }

    /// The loss that an ending server reports: changes that are lost, or that may be lost and can no longer be checked.
    /// A loss that every affected session has already got as an error is left out.
    pub(super) fn loss(&self) -> Option<Cause> {
        let (mut lost, mut may_be) = (None, None);
        for shard in self.which(|slot| slot.lost.is_some() || slot.owing.is_some()) {
            let slot = self.of(shard);
            lost = lost.or_else(|| slot.lost.as_ref().map(|lost| lost.cause.clone()));
            let unsaved = slot.owing.as_ref().filter(|owing| owing.unsaved);
            may_be = may_be.or_else(|| {
                unsaved
                    .map(|owing| owing.cause.clone().met(format!("acknowledged changes of shard {shard} may be lost")))
            });
        }
        lost.or(may_be)
    }

    /// The session has ended: its pending loss reports are dropped.
    pub fn forget(&self, session: SessionId) {
        self.each(|slot| {
            if let Some(owing) = &mut slot.owing {
                owing.untold.remove(&session);
            }
            slot.lost.take_if(|lost| {
                lost.untold.remove(&session);
                lost.untold.is_empty()
            });
        });
    }
}
