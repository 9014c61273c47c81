//! The shard map: the members of the cluster and the owner of each shard. All functions are pure: a change returns the
//! next version, which counts once a registry has published it.

mod balance;

pub use balance::{Handover, handovers};

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use varve_env::volume_dir::{WorkerRecord, are_other_stores};
use varve_types::{ShardCount, ShardId};

/// The longest lease: calls for the shards of a dead server wait for twice as long.
pub const LEASE_MAX: Duration = Duration::from_secs(60);

/// One server process. A random number: a restarted server is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerId(pub u64);

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("a server's number is 16 hexadecimal digits, not {0:?}")]
pub struct InvalidServerId(String);

impl FromStr for ServerId {
    type Err = InvalidServerId;

    fn from_str(text: &str) -> Result<ServerId, InvalidServerId> {
        let number = (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok()).flatten();
        number.map(ServerId).ok_or_else(|| InvalidServerId(text.to_owned()))
    }
}

impl Serialize for ServerId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for ServerId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<ServerId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The number of one ownership of a shard by a server. A later owner has a greater one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Term(pub u64);

impl Term {
    pub fn next(self) -> Term {
        Term(self.0 + 1)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterMap {
    /// The first version is 1.
    pub version: u64,
    /// How long a renewal is valid, for every member.
    pub lease_ms: u64,
    pub members: BTreeMap<ServerId, Member>,
    /// One for each shard of the volume.
    pub shards: Vec<Ownership>,
    /// A command that needs the volume without servers, such as `varve fsck`.
    pub claim: Option<Claim>,
    /// Shards that an administrator has moved, and their servers. While there are any, members keep their shards. A change
    /// of the members ends all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pins: BTreeMap<u16, ServerId>,
    /// Replies to changes wait for the fsync, because a successor on another host may not see what was only appended. The
    /// members that do so by now, and have synced what they had replied to before. `None`: the members are on one host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synced: Option<BTreeSet<ServerId>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub host: String,
    pub boot_id: String,
    pub pid: u32,
    /// Addresses of the workers, in the order of their numbers. There is at least one worker.
    pub workers: Vec<WorkerRecord>,
    /// Where it takes calls of the other members' shards.
    pub peers: WorkerRecord,
    pub state: MemberState,
    /// Its replies to changes wait for the fsync since its start, because the volume's level asked for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub synced: bool,
    /// The device and inode number of the store's directory on its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    Active,
    /// Gives its shards away, and takes none.
    Draining,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ownership {
    /// `None`: the shard is offered to any member, as while no member is active.
    pub owner: Option<ServerId>,
    /// The worker of the owner that has it, or of the last one that had it.
    pub worker: u16,
    /// The term of the owner, or of the last one.
    pub term: Term,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Claim {
    pub holder: ServerId,
    /// The command, for messages.
    pub purpose: String,
    pub host: String,
    pub pid: u32,
}

/// Why a change of the map is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapRefusal {
    #[error("server {0} is not a member of the cluster; `varve cluster status` lists the members")]
    NotAMember(ServerId),
    #[error("server {0} is a member already")]
    AlreadyAMember(ServerId),
    #[error(
        "server {server} of the volume is on host {host}, and this server has no TCP address: clients and servers of other \
         hosts could not reach it; start it with --listen ADDRESS:PORT"
    )]
    WithoutTcp { server: ServerId, host: String },
    #[error(
        "server {server} of the volume, on host {host}, has no TCP address, so clients and servers of this host could not \
         reach it; start it again with --listen ADDRESS:PORT"
    )]
    OtherWithoutTcp { server: ServerId, host: String },
    #[error("server {0} is being drained and takes no shards")]
    Draining(ServerId),
    #[error("the volume has shards 0 to {last}, and no shard {shard}")]
    NoSuchShard { shard: ShardId, last: usize },
    #[error("server {server} has workers 0 to {last}, and no worker {worker}")]
    NoSuchWorker { server: ServerId, worker: u16, last: usize },
    #[error(
        "server {server}, process {pid} on host {host}, serves another directory: this one is a copy of a volume, whose servers \
         find each other in the same registry; remove cluster/registry.toml of the copy to use it by itself"
    )]
    OtherStore { server: ServerId, host: String, pid: u32 },
    #[error(
        "server {0} has not synced its changes, and a server on another host may not see those that are only appended"
    )]
    NotSynced(ServerId),
    #[error("server {owner} owns shard {shard} already")]
    OwnsAlready { shard: ShardId, owner: ServerId },
    #[error("another command moved shard {0}, or withdrew its move, meanwhile")]
    OtherPin(ShardId),
    #[error("server {owner} owns shard {shard}, not server {claimed}")]
    NotTheOwner { shard: ShardId, owner: ServerId, claimed: ServerId },
    #[error("shard {shard} is in term {newest}, not {claimed}")]
    OtherTerm { shard: ShardId, newest: u64, claimed: u64 },
    #[error(
        "`{purpose}`, process {pid} on host {host}, uses the volume without servers (claim {holder}): wait until it has \
         ended. The claim of a process that was killed ends by itself; `varve cluster evict STORE {holder}` ends it by force"
    )]
    Claimed { holder: ServerId, purpose: String, host: String, pid: u32 },
    #[error("the volume has {0} members; stop them first, or ask one of them")]
    HasMembers(usize),
}

