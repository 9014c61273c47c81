//! A claim keeps all servers away from a volume while a command such as `varve fsck` works in it.
//!
//! The claim is a part of the map, so no server joins while it is there. It is given only for a map without members, and
//! its holder renews it as a server renews its lease. A claim or member whose process has died is found by its silence,
//! and then killed: so a command that was killed keeps servers away for no longer than a lease and a tenth.

use crate::lease::Lease;
use crate::map::{Claim, ClusterMap, MapRefusal, Member, ServerId};
use crate::membership::silence::Applicant;
use crate::membership::{Contended, MembershipError, change, forget_refused, leave};
use crate::registry::{Registry, RegistryError, Taken};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use varve_env::clock::Clock;
use varve_types::ShardCount;

/// Attempts at a claim. An attempt fails if servers died and others came meanwhile.
const ATTEMPTS_MAX: u32 = 10;

/// Restarts of a look for living servers. A registry that hung once costs one; a registry that is always slow ends the look.
const RESTARTS_MAX: u32 = 10;

pub struct ClaimConfig {
    pub registry: Arc<dyn Registry>,
    pub clock: Arc<dyn Clock>,
    /// The volume's number of shards.
    pub shards: ShardCount,
    /// The lease for a registry without a map.
    pub lease_time: Duration,
    /// The command, for messages.
    pub purpose: String,
    pub host: String,
    pub pid: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum ClaimError {
    #[error("the volume is in use by {}", listed(.0))]
    InUse(Vec<LivingServer>),
    #[error(transparent)]
    Membership(#[from] MembershipError),
}

impl From<RegistryError> for ClaimError {
    fn from(error: RegistryError) -> ClaimError {
        ClaimError::Membership(error.into())
    }
}

/// A server that renews its lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LivingServer {
    pub server: ServerId,
    pub host: String,
    pub pid: u32,
}

impl LivingServer {
    fn of(server: ServerId, Member { host, pid, .. }: &Member) -> LivingServer {
        LivingServer { server, host: host.clone(), pid: *pid }
    }
}

impl fmt::Display for LivingServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LivingServer { server, host, pid } = self;
        write!(f, "a server, process {pid} on host {host} (number {server})")
    }
}

fn listed(servers: &[LivingServer]) -> String {
    let servers: Vec<_> = servers.iter().map(LivingServer::to_string).collect();
    servers.join(", and by ")
}

/// A volume without servers, until it is released.
pub struct VolumeClaim {
    registry: Arc<dyn Registry>,
    clock: Arc<dyn Clock>,
    holder: ServerId,
    /// The last number that the holder has taken.
    beat: AtomicU64,
    lease: Lease,
    lease_time: Duration,
}

impl fmt::Debug for VolumeClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeClaim").field("holder", &self.holder).finish_non_exhaustive()
    }
}

impl VolumeClaim {
    /// Claims the volume. Servers that have died leave the map first; a living one is an error. Takes a lease and a tenth
    /// if the map has members.
    pub async fn take(config: ClaimConfig) -> Result<VolumeClaim, ClaimError> {
        let ClaimConfig { registry, clock, shards, lease_time, purpose, host, pid } = config;
        let holder = ServerId(varve_env::random::number());
        let lease_time = registry.newest_map().await?.map_or(lease_time, |map| map.lease());
        let lease = Lease::new(Arc::clone(&clock));
        let claim = VolumeClaim { registry, clock, holder, beat: AtomicU64::new(0), lease, lease_time };
        let taken = claim.enter(shards, &Claim { holder, purpose, host, pid }).await;
        match &taken {
            Ok(()) => {}
            Err(ClaimError::Membership(error)) => forget_refused(&*claim.registry, holder, error).await,
            Err(ClaimError::InUse(_)) => forget_refused(&*claim.registry, holder, &Contended.into()).await,
        }
        taken.map(|()| claim)
    }

