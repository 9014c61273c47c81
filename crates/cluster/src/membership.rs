//! One server in the cluster: joins, renews its lease, watches others, and follows the map, until it leaves or is killed.
//!
//! [`Membership::run`] belongs on a thread of its own: a renewal must not wait for other work of the server.

mod moves;
mod rounds;
pub(crate) mod silence;

pub use moves::{MovedShard, move_shard};

use self::silence::Applicant;
use crate::address::RegistryChoiceError;
use crate::claim;
use crate::lease::Lease;
use crate::map::{ClusterMap, MapRefusal, Member, ServerId};
use crate::probe::{self, ProbeFailure};
use crate::registry::{Beat, KillReason, Pulse, Registry, RegistryError, Taken};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::sync::watch;
use varve_env::clock::Clock;
use varve_types::{ShardCount, ShardId};

/// How long a client may believe a reply that was under way when the lease ended. A successor waits for that.
pub const REPLY_GRACE: Duration = Duration::from_millis(500);

/// Attempts at a change of the map. Each attempt that fails means that another server's change succeeded.
const ATTEMPTS_MAX: u32 = 1000;

pub struct JoinConfig {
    pub registry: Arc<dyn Registry>,
    pub clock: Arc<dyn Clock>,
    pub server: ServerId,
    pub member: Member,
    /// The volume's number of shards.
    pub shards: ShardCount,
    /// The lease of this server, which has not begun. Every reply of the server looks at it.
    pub lease: Arc<Lease>,
    /// How long a lease runs in a cluster that this server begins. A later member takes the cluster's time.
    pub lease_time: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum MembershipError {
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Choice(#[from] RegistryChoiceError),
    #[error(transparent)]
    Map(#[from] MapRefusal),
    #[error("the registry is not fit for a cluster: {0}")]
    Probe(#[from] ProbeFailure),
    #[error("the volume has {volume} shards, and the cluster's map has {map}: the registry holds another volume's map")]
    OtherVolume { volume: usize, map: usize },
    #[error("server {0} ends: {1}")]
    Ended(ServerId, EndCause),
    #[error(
        "server {0} has not renewed its lease for longer than that lasts: it is dead, stopped or cut off, and the other servers \
         take its shards soon"
    )]
    Silent(ServerId),
    #[error("shard {0} has no owner: no server takes shards")]
    NoOwner(ShardId),
    #[error("a server joined, left or was drained, or another command moved shard {0} meanwhile; try again")]
    MoveOvertaken(ShardId),
    #[error(
        "server {from} has not given shard {shard} away within {} s, and keeps it: its log has the reason (RUST_LOG=debug)",
        waited.as_secs()
    )]
    NotMoved { shard: ShardId, from: ServerId, waited: Duration },
    #[error("cannot start the thread of the membership: {0}")]
    Thread(std::io::Error),
    #[error("the registry has not answered within {} s", .0.as_secs())]
    JoinDeadline(Duration),
    #[error("other servers changed the cluster's map {0} times before this change")]
    Contended(u32),
}

/// The place of a server in the cluster, as far as it knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// A member; the newest map that it knows.
    Member(Arc<ClusterMap>),
    /// It owns nothing any more.
    Ended(EndCause),
}

/// Why a server is no member any more, although it has not left.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EndCause {
    #[error("it was taken for dead by another server, which has its shards now; start it again")]
    TakenForDead,
    #[error(
        "it was evicted (`varve cluster evict`), and other servers have its shards now; start it again if it is to serve"
    )]
    Evicted,
    #[error("it was removed from the cluster by another server, and others have its shards now; start it again")]
    Removed,
    #[error("{0}")]
    RegistryLost(String),
}

pub struct Membership {
    registry: Arc<dyn Registry>,
    clock: Arc<dyn Clock>,
    server: ServerId,
    lease: Arc<Lease>,
    lease_time: Duration,
    /// The last number that this server has taken.
    beat: Beat,
    standing: watch::Sender<Standing>,
}

impl Membership {
    /// Proves that the registry is fast enough, and becomes a member.
    pub async fn join(config: JoinConfig) -> Result<Membership, MembershipError> {
        let (registry, server) = (Arc::clone(&config.registry), config.server);
        let joined = Membership::try_join(config).await;
        if let Err(error) = &joined {
            forget_refused(&*registry, server, error).await;
        }
        joined
    }

    async fn try_join(config: JoinConfig) -> Result<Membership, MembershipError> {
        let JoinConfig { registry, clock, server, member, shards, lease, lease_time: first_time } = config;
        let found = registry.newest_map().await?;
        let lease_time = found.as_ref().map_or(first_time, |map| map.lease());
        probe::measure(&*registry, &*clock, lease_time).await?;
        let beat = AtomicU64::new(0);
        let applicant =
            Applicant { registry: &*registry, clock: &*clock, server, lease: &lease, lease_time, beat: &beat };
        applicant.renew().await?;
        make_way(&applicant, &member).await?;
        let join = || {
            change(&*registry, |map| {
                let first = || ClusterMap { version: 0, ..ClusterMap::first(shards, first_time) };
                let map = map.unwrap_or_else(first);
                let count = usize::from(shards.get());
                if map.shards.len() != count {
                    return Err(MembershipError::OtherVolume { volume: count, map: map.shards.len() });
                }
                // An earlier attempt succeeded, and its answer was lost or another server's change came next.
                if map.members.contains_key(&server) {
                    return Ok(map);
                }
                Ok(map.joined(server, member.clone())?)
            })
        };
        let joined = loop {
            match join().await {
                // Another server or command has come since.
                Err(MembershipError::Map(
                    MapRefusal::NotSynced(_)
                    | MapRefusal::OtherStore { .. }
                    | MapRefusal::Claimed { .. }
                    | MapRefusal::WithoutTcp { .. }
                    | MapRefusal::OtherWithoutTcp { .. },
                )) => make_way(&applicant, &member).await?,
                joined => break joined?,
            }
        };
        let beat = Beat(beat.into_inner());
        let lease_time = joined.lease();
        let standing = watch::Sender::new(Standing::Member(Arc::new(joined)));
        Ok(Membership { registry, clock, server, lease, lease_time, beat, standing })
    }