impl Member {
    /// Whether clients and servers of other hosts can reach it.
    fn has_tcp(&self) -> bool {
        self.peers.tcp.is_some() && self.workers.iter().all(|worker| worker.tcp.is_some())
    }
}

impl MapRefusal {
    pub fn claimed_by(Claim { holder, purpose, host, pid }: Claim) -> MapRefusal {
        MapRefusal::Claimed { holder, purpose, host, pid }
    }
}

impl ClusterMap {
    /// Version 1: no members yet.
    pub fn first(shards: ShardCount, lease: Duration) -> ClusterMap {
        ClusterMap {
            version: 1,
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
            members: BTreeMap::new(),
            shards: vec![Ownership::default(); usize::from(shards.get())],
            claim: None,
            pins: BTreeMap::new(),
            synced: None,
        }
    }

    pub fn lease(&self) -> Duration {
        Duration::from_millis(self.lease_ms)
    }

    /// Whether the parts agree with each other: what a server checks before it believes a map that it has read.
    pub fn is_consistent(&self) -> bool {
        let is_sound = |shard: &Ownership| match shard.owner {
            Some(owner) => self.members.get(&owner).is_some_and(|it| usize::from(shard.worker) < it.workers.len()),
            None => true,
        };
        let owners_are_members = self.shards.iter().all(is_sound);
        let have_workers = self.members.values().all(|member| !member.workers.is_empty());
        let count = u16::try_from(self.shards.len()).ok().and_then(ShardCount::new);
        let lease_is_sound = self.lease_ms > 0 && self.lease() <= LEASE_MAX;
        self.version > 0 && lease_is_sound && count.is_some() && owners_are_members && have_workers
    }

    pub fn ownership(&self, shard: ShardId) -> Option<Ownership> {
        self.shards.get(usize::from(shard.0)).copied()
    }

    pub fn shards_of(&self, server: ServerId) -> impl Iterator<Item = ShardId> {
        let owned = move |(_, shard): &(usize, &Ownership)| shard.owner == Some(server);
        self.shards.iter().enumerate().filter(owned).map(|(shard, _)| ShardId(shard as u16))
    }

    /// Members that may own shards.
    pub fn active(&self) -> impl Iterator<Item = ServerId> {
        self.members.iter().filter(|(_, member)| member.state == MemberState::Active).map(|(server, _)| *server)
    }

    /// The members that watch `server`: the two after it, in a circle. (With three members or fewer, all others.)
    pub fn watchers(&self, server: ServerId) -> Vec<ServerId> {
        let after = self.members.range(server..).chain(self.members.range(..server)).map(|(id, _)| *id);
        after.filter(|id| *id != server).take(2).collect()
    }

    fn next(&self) -> ClusterMap {
        ClusterMap { version: self.version + 1, ..self.clone() }
    }

    fn member(&self, server: ServerId) -> Result<&Member, MapRefusal> {
        self.members.get(&server).ok_or(MapRefusal::NotAMember(server))
    }

    /// `server` joins. The first member gets all shards; a later one gets shards from their owners ([`handovers`]), and
    /// those without an owner at once.
    pub fn joined(&self, server: ServerId, member: Member) -> Result<ClusterMap, MapRefusal> {
        if let Some(claim) = self.claim.clone() {
            return Err(MapRefusal::claimed_by(claim));
        }
        if self.members.contains_key(&server) {
            return Err(MapRefusal::AlreadyAMember(server));
        }
        self.check_same_store(&member.boot_id, member.store_id.as_deref())?;
        self.check_reachable(&member)?;
        if let Some(unsynced) = self.unsynced_for(&member).next() {
            return Err(MapRefusal::NotSynced(unsynced));
        }
        let mut next = self.next();
        next.members.insert(server, member);
        next.pins.clear();
        if let Some(synced) = &mut next.synced {
            synced.insert(server);
        }
        next.assign_free_shards();
        Ok(next)
    }

