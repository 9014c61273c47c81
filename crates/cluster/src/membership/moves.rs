//! Moves a shard to a server that an administrator names. The command pins the shard in the map, and the shard's owner
//! gives it away as the balance would.

use super::{MembershipError, change};
use crate::map::{MapRefusal, ServerId};
use crate::registry::{Pulse, Registry};
use std::time::Duration;
use varve_env::clock::Clock;
use varve_types::ShardId;

/// How long the owner may take: it flushes the shard's tables first, and tries again every half second if calls in progress
/// do not end.
const MOVED_WITHIN: Duration = Duration::from_secs(30);

/// A shard at its new owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MovedShard {
    pub from: ServerId,
    pub took: Duration,
}

/// Moves `shard` to the server `to`. It stays there until a server joins, leaves or is drained.
pub async fn move_shard(
    registry: &dyn Registry,
    clock: &dyn Clock,
    shard: ShardId,
    to: ServerId,
) -> Result<MovedShard, MembershipError> {
    let map = registry.newest_map().await?.ok_or(MapRefusal::NotAMember(to))?;
    map.pinned(shard, to)?;
    let owner = map.ownership(shard).and_then(|shard| shard.owner);
    let from = owner.ok_or(MembershipError::NoOwner(shard))?;
    for server in [to, from] {
        await_renewal(registry, clock, server, map.lease()).await?;
    }
    let begun = clock.monotonic();
    let pinned =
        change(registry, |map| Ok::<_, MembershipError>(map.ok_or(MapRefusal::NotAMember(to))?.pinned(shard, to)?));
    let mut map = pinned.await?;
    loop {
        let took = clock.monotonic().since(begun);
        let pin = map.pin(shard);
        let has_arrived = map.ownership(shard).is_some_and(|found| found.owner == Some(to));
        if pin.is_some_and(|pin| pin != to) || pin.is_none() && !has_arrived {
            return Err(MembershipError::MoveOvertaken(shard));
        }
        if has_arrived {
            return Ok(MovedShard { from, took });
        }
        if took > MOVED_WITHIN {
            let withdrawn = change(registry, |map| {
                Ok::<_, MembershipError>(map.ok_or(MapRefusal::NotAMember(to))?.unpinned(shard, to)?)
            });
            let withdrawn = withdrawn.await.map_err(|error| match error {
                MembershipError::Map(MapRefusal::OtherPin(_)) => MembershipError::MoveOvertaken(shard),
                error => error,
            });
            return match withdrawn?.ownership(shard).is_some_and(|found| found.owner == Some(to)) {
                true => Ok(MovedShard { from, took }),
                false => Err(MembershipError::NotMoved { shard, from, waited: MOVED_WITHIN }),
            };
        }
        if let Some(later) = registry.later_map(map.version, map.lease() / 3).await? {
            map = later;
        }
    }
}

/// Returns once `server` has renewed its lease.
async fn await_renewal(
    registry: &dyn Registry,
    clock: &dyn Clock,
    server: ServerId,
    lease: Duration,
) -> Result<(), MembershipError> {
    let begun = clock.monotonic();
    let first = registry.pulse(server).await?;
    loop {
        let pulse = registry.pulse(server).await?;
        match pulse {
            Pulse::Beats(_) if pulse != first => return Ok(()),
            Pulse::Beats(_) if clock.monotonic().since(begun) <= lease + lease / 10 => {}
            Pulse::Beats(_) | Pulse::Killed(_) => return Err(MembershipError::Silent(server)),
        }
        tokio::time::sleep(lease / 12).await;
    }
}
