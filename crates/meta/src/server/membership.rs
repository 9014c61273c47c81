//! The server as one of several: a thread of its own is a member of the cluster, tells the workers which shards are
//! theirs, and gives shards away.
//!
//! ```text
//! registry ──► map ──► workers: open the shards that are new in it
//!    ▲                    │
//!    └── moved ◄── a worker has closed a shard for another member
//! ```
//!
//! A shard changes its server as after a crash: the old owner closes it, if it lives, and the new owner opens it, waits for
//! the sessions that may come back, and learns from them which files are open. A server that was killed by others ends
//! without closing anything: its shards are theirs.

use super::inbox::{ServerCommand, WorkerMessage};
use super::peer_network::PeerMember;
use super::shared::ServerShared;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use varve_cluster::address::RegistryAddress;
use varve_cluster::map::{ClusterMap, Handover, MapRefusal, Member, MemberState, Ownership, ServerId, handovers};
use varve_cluster::membership::{self, EndCause, JoinConfig, Membership, MembershipError, REPLY_GRACE, Standing};
use varve_cluster::registry::Registry;
use varve_env::volume_dir::{ServerRecord, WorkerRecord};
use varve_types::{InvalidShardMap, MapServer, ShardId, ShardMap, ShardOwner, WorkerAddress};

/// How a server joins others.
#[derive(Clone, Debug)]
pub struct JoinSettings {
    /// `None`: the recorded one, or `store` for the first server.
    pub registry: Option<RegistryAddress>,
    /// How long a renewal is valid in a cluster that this server begins.
    pub lease: Duration,
}

/// The lease of a cluster, unless its first server says otherwise: a dead server's shards have another owner after twice
/// that time.
pub const LEASE_DEFAULT: Duration = Duration::from_secs(2);

/// How long a join may take: some tens of creates in the registry, and two of the longest leases if a dead member is in
/// its way.
const JOIN_MAX: Duration = Duration::from_secs(150);

/// How long a server that stops gives its shards away. Its workers close what is left.
const DRAIN_MAX: Duration = Duration::from_secs(12);

/// How long it tries to leave. Otherwise the others take it for dead.
const LEAVE_MAX: Duration = Duration::from_secs(5);

/// Commands that wait: a server that stops gives two, one after the other.
const COMMANDS_MAX: usize = 4;

/// How often a server looks whether its record is in the store. Clients that start meanwhile do not find it.
const RECORD_LOOKED_AT_EVERY: Duration = Duration::from_secs(2);

/// Pause after a shard could not be given away.
const TRY_AGAIN: Duration = Duration::from_millis(500);

enum MembershipCommand {
    Drain { done: blocking::SyncSender<()> },
    Leave { done: blocking::SyncSender<()> },
}

/// The thread of a server that has joined.
pub struct MembershipThread {
    commands: mpsc::Sender<MembershipCommand>,
}

impl MembershipThread {
    /// Joins the cluster. The workers listen, but accept nothing yet.
    pub fn join(
        settings: &JoinSettings,
        shared: &Arc<ServerShared>,
        member: Member,
        inboxes: Vec<mpsc::Sender<WorkerMessage>>,
        command: watch::Sender<ServerCommand>,
    ) -> Result<MembershipThread, MembershipError> {
        let (registry, had_servers) = open_registry(settings, shared)?;
        let server = ServerId(shared.number);
        let config = JoinConfig {
            registry: Arc::clone(&registry),
            clock: Arc::clone(&shared.clock),
            server,
            member,
            shards: shared.settings.shards,
            lease: Arc::clone(&shared.lease),
            lease_time: settings.lease,
        };
        let shared = Arc::clone(shared);
        let cluster = ClusterServer { shared, registry, had_servers, server, inboxes, command };
        let (commands, received) = mpsc::channel(COMMANDS_MAX);
        let (joined, result) = blocking::sync_channel(1);
        let thread = std::thread::Builder::new().name("varve-membership".into());
        thread.spawn(move || live(config, cluster, received, &joined)).map_err(MembershipError::Thread)?;
        match result.recv_timeout(JOIN_MAX) {
            Ok(Ok(())) => Ok(MembershipThread { commands }),
            Ok(Err(error)) => Err(error),
            // The thread ends with `commands`, and leaves what it has joined.
            Err(_) => Err(MembershipError::JoinDeadline(JOIN_MAX)),
        }
    }