    /// Refuses a process of this boot whose store is certainly another directory than that of a member on the same host: the
    /// store was copied, and a registry outside of it knows the servers of the original.
    pub fn check_same_store(&self, boot_id: &str, store_id: Option<&str>) -> Result<(), MapRefusal> {
        let Some(store_id) = store_id else { return Ok(()) };
        let is_other = |member: &Member| {
            let other = member.store_id.as_deref().is_some_and(|found| are_other_stores(found, store_id));
            member.boot_id == boot_id && other
        };
        match self.members.iter().find(|(_, member)| is_other(member)) {
            Some((server, Member { host, pid, .. })) => {
                Err(MapRefusal::OtherStore { server: *server, host: host.clone(), pid: *pid })
            }
            None => Ok(()),
        }
    }

    /// Refuses a member that would share the volume with one of another host while either has no TCP address.
    pub(crate) fn check_reachable(&self, new: &Member) -> Result<(), MapRefusal> {
        let mut elsewhere = self.members.iter().filter(|(_, member)| member.boot_id != new.boot_id);
        let Some((server, member)) = elsewhere.clone().next() else { return Ok(()) };
        if !new.has_tcp() {
            return Err(MapRefusal::WithoutTcp { server: *server, host: member.host.clone() });
        }
        match elsewhere.find(|(_, member)| !member.has_tcp()) {
            Some((server, member)) => Err(MapRefusal::OtherWithoutTcp { server: *server, host: member.host.clone() }),
            None => Ok(()),
        }
    }

    /// The members that must sync before `member` joins: all that have not, if it is on another host than one of them.
    pub fn unsynced_for(&self, member: &Member) -> impl Iterator<Item = ServerId> {
        let elsewhere = self.members.values().any(|other| other.boot_id != member.boot_id);
        let is_synced = |server: &ServerId| self.synced.as_ref().is_some_and(|synced| synced.contains(server));
        self.members.keys().filter(move |server| elsewhere && !is_synced(server)).copied()
    }

    /// Whether the member's replies to changes wait for the fsync.
    pub fn is_synced(&self, server: ServerId) -> bool {
        let by_level = self.members.get(&server).is_some_and(|member| member.synced);
        by_level || self.synced.as_ref().is_some_and(|synced| synced.contains(&server))
    }

    /// Members are to sync before they reply.
    pub fn sync_required(&self) -> ClusterMap {
        let mut next = self.next();
        next.synced.get_or_insert_default();
        next
    }

    /// `server` syncs before it replies, and has synced all that it had replied to before.
    pub fn sync_confirmed(&self, server: ServerId) -> Result<ClusterMap, MapRefusal> {
        self.member(server)?;
        let mut next = self.next();
        next.synced.get_or_insert_default().insert(server);
        Ok(next)
    }

    /// `server` is dead, was evicted, or has stopped. Its shards get other owners, if there are any.
    pub fn left(&self, server: ServerId) -> Result<ClusterMap, MapRefusal> {
        self.member(server)?;
        let mut next = self.next();
        next.members.remove(&server);
        next.pins.clear();
        if let Some(synced) = &mut next.synced {
            synced.remove(&server);
        }
        next.synced = next.synced.filter(|_| !next.members.is_empty());
        next.shards.iter_mut().filter(|shard| shard.owner == Some(server)).for_each(|shard| shard.owner = None);
        next.assign_free_shards();
        Ok(next)
    }

    /// `server` gives its shards away from now on.
    pub fn draining(&self, server: ServerId) -> Result<ClusterMap, MapRefusal> {
        self.member(server)?;
        let mut next = self.next();
        next.members.get_mut(&server).expect("it is a member").state = MemberState::Draining;
        next.pins.clear();
        Ok(next)
    }

    /// The server to which an administrator has moved a shard.
    pub fn pin(&self, shard: ShardId) -> Option<ServerId> {
        self.pins.get(&shard.0).copied()
    }

