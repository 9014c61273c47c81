//! A cluster of members in one thread, on simulated time, over a registry whose calls can be delayed and held up.

#![allow(dead_code, reason = "each suite uses its part")]

use async_trait::async_trait;
use futures::TryStreamExt;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, LocalSet};
use varve_cluster::claim::{ClaimConfig, ClaimError, VolumeClaim};
use varve_cluster::lease::Lease;
use varve_cluster::map::{ClusterMap, Member, MemberState, ServerId};
use varve_cluster::membership::{JoinConfig, Membership, MembershipError, Standing};
use varve_cluster::registry::{Beat, KillReason, Pulse, Registry, RegistryError, Taken};
use varve_cluster::store_registry::StoreRegistry;
use varve_env::clock::{Clock, Instant};
use varve_env::random::Seeded;
use varve_env::volume_dir::WorkerRecord;
use varve_types::{ShardCount, ShardId, Timestamp};

pub const LEASE: Duration = Duration::from_secs(2);
const SHARDS: u16 = 16;

/// The clock of tokio's simulated time.
struct SimulatedClock(tokio::time::Instant);

impl Clock for SimulatedClock {
    fn now(&self) -> Timestamp {
        Timestamp::default()
    }

    fn monotonic(&self) -> Instant {
        Instant(self.0.elapsed() + Duration::from_secs(1))
    }
}

fn member(pid: u32) -> Member {
    let (host, boot_id) = ("host".to_owned(), "boot".to_owned());
    let at = WorkerRecord { unix: None, tcp: Some(format!("10.0.0.1:{pid}")) };
    let (workers, peers) = (vec![at.clone()], at);
    Member { host, boot_id, pid, workers, peers, state: MemberState::Active, synced: false, store_id: None }
}

/// The connection between the members and the registry.
#[derive(Debug)]
pub struct Network {
    /// Servers whose calls are held up, and whether all are.
    held: watch::Sender<(BTreeSet<ServerId>, bool)>,
    delays: Mutex<Option<Seeded>>,
}

impl Network {
    pub fn hang(&self, server: ServerId, hangs: bool) {
        self.held.send_modify(|(servers, _)| {
            if hangs {
                servers.insert(server)
            } else {
                servers.remove(&server)
            };
        });
    }

    pub fn hang_all(&self, hangs: bool) {
        self.held.send_modify(|(_, all)| *all = hangs);
    }

    /// From now on each call takes a random time.
    pub fn delays(&self, seed: u64) {
        *self.delays.lock().unwrap() = Some(Seeded::new(seed));
    }

    async fn pass(&self, server: Option<ServerId>) {
        let delay = self.delays.lock().unwrap().as_mut().map(|chance| chance.below(60) as u64);
        if let Some(delay) = delay {
            tokio::time::sleep(Duration::from_millis(delay)).await;
        }
        let free = |(servers, all): &(BTreeSet<ServerId>, bool)| {
            !all && server.is_none_or(|server| !servers.contains(&server))
        };
        self.held.subscribe().wait_for(free).await.expect("the network lives");
    }
}

/// The registry as one server reaches it. A call may be held up before it is carried out, and its answer after that.
#[derive(Debug)]
struct Reached {
    registry: StoreRegistry,
    network: Arc<Network>,
    by: Option<ServerId>,
}

impl Reached {
    async fn through<T>(&self, call: impl Future<Output = T>) -> T {
        self.network.pass(self.by).await;
        let answer = call.await;
        self.network.pass(self.by).await;
        answer
    }
}

#[async_trait]
impl Registry for Reached {
    async fn newest_map(&self) -> Result<Option<ClusterMap>, RegistryError> {
        self.through(self.registry.newest_map()).await
    }

    async fn later_map(&self, than: u64, wait: Duration) -> Result<Option<ClusterMap>, RegistryError> {
        self.through(self.registry.later_map(than, wait)).await
    }

    async fn publish(&self, map: &ClusterMap) -> Result<Taken, RegistryError> {
        self.through(self.registry.publish(map)).await
    }