    /// Enters the claim into the map.
    async fn enter(&self, shards: ShardCount, wanted: &Claim) -> Result<(), ClaimError> {
        let VolumeClaim { holder, lease_time, .. } = *self;
        for _ in 0..ATTEMPTS_MAX {
            self.end_silent().await?;
            self.applicant().renew().await?;
            let claimed = change(&*self.registry, |map| {
                let map = map.unwrap_or_else(|| ClusterMap { version: 0, ..ClusterMap::first(shards, lease_time) });
                match &map.claim {
                    // An earlier attempt succeeded, and its answer was lost.
                    Some(found) if found.holder == holder => Ok(map),
                    _ => Ok::<_, MembershipError>(map.claimed(wanted.clone())?),
                }
            });
            match claimed.await {
                Ok(_) => return Ok(()),
                // It has joined or come since.
                Err(MembershipError::Map(MapRefusal::HasMembers(_) | MapRefusal::Claimed { .. })) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(MembershipError::from(Contended).into())
    }

    /// Removes dead members and a dead claim. An error if any of them lives.
    async fn end_silent(&self) -> Result<(), ClaimError> {
        let Some(map) = self.registry.newest_map().await? else { return Ok(()) };
        let mut watched: BTreeSet<_> = map.members.keys().copied().collect();
        watched.extend(map.claim.as_ref().map(|claim| claim.holder));
        if watched.is_empty() {
            return Ok(());
        }
        self.applicant().renew().await?;
        let living = self.applicant().end_silent(&watched, map.lease()).await?;
        if let Some(claim) = map.claim.filter(|claim| living.contains(&claim.holder)) {
            return Err(MembershipError::from(MapRefusal::claimed_by(claim)).into());
        }
        let living = map.members.iter().filter(|(server, _)| living.contains(server));
        let living: Vec<_> = living.map(|(server, member)| LivingServer::of(*server, member)).collect();
        if living.is_empty() { Ok(()) } else { Err(ClaimError::InUse(living)) }
    }

    /// Looks for living servers without a claim, for a command that only reads where the registry takes no writes. Servers
    /// may come right after it. Takes a lease and a tenth if the map has members.
    pub async fn look_for_servers(registry: &dyn Registry, clock: &dyn Clock) -> Result<(), ClaimError> {
        let Some(map) = registry.newest_map().await? else { return Ok(()) };
        let living = living_members(registry, clock, &map).await?;
        if living.is_empty() { Ok(()) } else { Err(ClaimError::InUse(living)) }
    }

    fn applicant(&self) -> Applicant<'_> {
        let VolumeClaim { registry, clock, holder, beat, lease, lease_time } = self;
        Applicant { registry: &**registry, clock: &**clock, server: *holder, lease, lease_time: *lease_time, beat }
    }

    /// Renews the claim. Returns once it was ended by others.
    pub async fn keep(&self) {
        loop {
            tokio::time::sleep(self.lease_time / 3).await;
            match self.applicant().renew().await {
                Ok(_) => {}
                Err(MembershipError::Ended(..)) => return,
                Err(error) => tracing::warn!("cannot renew the claim of the volume, and will try again: {error}"),
            }
        }
    }

    /// Whether servers are certainly away.
    pub fn is_valid(&self) -> bool {
        self.lease.is_valid()
    }

    /// Lets servers join again.
    pub async fn release(&self) -> Result<(), MembershipError> {
        self.lease.end();
        remove_claim(&*self.registry, self.holder).await?;
        self.registry.forget(self.holder).await?;
        Ok(())
    }
}

/// The members of `map` that renew. Takes as long as the first renewal of each, and a lease and a tenth if one is dead. The
/// time counts as in [`Detector`](crate::detector::Detector): from the end of one look to the beginning of another. A slow
/// look restarts it, because a registry that hangs takes no renewals either.
pub async fn living_members(
    registry: &dyn Registry,
    clock: &dyn Clock,
    map: &ClusterMap,
) -> Result<Vec<LivingServer>, RegistryError> {
    let patience = map.lease() + map.lease() / 10;
    let (mut first, mut living) = (BTreeMap::new(), BTreeSet::new());
    let (mut since, mut restarts) = (None, 0);
    loop {
        let asked = clock.monotonic();
        let mut slow = false;
        for server in map.members.keys() {
            let before = clock.monotonic();
            let pulse = registry.pulse(*server).await?;
            slow |= clock.monotonic().since(before) > map.lease() / 6;
            if *first.entry(*server).or_insert(pulse) != pulse && !pulse.is_killed() {
                living.insert(*server);
            }
        }
        if slow {
            restarts += 1;
            since = None;
        }
        if restarts > RESTARTS_MAX {
            let (registry, reason) =
                ("of the volume".to_owned(), "it is too slow to tell which servers live".to_owned());
            return Err(RegistryError::Unavailable { registry, reason });
        }
        let since = *since.get_or_insert_with(|| clock.monotonic());
        if living.len() == map.members.len() || asked.since(since) > patience {
            let members = map.members.iter().filter(|(server, _)| living.contains(server));
            return Ok(members.map(|(server, member)| LivingServer::of(*server, member)).collect());
        }
        tokio::time::sleep(map.lease() / 12).await;
    }
}

/// Removes a killed server or claim from the map.
pub(crate) async fn end(registry: &dyn Registry, killed: ServerId) -> Result<(), MembershipError> {
    remove_claim(registry, killed).await?;
    leave(registry, killed).await
}

/// Removes the claim of `holder`, if the map has it.
pub(crate) async fn remove_claim(registry: &dyn Registry, holder: ServerId) -> Result<(), MembershipError> {
    while let Some(released) = registry.newest_map().await?.and_then(|map| map.released(holder)) {
        if registry.publish(&released).await? == Taken::Ours {
            break;
        }
    }
    Ok(())
}