    /// The owner of `shard` is to give it to `to` ([`handovers`]), also if an earlier command wanted it elsewhere.
    pub fn pinned(&self, shard: ShardId, to: ServerId) -> Result<ClusterMap, MapRefusal> {
        if self.member(to)?.state == MemberState::Draining {
            return Err(MapRefusal::Draining(to));
        }
        let last = self.shards.len() - 1;
        let ownership = self.ownership(shard).ok_or(MapRefusal::NoSuchShard { shard, last })?;
        if ownership.owner == Some(to) && self.pin(shard).is_none_or(|pin| pin == to) {
            return Err(MapRefusal::OwnsAlready { shard, owner: to });
        }
        let mut next = self.next();
        next.pins.insert(shard.0, to);
        Ok(next)
    }

    /// The shard need not be at `from`, where an administrator wanted it.
    pub fn unpinned(&self, shard: ShardId, from: ServerId) -> Result<ClusterMap, MapRefusal> {
        if self.pin(shard) != Some(from) {
            return Err(MapRefusal::OtherPin(shard));
        }
        let mut next = self.next();
        next.pins.remove(&shard.0);
        Ok(next)
    }

    /// [`ClusterMap::moved`] as the balance or an administrator asked for it in an earlier map, which had `pin`. Another
    /// command may have chosen another server since.
    pub fn handed_over(&self, handover: Handover, pin: Option<ServerId>) -> Result<ClusterMap, MapRefusal> {
        let Handover { shard, from, to } = handover;
        if self.pin(shard) != pin {
            return Err(MapRefusal::OtherPin(shard));
        }
        self.moved(shard, from, to, None)
    }

    /// The owner `from` has closed the shard and gives it to `to`: to its worker `worker`, or to the one that
    /// [`ClusterMap::worker_for`] names.
    pub fn moved(
        &self,
        shard: ShardId,
        from: ServerId,
        to: ServerId,
        worker: Option<u16>,
    ) -> Result<ClusterMap, MapRefusal> {
        let receiver = self.member(to)?;
        if receiver.state == MemberState::Draining && to != from {
            return Err(MapRefusal::Draining(to));
        }
        if let Some(worker) = worker.filter(|worker| usize::from(*worker) >= receiver.workers.len()) {
            return Err(MapRefusal::NoSuchWorker {
                server: to,
                worker,
                last: receiver.workers.len().saturating_sub(1),
            });
        }
        let last = self.shards.len() - 1;
        let ownership = self.ownership(shard).ok_or(MapRefusal::NoSuchShard { shard, last })?;
        if let Some(owner) = ownership.owner.filter(|owner| *owner != from) {
            return Err(MapRefusal::NotTheOwner { shard, owner, claimed: from });
        }
        let mut next = self.next();
        let worker = worker.unwrap_or_else(|| self.worker_for(shard, to));
        next.give(shard, to, worker);
        Ok(next)
    }

    /// The owner, in this term, has lost the shard to a server that the map does not name, and takes it back in the next.
    pub fn reclaimed(&self, shard: ShardId, owner: ServerId, term: Term) -> Result<ClusterMap, MapRefusal> {
        match self.ownership(shard) {
            Some(Ownership { worker, term: newest, .. }) if newest == term => {
                self.moved(shard, owner, owner, Some(worker))
            }
            Some(newest) => Err(MapRefusal::OtherTerm { shard, newest: newest.term.0, claimed: term.0 }),
            None => self.moved(shard, owner, owner, None),
        }
    }

    /// A command takes the volume, which has no members, so that no server joins.
    pub fn claimed(&self, claim: Claim) -> Result<ClusterMap, MapRefusal> {
        if let Some(claim) = self.claim.clone() {
            return Err(MapRefusal::claimed_by(claim));
        }
        if !self.members.is_empty() {
            return Err(MapRefusal::HasMembers(self.members.len()));
        }
        Ok(ClusterMap { claim: Some(claim), ..self.next() })
    }

    /// The command has ended. `None`: another claim is in its place, or none.
    pub fn released(&self, holder: ServerId) -> Option<ClusterMap> {
        self.claim.as_ref().filter(|claim| claim.holder == holder)?;
        Some(ClusterMap { claim: None, ..self.next() })
    }

    fn give(&mut self, shard: ShardId, to: ServerId, worker: u16) {
        let ownership = &mut self.shards[usize::from(shard.0)];
        *ownership = Ownership { owner: Some(to), worker, term: ownership.term.next() };
    }
}

#[cfg(test)]
mod tests;