    async fn renew(&self, server: ServerId, beat: Beat) -> Result<Taken, RegistryError> {
        self.through(self.registry.renew(server, beat)).await
    }

    async fn kill(&self, server: ServerId, beat: Beat, reason: KillReason) -> Result<Taken, RegistryError> {
        self.through(self.registry.kill(server, beat, reason)).await
    }

    async fn pulse(&self, server: ServerId) -> Result<Pulse, RegistryError> {
        self.through(self.registry.pulse(server)).await
    }

    async fn forget(&self, server: ServerId) -> Result<(), RegistryError> {
        self.through(self.registry.forget(server)).await
    }
}

pub struct Cluster {
    store: Arc<InMemory>,
    pub network: Arc<Network>,
    clock: Arc<dyn Clock>,
    started: Cell<u64>,
}

impl Cluster {
    pub fn run(test: impl AsyncFnOnce(Rc<Cluster>)) {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
        runtime.block_on(LocalSet::new().run_until(async {
            let held = watch::Sender::new((BTreeSet::new(), false));
            let network = Arc::new(Network { held, delays: Mutex::default() });
            let clock = Arc::new(SimulatedClock(tokio::time::Instant::now()));
            test(Rc::new(Cluster { store: Arc::default(), network, clock, started: Cell::new(0) })).await;
        }));
    }

    fn reached(&self, by: Option<ServerId>) -> Arc<dyn Registry> {
        let registry = StoreRegistry::new(self.store.clone(), "memory");
        Arc::new(Reached { registry, network: Arc::clone(&self.network), by })
    }

    pub fn clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// The registry as an administrator reaches it.
    pub fn registry(&self) -> Arc<dyn Registry> {
        self.reached(None)
    }

    pub async fn map(&self) -> ClusterMap {
        self.registry().newest_map().await.unwrap().expect("a map")
    }

    /// Removes versions of the map: all, or the newest ones.
    pub async fn lose_maps(&self, newest: usize) {
        let maps = self.store.list(Some(&Path::from("cluster/map")));
        let mut maps: Vec<_> = maps.map_ok(|map| map.location).try_collect().await.unwrap();
        maps.sort_unstable();
        for map in maps.into_iter().rev().take(newest) {
            self.store.delete(&map).await.unwrap();
        }
    }

    /// The number of processes whose renewals are in the registry.
    pub async fn chains(&self) -> usize {
        let beats = self.store.list(Some(&Path::from("cluster/beat")));
        let server = |beat: object_store::ObjectMeta| beat.location.parts().nth(2).unwrap().as_ref().to_owned();
        let servers: BTreeSet<String> = beats.map_ok(server).try_collect().await.unwrap();
        servers.len()
    }

    /// Claims the volume, as `varve fsck` does.
    pub async fn claim(&self) -> Result<VolumeClaim, ClaimError> {
        let claimed = VolumeClaim::take(ClaimConfig {
            registry: self.registry(),
            clock: Arc::clone(&self.clock),
            shards: ShardCount::new(SHARDS).expect("a power of two"),
            lease_time: LEASE,
            purpose: "varve fsck".into(),
            host: "host".into(),
            pid: 99,
        });
        claimed.await
    }

    pub async fn join(&self, count: usize) -> Vec<Node> {
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(Node::join(self).await.unwrap());
        }
        self.balance(&nodes).await;
        nodes
    }

    /// Moves shards as their owners would.
    async fn balance(&self, nodes: &[Node]) {
        let map = self.map().await;
        let registry = self.registry();
        for handover in varve_cluster::map::handovers(&map) {
            let next = self.map().await.moved(handover.shard, handover.from, handover.to, None).unwrap();
            assert_eq!(registry.publish(&next).await.unwrap(), Taken::Ours);
        }
        let version = self.map().await.version;
        for node in nodes {
            let knows = |standing: &Standing| matches!(standing, Standing::Member(map) if map.version >= version);
            node.standing.clone().wait_for(knows).await.unwrap();
        }
    }
}