    /// Gives the shards of this server away as far as others take them, for some time at most.
    pub fn drain(&self) {
        self.have_done(DRAIN_MAX, |done| MembershipCommand::Drain { done });
    }

    /// The shards are closed: leaves the cluster. The thread is not waited for longer, because the registry may hang.
    pub fn leave(self) {
        self.have_done(LEAVE_MAX, |done| MembershipCommand::Leave { done });
    }

    fn have_done(&self, within: Duration, command: impl FnOnce(blocking::SyncSender<()>) -> MembershipCommand) {
        let (done, result) = blocking::sync_channel(1);
        // A server that was killed has no such thread any more.
        if self.commands.try_send(command(done)).is_ok() {
            let _ = result.recv_timeout(within);
        }
    }
}

/// Opens the registry of the volume's servers. The first server's choice is recorded once that registry has answered.
/// Returns also whether a choice was recorded before: then servers may have joined.
fn open_registry(settings: &JoinSettings, shared: &ServerShared) -> Result<(Arc<dyn Registry>, bool), MembershipError> {
    let (volume, asked) = (&shared.volume, settings.registry.as_ref());
    let had_servers = RegistryAddress::of_volume(volume, asked)?.is_some();
    if !had_servers {
        let first = asked.cloned().unwrap_or_default().open(volume, shared.settings.id)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(MembershipError::Thread)?;
        let answered = runtime.block_on(async { tokio::time::timeout(JOIN_MAX, first.newest_map()).await });
        runtime.shutdown_background();
        answered.map_err(|_| MembershipError::JoinDeadline(JOIN_MAX))??;
    }
    Ok((RegistryAddress::of_joining_server(volume, asked)?.open(volume, shared.settings.id)?, had_servers))
}

/// How others see this server. `peers`: where it takes their calls. `synced`: its replies to changes wait for the fsync.
pub fn member(record: &ServerRecord, peers: &WorkerAddress, synced: bool) -> Member {
    Member {
        host: record.host.clone(),
        boot_id: record.boot_id.clone(),
        pid: record.pid,
        workers: record.workers.clone(),
        peers: WorkerRecord { unix: peers.unix.clone(), tcp: peers.tcp.clone() },
        state: MemberState::Active,
        synced,
        store_id: record.store_id.clone(),
    }
}

/// The body of the thread.
fn live(
    config: JoinConfig,
    cluster: ClusterServer,
    commands: mpsc::Receiver<MembershipCommand>,
    joined: &blocking::SyncSender<Result<(), MembershipError>>,
) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return drop(joined.send(Err(MembershipError::Thread(error)))),
    };
    runtime.block_on(async {
        match Membership::join(config).await {
            Ok(membership) => {
                // The starting thread may have stopped waiting; then the channel of commands is closed.
                let _ = joined.send(Ok(()));
                cluster.be_member(membership, commands).await;
            }
            Err(error) => drop(joined.send(Err(error))),
        }
    });
    // A call of the registry may hang.
    runtime.shutdown_background();
}

struct ClusterServer {
    shared: Arc<ServerShared>,
    registry: Arc<dyn Registry>,
    /// Servers may have joined before this one did.
    had_servers: bool,
    server: ServerId,
    inboxes: Vec<mpsc::Sender<WorkerMessage>>,
    command: watch::Sender<ServerCommand>,
}

impl ClusterServer {
    /// Returns when the server has left or was killed.
    async fn be_member(&self, membership: Membership, commands: mpsc::Receiver<MembershipCommand>) {
        let standing = membership.standing();
        let asked_to_leave = tokio::select! {
            () = membership.run() => None,
            () = self.follow(standing.clone()) => None,
            () = self.give_away(standing.clone()) => None,
            () = self.reclaim(standing.clone()) => None,
            () = self.confirm_syncs(standing.clone()) => None,
            () = self.keep_record(standing.clone()) => None,
            done = self.obey(commands, standing.clone()) => Some(done),
        };
        let Some(done) = asked_to_leave else { return self.end(&standing) };
        self.shared.lease.end();
        match tokio::time::timeout(LEAVE_MAX, membership::leave(&*self.registry, self.server)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!("cannot leave the cluster, so others will take it for dead: {error}"),
            Err(_) => tracing::warn!("the registry does not answer, so others will take this server for dead"),
        }
        if let Some(done) = done {
            let _ = done.send(());
        }
    }

