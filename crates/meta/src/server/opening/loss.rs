//! What a shard had acknowledged that failed. Whether something of it is lost shows when the shard is open again: those
//! whose it may have been are told then by their next sync, once each. A failure that cost nothing is told to nobody.

use super::ShardOpening;
use crate::shards::{Cause, Shard};
use std::collections::HashSet;
use varve_types::{SessionId, ShardId};

/// Of a shard that has failed, until it is open again.
pub(super) struct Owing {
    cause: Cause,
    /// The last batch that was.
    acknowledged: u64,
    /// Some of it is on disk, or not: while the shard cannot be opened, a sync is told.
    unsaved: bool,
    /// Sessions that were there.
    untold: HashSet<SessionId>,
}

/// Of a shard that was opened again without all that was acknowledged.
pub(super) struct LostChanges {
    cause: Cause,
    untold: HashSet<SessionId>,
}

impl ShardOpening {
    /// `failed` is closed, and takes nothing more.
    pub(super) fn owes(&self, failed: &Shard, cause: Cause, sessions: HashSet<SessionId>) {
        let (acknowledged, unsaved) = (failed.acknowledged(), failed.may_have_lost());
        self.owing.borrow_mut().insert(failed.id(), Owing { cause, acknowledged, unsaved, untold: sessions });
    }

    pub(super) fn may_have_lost(&self, shard: ShardId) -> bool {
        self.owing.borrow().get(&shard).is_some_and(|owing| owing.unsaved)
    }

    /// The shard is open again, with the batches up to `found`.
    pub(super) fn has_found(&self, shard: ShardId, found: u64) {
        let Some(owing) = self.owing.borrow_mut().remove(&shard) else { return };
        if found >= owing.acknowledged {
            return;
        }
        let cause = owing.cause.met(format!("changes that shard {shard} had acknowledged and not synced are lost"));
        tracing::error!("{cause}");
        let mut lost = self.lost.borrow_mut();
        let lost = lost.entry(shard).or_insert_with(|| LostChanges { cause, untold: HashSet::new() });
        lost.untold.extend(owing.untold);
    }

    /// A sync of `session` is told that the shard is in trouble.
    pub fn reported(&self, shard: ShardId, session: SessionId) {
        if let Some(owing) = self.owing.borrow_mut().get_mut(&shard) {
            owing.untold.remove(&session);
        }
    }

    /// What a sync of `session` is to be told.
    pub fn report_lost(&self, shard: ShardId, session: SessionId) -> Option<Cause> {
        let mut lost = self.lost.borrow_mut();
        let of_shard = lost.get_mut(&shard)?;
        let cause = of_shard.untold.remove(&session).then(|| of_shard.cause.clone());
        if of_shard.untold.is_empty() {
            lost.remove(&shard);
        }
        cause
    }

    /// What a server that ends is to tell: what is lost, or may be and nobody can know any more, and was not told to all whom
    /// it concerns.
    pub(super) fn loss(&self) -> Option<Cause> {
        let lost = self.lost.borrow().values().map(|lost| lost.cause.clone()).next();
        let may_be = || {
            let owing = self.owing.borrow();
            let (shard, owing) = owing.iter().find(|(_, owing)| owing.unsaved)?;
            Some(owing.cause.clone().met(format!("changes that shard {shard} had acknowledged may be lost")))
        };
        lost.or_else(may_be)
    }

    /// The session has ended: there is nobody to tell.
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