/// One member.
pub struct Node {
    pub server: ServerId,
    pub lease: Arc<Lease>,
    pub standing: watch::Receiver<Standing>,
    stopped: watch::Sender<bool>,
    task: AbortHandle,
    killed: RefCell<bool>,
}

impl Node {
    pub async fn join(cluster: &Cluster) -> Result<Node, MembershipError> {
        Node::join_with_shards(cluster, SHARDS).await
    }

    /// A server on another host.
    pub async fn join_from(cluster: &Cluster, boot_id: &str) -> Result<Node, MembershipError> {
        let boot_id = boot_id.to_owned();
        Node::join_as(cluster, SHARDS, |member| Member { boot_id, ..member }).await
    }

    pub async fn join_with_shards(cluster: &Cluster, shards: u16) -> Result<Node, MembershipError> {
        Node::join_as(cluster, shards, |member| member).await
    }

    /// A server that only its own host reaches.
    pub async fn join_without_tcp(cluster: &Cluster) -> Result<Node, MembershipError> {
        let (workers, peers) = (vec![WorkerRecord::default()], WorkerRecord::default());
        Node::join_as(cluster, SHARDS, |member| Member { workers, peers, ..member }).await
    }

    async fn join_as(
        cluster: &Cluster,
        shards: u16,
        made: impl FnOnce(Member) -> Member,
    ) -> Result<Node, MembershipError> {
        cluster.started.set(cluster.started.get() + 1);
        let server = ServerId(cluster.started.get());
        let lease = Arc::new(Lease::new(Arc::clone(&cluster.clock)));
        let membership = Membership::join(JoinConfig {
            registry: cluster.reached(Some(server)),
            clock: Arc::clone(&cluster.clock),
            server,
            member: made(member(server.0 as u32)),
            shards: ShardCount::new(shards).expect("a power of two"),
            lease: Arc::clone(&lease),
            lease_time: LEASE,
        })
        .await?;
        let standing = membership.standing();
        let stopped = watch::Sender::new(false);
        let pauses = stopped.subscribe();
        let task = tokio::task::spawn_local(pausing(membership.run(), pauses)).abort_handle();
        Ok(Node { server, lease, standing, stopped, task, killed: RefCell::new(false) })
    }

    /// As SIGKILL.
    pub fn kill(&self) {
        self.task.abort();
        *self.killed.borrow_mut() = true;
    }

    /// As SIGSTOP.
    pub fn stop(&self) {
        self.stopped.send_replace(true);
    }

    /// As SIGCONT.
    pub fn go_on(&self) {
        self.stopped.send_replace(false);
    }

    pub fn is_member(&self) -> bool {
        !*self.killed.borrow() && matches!(*self.standing.borrow(), Standing::Member(_))
    }

    pub fn map(&self) -> Arc<ClusterMap> {
        match &*self.standing.borrow() {
            Standing::Member(map) => Arc::clone(map),
            Standing::Ended(cause) => panic!("server {} has ended: {cause}", self.server),
        }
    }

    /// The shards that this server may answer for, as far as it knows.
    pub fn owned(&self) -> Vec<ShardId> {
        match self.is_member() && self.lease.is_valid() {
            true => self.map().shards_of(self.server).collect(),
            false => Vec::new(),
        }
    }
}

/// Runs `work`, but not while the process is stopped.
async fn pausing(work: impl Future<Output = ()>, mut stopped: watch::Receiver<bool>) {
    let mut work = std::pin::pin!(work);
    loop {
        let stops = *stopped.borrow_and_update();
        let changed = match stops {
            true => stopped.changed().await,
            false => tokio::select! {
                biased;
                changed = stopped.changed() => changed,
                () = &mut work => return,
            },
        };
        if changed.is_err() {
            // The test has ended.
            return;
        }
    }
}

/// Checks that no shard has two owners.
pub fn check_owners(nodes: &[Node]) {
    let mut owners: BTreeMap<ShardId, ServerId> = BTreeMap::new();
    for node in nodes {
        for shard in node.owned() {
            if let Some(other) = owners.insert(shard, node.server) {
                panic!("servers {other} and {} both own shard {shard} with valid leases", node.server);
            }
        }
    }
}