    /// The server is no member any more: its workers end without closing their shards.
    fn end(&self, standing: &watch::Receiver<Standing>) {
        let cause = match &*standing.borrow() {
            Standing::Ended(cause) => cause.clone(),
            // The thread that stops the server has ended.
            Standing::Member(_) => EndCause::Removed,
        };
        self.shared.ended.get_or_init(|| cause);
        self.command.send_replace(ServerCommand::Close);
    }

    /// Executes commands. Returns when the server leaves, with the channel of the thread that waits for that.
    async fn obey(
        &self,
        mut commands: mpsc::Receiver<MembershipCommand>,
        standing: watch::Receiver<Standing>,
    ) -> Option<blocking::SyncSender<()>> {
        loop {
            match commands.recv().await? {
                MembershipCommand::Leave { done } => return Some(done),
                MembershipCommand::Drain { done } => {
                    if tokio::time::timeout(DRAIN_MAX, self.drain(standing.clone())).await.is_err() {
                        tracing::warn!("not all shards were given away within {DRAIN_MAX:?}; closing the others");
                    }
                    let _ = done.send(());
                }
            }
        }
    }

    /// Returns when the server owns no shard, or no other member takes shards.
    async fn drain(&self, mut standing: watch::Receiver<Standing>) {
        let draining = membership::change(&*self.registry, |map| {
            Ok::<_, MembershipError>(known(map, self.server)?.draining(self.server)?)
        });
        if let Err(error) = draining.await {
            return tracing::warn!("cannot announce that this server gives its shards away: {error}");
        }
        let is_drained = |standing: &Standing| match standing {
            Standing::Ended(_) => true,
            Standing::Member(map) => {
                let announced = map.members.get(&self.server).is_none_or(|own| own.state == MemberState::Draining);
                announced && (map.active().next().is_none() || map.shards_of(self.server).next().is_none())
            }
        };
        let _ = standing.wait_for(is_drained).await;
    }

    /// Tells the workers of each change of the map. Returns when the server is no member any more.
    async fn follow(&self, mut standing: watch::Receiver<Standing>) {
        let mut before: Option<Arc<ClusterMap>> = None;
        loop {
            let Standing::Member(map) = standing.borrow_and_update().clone() else { return };
            self.apply(before.as_deref(), &map).await;
            before = Some(map);
            if standing.changed().await.is_err() {
                return;
            }
        }
    }

    async fn apply(&self, before: Option<&ClusterMap>, map: &ClusterMap) {
        if map.synced.is_some() {
            self.shared.sync_before_replies();
        }
        for shard in map.shards_of(self.server) {
            let now = map.ownership(shard).expect("the map has its own shards");
            let was = before.and_then(|before| before.ownership(shard));
            if was.is_some_and(|was| was.term == now.term) {
                continue;
            }
            let after = opened_after(map, was, now, self.had_servers);
            self.tell(usize::from(now.worker), WorkerMessage::Own { shard, term: now.term, after }).await;
        }
        if let Some(network) = self.shared.peer_network.get() {
            network.set_members(self.peers(map));
        }
        let followed = shard_map(map).and_then(|map| self.shared.shard_map.replace(map));
        if let Err(error) = followed {
            tracing::error!("cannot use the cluster's map: {error}");
        }
        let Some(before) = before else { return };
        for shard in before.shards_of(self.server) {
            let [was, now] = [before, map].map(|map| map.ownership(shard).expect("the map has its own shards"));
            if (was.owner, was.worker) != (now.owner, now.worker) {
                self.tell(usize::from(was.worker), WorkerMessage::Gone { shard }).await;
            }
        }
        self.hide_records(before, map);
    }