    /// Follows the map.
    pub fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }
}

/// Removes the renewals of a server or claim that was not admitted, unless the registry does not answer.
pub(crate) async fn forget_refused(registry: &dyn Registry, refused: ServerId, why: &MembershipError) {
    if matches!(why, MembershipError::Registry(RegistryError::Unavailable { .. })) {
        return;
    }
    if let Err(error) = registry.forget(refused).await {
        tracing::debug!("the renewals of {refused}, which was not admitted, stay in the registry: {error}");
    }
}

/// Removes dead members and a dead claim that are in the way of `member`. If it is on another host than a living member, also
/// waits until the members sync before they reply: what they have only appended may be invisible there.
async fn make_way(applicant: &Applicant<'_>, member: &Member) -> Result<(), MembershipError> {
    let registry = applicant.registry;
    loop {
        let Some(map) = registry.newest_map().await? else { return Ok(()) };
        let lease = map.lease();
        if let Some(claim) = map.claim {
            if !applicant.end_if_silent(claim.holder, lease).await? {
                return Err(MapRefusal::claimed_by(claim).into());
            }
            continue;
        }
        if let Err(refusal) = map.check_same_store(&member.boot_id, member.store_id.as_deref()) {
            // A registry in the store was copied with it, and those servers renew in the original.
            let MapRefusal::OtherStore { server, .. } = refusal else { return Err(refusal.into()) };
            if !applicant.end_if_silent(server, lease).await? {
                return Err(refusal.into());
            }
            continue;
        }
        if let Err(refusal) = map.check_reachable(member) {
            // A host that has lost power stays in the map until somebody removes it.
            let members: BTreeSet<_> = map.members.keys().copied().collect();
            if applicant.end_silent(&members, lease).await?.len() == members.len() {
                return Err(refusal.into());
            }
            continue;
        }
        let unsynced: Vec<_> = map.unsynced_for(member).collect();
        let Some(first) = unsynced.first() else { return Ok(()) };
        if map.synced.is_none() {
            // Another server may have asked at the same time.
            registry.publish(&map.sync_required()).await?;
        } else if !applicant.end_if_silent(*first, lease).await? {
            registry.later_map(map.version, lease / 3).await?;
        }
    }
}

/// Changes the newest map. `made` makes the next version, again if another server was faster; it gets `None` if there
/// is no map yet.
pub async fn change<E: From<RegistryError> + From<Contended>>(
    registry: &dyn Registry,
    made: impl Fn(Option<ClusterMap>) -> Result<ClusterMap, E>,
) -> Result<ClusterMap, E> {
    for _ in 0..ATTEMPTS_MAX {
        let next = made(registry.newest_map().await?)?;
        if registry.publish(&next).await? == Taken::Ours {
            return Ok(next);
        }
    }
    Err(Contended.into())
}

/// Other servers were always faster.
pub struct Contended;

impl From<Contended> for MembershipError {
    fn from(_: Contended) -> MembershipError {
        MembershipError::Contended(ATTEMPTS_MAX)
    }
}

/// `server` has closed its shards, or another server has seen that it was killed.
pub async fn leave(registry: &dyn Registry, server: ServerId) -> Result<(), MembershipError> {
    let left = change(registry, |map| {
        let map = map.ok_or(MapRefusal::NotAMember(server))?;
        Ok::<_, MembershipError>(map.left(server)?)
    })
    .await;
    match left {
        // Another server has noticed it too.
        Ok(_) | Err(MembershipError::Map(MapRefusal::NotAMember(_))) => {}
        Err(error) => return Err(error),
    }
    registry.forget(server).await?;
    Ok(())
}

/// Removes a member, or the holder of a claim, whether or not it is alive, as an administrator asks. A member's shards get
/// other owners once its lease has certainly ended.
pub async fn evict(registry: &dyn Registry, server: ServerId) -> Result<(), MembershipError> {
    let map = registry.newest_map().await?.ok_or(MapRefusal::NotAMember(server))?;
    let claims = map.claim.as_ref().is_some_and(|claim| claim.holder == server);
    if !claims && !map.members.contains_key(&server) {
        return Err(MapRefusal::NotAMember(server).into());
    }
    for _ in 0..ATTEMPTS_MAX {
        match registry.pulse(server).await? {
            Pulse::Killed(_) => {
                tokio::time::sleep(map.lease() + map.lease() / 10).await;
                claim::remove_claim(registry, server).await?;
                return leave(registry, server).await;
            }
            // It may renew at the same time.
            Pulse::Beats(beat) => {
                registry.kill(server, beat.next(), KillReason::Evicted).await?;
            }
        }
    }
    Err(Contended.into())
}