    /// When the map asks for it, makes this server sync before it replies, syncs all before that, and says so in the map.
    /// Returns when the server is no member any more.
    async fn confirm_syncs(&self, mut standing: watch::Receiver<Standing>) {
        let is_asked = |standing: &Standing| match standing {
            Standing::Member(map) => map.synced.as_ref().is_some_and(|synced| !synced.contains(&self.server)),
            Standing::Ended(_) => true,
        };
        loop {
            match standing.wait_for(is_asked).await.as_deref() {
                Ok(Standing::Member(_)) => {}
                Ok(Standing::Ended(_)) | Err(_) => return,
            }
            self.shared.sync_before_replies();
            if self.sync_shards().await {
                let confirmed = membership::change(&*self.registry, |map| {
                    Ok::<_, MembershipError>(known(map, self.server)?.sync_confirmed(self.server)?)
                });
                match confirmed.await {
                    Ok(map) => {
                        tracing::info!("a server joins on another host: replies to changes wait for their fsync now");
                        let knows = |standing: &Standing| match standing {
                            Standing::Member(known) => known.version >= map.version,
                            Standing::Ended(_) => true,
                        };
                        let _ = standing.wait_for(knows).await;
                        continue;
                    }
                    Err(error) => tracing::debug!("cannot confirm that this server syncs: {error}"),
                }
            }
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Publishes this server's record again if somebody removed it: clients find the server by it. Returns when the server
    /// is no member any more.
    async fn keep_record(&self, standing: watch::Receiver<Standing>) {
        while matches!(&*standing.borrow(), Standing::Member(_)) {
            tokio::time::sleep(RECORD_LOOKED_AT_EVERY).await;
            if !self.shared.lease.is_valid() {
                continue;
            }
            let shared = Arc::clone(&self.shared);
            // The store may hang, and the lease must be renewed meanwhile.
            let restored = tokio::task::spawn_blocking(move || shared.restore_record()).await;
            match restored {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => {
                    tracing::warn!("the record of this server in the store was removed, and is there again")
                }
                Ok(Err(error)) => tracing::debug!("cannot look whether the record of this server is there: {error}"),
                Err(error) => tracing::debug!("{error}"),
            }
        }
    }

    async fn sync_shards(&self) -> bool {
        let mut synced = true;
        for worker in 0..self.inboxes.len() {
            let (reply, done) = oneshot::channel();
            self.tell(worker, WorkerMessage::SyncShards { reply }).await;
            synced &= done.await.unwrap_or(false);
        }
        synced
    }

    /// Where the other members take calls.
    fn peers(&self, map: &ClusterMap) -> Vec<PeerMember> {
        let others = map.members.iter().filter(|(server, _)| **server != self.server);
        let peer = |(server, Member { boot_id, peers, .. }): (&ServerId, &Member)| PeerMember {
            number: server.0,
            boot_id: boot_id.clone(),
            address: WorkerAddress { unix: peers.unix.clone(), tcp: peers.tcp.clone() },
        };
        others.map(peer).collect()
    }

    async fn tell(&self, worker: usize, message: WorkerMessage) {
        // A worker that has ended ends the server.
        if let Some(inbox) = self.inboxes.get(worker) {
            let _ = inbox.send(message).await;
        }
    }

    /// Hides the records of members that the registry shows as dead: clients would try them in vain.
    fn hide_records(&self, before: &ClusterMap, map: &ClusterMap) {
        let gone: BTreeSet<_> = before.members.keys().filter(|server| !map.members.contains_key(*server)).collect();
        for server in gone {
            let (volume, server) = (self.shared.volume.clone(), *server);
            // The store may hang, and the lease must be renewed meanwhile.
            tokio::task::spawn_blocking(move || {
                if let Err(error) = volume.hide_joined_record(server.0) {
                    tracing::debug!("cannot hide the record of server {server}: {error}");
                }
            });
        }
    }

    /// Gives shards away as the balance of the map and moves by command ask. Returns when the server is no member any more.
    async fn give_away(&self, mut standing: watch::Receiver<Standing>) {
        // Shards that could not be given away a moment ago.
        let mut stay = BTreeSet::new();
        loop {
            let Standing::Member(map) = standing.borrow_and_update().clone() else { return };
            let is_due = |handover: &Handover| handover.from == self.server && !stay.contains(&handover.shard);
            let next = handovers(&map).into_iter().find(is_due).filter(|_| self.shared.lease.is_valid());
            let Some(handover) = next else {
                tokio::select! {
                    changed = standing.changed() => if changed.is_err() { return },
                    () = tokio::time::sleep(TRY_AGAIN) => {}
                }
                stay.clear();
                continue;
            };
            match self.hand_over(&map, handover).await {
                Ok(version) => {
                    // The change comes back as that of any other server does.
                    let knows = |standing: &Standing| match standing {
                        Standing::Member(map) => map.version >= version,
                        Standing::Ended(_) => true,
                    };
                    let _ = standing.wait_for(knows).await;
                }
                Err(reason) => {
                    tracing::debug!("shard {} was not given away: {reason}", handover.shard);
                    stay.insert(handover.shard);
                }
            }
        }
    }

    /// Has a shard closed by its worker, and publishes its next owner. Returns the version of the map that names it.
    async fn hand_over(&self, map: &ClusterMap, handover: Handover) -> Result<u64, String> {
        let Handover { shard, to, .. } = handover;
        let worker = map.ownership(shard).expect("a handover is of a shard of the map").worker;
        self.close(shard, usize::from(worker)).await?;
        let pin = map.pin(shard);
        let moved = membership::change(&*self.registry, |map| {
            Ok::<_, MembershipError>(known(map, self.server)?.handed_over(handover, pin)?)
        });
        match moved.await.map(|map| map.version) {
            Ok(version) => {
                tracing::info!("gave shard {shard} to server {to}");
                Ok(version)
            }
            Err(error) => {
                tracing::warn!("cannot give shard {shard} to server {to}, and takes it back: {error}");
                Ok(self.take_back(shard, worker).await)
            }
        }
    }

    /// Takes shards back that were released because another server opened them, although the map gives them to this one:
    /// that server had been taken for dead, and went on where it had stopped. The new term tells clients that what they
    /// registered is to be registered again. Returns when the server is no member any more.
    async fn reclaim(&self, mut standing: watch::Receiver<Standing>) {
        loop {
            let (shard, term) = self.shared.released.next().await;
            while matches!(*standing.borrow_and_update(), Standing::Member(_)) {
                let reclaimed = membership::change(&*self.registry, |map| {
                    let map = known(map, self.server)?;
                    Ok::<_, MembershipError>(map.reclaimed(shard, self.server, term)?)
                });
                match reclaimed.await {
                    Ok(map) => tracing::info!("takes shard {shard} back in version {} of the map", map.version),
                    // A later map says whose it is.
                    Err(MembershipError::Map(refusal)) => tracing::debug!("shard {shard} is not taken back: {refusal}"),
                    Err(error) => {
                        tracing::debug!("cannot take shard {shard} back, and will try again: {error}");
                        tokio::time::sleep(TRY_AGAIN).await;
                        continue;
                    }
                }
                break;
            }
            if matches!(*standing.borrow(), Standing::Ended(_)) {
                return;
            }
            // Two servers that open the same shard must not do so as fast as they can.
            tokio::time::sleep(TRY_AGAIN).await;
        }
    }

    /// Makes a closed shard this server's own again, in a new term: a change whose answer was lost may have given it to
    /// another server, or would do so later if its number in the map stayed free. Returns the version of the map that says
    /// whose it is.
    async fn take_back(&self, shard: ShardId, worker: u16) -> u64 {
        loop {
            let again = membership::change(&*self.registry, |map| {
                let map = known(map, self.server)?;
                Ok::<_, MembershipError>(map.moved(shard, self.server, self.server, Some(worker))?)
            });
            match again.await {
                Ok(map) => return map.version,
                // It is another server's, or this one is no member any more: a later map says so.
                Err(MembershipError::Map(_)) => return 0,
                Err(error) => {
                    tracing::debug!("cannot take shard {shard} back, and will try again: {error}");
                    tokio::time::sleep(TRY_AGAIN).await;
                }
            }
        }
    }

    async fn close(&self, shard: ShardId, worker: usize) -> Result<(), String> {
        let (reply, closed) = oneshot::channel();
        self.tell(worker, WorkerMessage::GiveAway { shard, reply }).await;
        closed.await.unwrap_or_else(|_| Err(format!("worker {worker} has ended")))
    }
}

/// How long this server waits before it opens a shard that it owns `now`. `was`: in the map that it knew before.
fn opened_after(map: &ClusterMap, was: Option<Ownership>, now: Ownership, had_servers: bool) -> Duration {
    match was {
        // An owner that lives has closed the shard. Replies of a dead one may still be on their way.
        Some(was) => {
            let lives = was.owner.is_some_and(|owner| map.members.contains_key(&owner));
            if lives && was.term.0 + 1 == now.term.0 { Duration::ZERO } else { REPLY_GRACE }
        }
        // The map names no owner before this one. If servers joined before, the registry has lost a map: they answer until
        // their leases end, and can renew once more before they notice the loss.
        None if now.term.0 == 1 && had_servers => 2 * map.lease() + REPLY_GRACE,
        None if now.term.0 == 1 => Duration::ZERO,
        None => REPLY_GRACE,
    }
}

fn known(map: Option<ClusterMap>, server: ServerId) -> Result<ClusterMap, MapRefusal> {
    map.ok_or(MapRefusal::NotAMember(server))
}

/// The cluster's map for clients and workers, which knows a worker by its place among the workers of all servers.
fn shard_map(map: &ClusterMap) -> Result<ShardMap, InvalidShardMap> {
    let (mut servers, mut first, mut count) = (Vec::new(), BTreeMap::new(), 0);
    for (server, Member { boot_id, workers, .. }) in &map.members {
        let address =
            |WorkerRecord { unix, tcp }: &WorkerRecord| WorkerAddress { unix: unix.clone(), tcp: tcp.clone() };
        let workers: Vec<_> = workers.iter().map(address).collect();
        first.insert(*server, count);
        count += workers.len();
        servers.push(MapServer { number: server.0, boot_id: boot_id.clone(), workers });
    }
    let owner = |Ownership { owner, worker, term }: &Ownership| {
        let first = owner.and_then(|owner| first.get(&owner));
        let place = first.and_then(|first| u16::try_from(first + usize::from(*worker)).ok());
        ShardOwner { worker: place.unwrap_or(ShardOwner::NOBODY), term: term.0 }
    };
    ShardMap::new(map.version, servers, map.shards.iter().map(owner).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::{ShardCount, WorkerPlace};

    #[test]
    fn shard_map_counts_workers_of_all_servers() {
        let at = WorkerRecord { unix: None, tcp: Some("node:7000".into()) };
        let member = |pid, workers| Member {
            host: "host".into(),
            boot_id: "boot".into(),
            pid,
            workers: vec![at.clone(); workers],
            peers: at.clone(),
            state: MemberState::Active,
            synced: false,
            store_id: None,
        };
        let map = ClusterMap::first(ShardCount::new(4).unwrap(), LEASE_DEFAULT);
        let map = map.joined(ServerId(5), member(1, 3)).unwrap().joined(ServerId(9), member(2, 2)).unwrap();
        let map = map.moved(ShardId(3), ServerId(5), ServerId(9), Some(1)).unwrap();
        let found = shard_map(&map).unwrap();
        assert_eq!((found.version(), found.term(ShardId(3))), (map.version, 2));
        assert_eq!(found.owner(ShardId(2)), Some(WorkerPlace { server: 5, worker: 2 }));
        assert_eq!(found.owner(ShardId(3)), Some(WorkerPlace { server: 9, worker: 1 }));
        assert_eq!(found.server(9).unwrap().boot_id, "boot");
        let nobody = map.left(ServerId(5)).unwrap().draining(ServerId(9)).unwrap().left(ServerId(9)).unwrap();
        assert!(shard_map(&nobody).is_err(), "a map without servers is nobody's");
    }
}
