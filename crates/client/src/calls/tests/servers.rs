//! Several servers: lost ones, moved shards, and the files that are registered again.

use super::*;
use std::collections::HashSet;

/// Servers of one volume, as the test arranges them.
struct Cluster {
    clock: Arc<ManualClock>,
    /// The newest map.
    map: ShardMap,
    /// Follows once the clock shows that time.
    next: Option<(Instant, ShardMap)>,
    dead: HashSet<u64>,
    /// The worker that was asked about each shard.
    asked: Vec<(WorkerPlace, u16)>,
    /// The server at which files were registered, with their shard.
    registered: Vec<(u64, u16)>,
    /// The server that listens at the address of a dead one, with its map.
    replaced: Option<(u64, ShardMap)>,
    greeted: usize,
    lost: Vec<u64>,
}

#[derive(Clone)]
struct ClusterTransport(Arc<Mutex<Cluster>>);

impl Cluster {
    fn greet(&mut self, server: u64) -> std::result::Result<ServerWelcome, FindError> {
        self.greeted += 1;
        match self.dead.contains(&server) {
            true => match &self.replaced {
                Some((replaced, map)) if *replaced == server => Ok(welcome(map.servers()[0].number, map.clone())),
                _ => nobody(),
            },
            false => Ok(welcome(server, self.map.clone())),
        }
    }

    fn answer(&mut self, to: WorkerPlace, request: &Request) -> std::result::Result<Response, CallError> {
        if self.dead.contains(&to.server) {
            return Err(CallError::Lost { server: to.server, why: "for the test".into() });
        }
        self.asked.push((to, request.shard));
        let owns = self.map.owner(ShardId(request.shard)) == Some(to);
        if owns && matches!(request.call, Call::Register { .. }) {
            self.registered.push((to.server, request.shard));
        }
        let not_owner = || Err(wire::CallFailure::NotOwner { map: wire::WireShardMap::from(&self.map) });
        Ok(Response { id: request.id, result: if owns { Ok(Reply::Done) } else { not_owner() } })
    }
}

impl ClusterTransport {
    fn new(clock: &Arc<ManualClock>, map: ShardMap) -> ClusterTransport {
        let (next, dead, asked, registered, replaced, greeted, lost) = Default::default();
        let clock = Arc::clone(clock);
        ClusterTransport(Arc::new(Mutex::new(Cluster {
            clock,
            map,
            next,
            dead,
            asked,
            registered,
            replaced,
            greeted,
            lost,
        })))
    }
}

impl Transport for ClusterTransport {
    fn find(&self) -> LocalBoxFuture<'_, std::result::Result<ServerWelcome, FindError>> {
        let mut cluster = self.0.lock();
        let living = cluster.map.servers().iter().map(|server| server.number).find(|one| !cluster.dead.contains(one));
        ready(living.map_or_else(nobody, |server| cluster.greet(server))).boxed()
    }

    fn greet<'a>(&'a self, server: &'a MapServer) -> LocalBoxFuture<'a, std::result::Result<ServerWelcome, FindError>> {
        ready(self.0.lock().greet(server.number)).boxed()
    }

    fn follow(&self, _: &ShardMap) {}

    fn lose(&self, server: u64) {
        self.0.lock().lost.push(server);
    }

    fn call<'a>(
        &'a self,
        to: WorkerPlace,
        request: &'a Request,
        _: Instant,
    ) -> LocalBoxFuture<'a, std::result::Result<Response, CallError>> {
        ready(self.0.lock().answer(to, request)).boxed()
    }

    fn pause(&self, wait: Duration) -> LocalBoxFuture<'_, ()> {
        let mut cluster = self.0.lock();
        let now = cluster.clock.monotonic().after(wait);
        *cluster.clock.0.lock() = now;
        if let Some((_, map)) = cluster.next.take_if(|(then, _)| *then <= now) {
            cluster.map = map;
        }
        ready(()).boxed()
    }

    fn close(&self) {}
}

fn owners(workers_and_terms: [(u16, u64); 4]) -> [ShardOwner; 4] {
    workers_and_terms.map(|(worker, term)| ShardOwner { worker, term })
}

/// Server 1 owns shards 0 and 1, server 2 shards 2 and 3.
fn two_servers() -> ShardMap {
    map_of(5, &[1, 2], owners([(0, 1), (1, 1), (2, 1), (3, 1)]))
}

fn ask(core: &Core, shard: u16) -> std::result::Result<(), Failure> {
    crate::block_on(core.ask_shard(ShardId(shard), Call::Sync)).map(drop)
}

fn open_files(core: &Core) {
    (0..4).for_each(|shard| core.register(InodeId::new(ShardId(shard), 9), OpenMode::Read, None));
}

const TAKEN_OVER_AFTER: Duration = Duration::from_secs(2);

/// Promise: calls for shards of other servers go on without a search, and those of the lost server continue at its
/// successor, which first learns of the open files.
#[test]
fn lost_server_stops_only_its_own_shards() {
    let clock = manual_clock();
    let cluster = ClusterTransport::new(&clock, two_servers());
    let core = core_of(cluster.clone(), &clock);
    open_files(&core);
    cluster.0.lock().dead.insert(2);
    ask(&core, 0).unwrap();
    assert!(clock.monotonic().0.is_zero());
    let successor = map_of(6, &[1], owners([(0, 1), (1, 1), (0, 2), (1, 2)]));
    cluster.0.lock().next = Some((clock.monotonic().after(TAKEN_OVER_AFTER), successor));
    ask(&core, 2).unwrap();
    assert!((TAKEN_OVER_AFTER..TAKEN_OVER_AFTER * 2).contains(&clock.monotonic().0), "{:?}", clock.monotonic());
    ask(&core, 1).unwrap();
    let cluster = cluster.0.lock();
    assert_eq!((&*cluster.lost, &*cluster.registered), (&[2][..], &[(1, 2)][..]));
    assert_eq!(core.map().version(), 6);
}

/// Promise: a map with servers that the client did not know is followed at once.
#[test]
fn refused_call_follows_a_map_of_other_servers() {
    let clock = manual_clock();
    let cluster = ClusterTransport::new(&clock, map(1, 4, [0; 4]));
    let core = core_of(cluster.clone(), &clock);
    cluster.0.lock().map = two_servers();
    ask(&core, 3).unwrap();
    let place = |server, worker| (WorkerPlace { server, worker }, 3);
    assert_eq!(cluster.0.lock().asked, [place(1, 0), place(2, 1)]);
    assert!(clock.monotonic().0.is_zero() && cluster.0.lock().lost.is_empty());
}

/// Promise: files are registered again at shards that another server has opened, also if the client did not see it
/// because the shard came back.
#[test]
fn files_are_registered_again_only_at_moved_shards() {
    let clock = manual_clock();
    let cluster = ClusterTransport::new(&clock, two_servers());
    let core = core_of(cluster.clone(), &clock);
    open_files(&core);
    // Shard 2 goes to server 1, shard 3 went away and came back, and shard 0 goes to another worker.
    cluster.0.lock().map = map_of(9, &[1, 2], owners([(1, 1), (1, 1), (0, 2), (3, 3)]));
    for shard in [0, 1, 2, 3, 2, 3] {
        ask(&core, shard).unwrap();
    }
    assert_eq!(cluster.0.lock().registered, [(1, 2), (2, 3)]);
}

/// Promise: a server that serves the volume alone after others counts its own versions, and is followed.
#[test]
fn successor_with_its_own_versions_is_followed() {
    let clock = manual_clock();
    let cluster = ClusterTransport::new(&clock, two_servers());
    let core = core_of(cluster.clone(), &clock);
    open_files(&core);
    cluster.0.lock().dead.extend([1, 2]);
    cluster.0.lock().map = map(7, 1, [0, 1, 0, 1]);
    ask(&core, 1).unwrap();
    assert_eq!((core.map().servers()[0].number, core.map().version()), (7, 1));
    assert_eq!(cluster.0.lock().registered, [(7, 1)]);
}

/// Promise: while a server of the map lives, one that is no member is not followed, whatever its version.
#[test]
fn server_without_the_others_is_not_followed() {
    let clock = manual_clock();
    let cluster = ClusterTransport::new(&clock, two_servers());
    let core = core_of(cluster.clone(), &clock);
    cluster.0.lock().dead.insert(2);
    cluster.0.lock().replaced = Some((2, map(7, 20, [0; 4])));
    assert_eq!(ask(&core, 2).unwrap_err().errno, Errno::ETIMEDOUT);
    assert_eq!(core.map().version(), 5);
    cluster.0.lock().dead.insert(1);
    cluster.0.lock().map = map(7, 20, [0; 4]);
    ask(&core, 2).unwrap();
    assert_eq!(core.map().version(), 20);
}

/// Promise: an older map is not followed, and the call ends at its deadline.
#[test]
fn older_map_of_another_server_is_not_followed() {
    let clock = manual_clock();
    let cluster = ClusterTransport::new(&clock, two_servers());
    let core = core_of(cluster.clone(), &clock);
    cluster.0.lock().dead.insert(2);
    cluster.0.lock().map = map_of(4, &[1, 2], owners([(0, 1), (1, 1), (0, 1), (0, 1)]));
    let failure = ask(&core, 2).unwrap_err();
    assert_eq!(failure.errno, Errno::ETIMEDOUT, "{failure}");
    assert_eq!(core.map().version(), 5);
    assert!(cluster.0.lock().greeted < 1000, "the client must not hurry while the server is away");
}

/// Promise: a shard that nobody owns makes its calls wait.
#[test]
fn call_for_an_ownerless_shard_waits() {
    let clock = manual_clock();
    let cluster = ClusterTransport::new(&clock, map_of(5, &[1, 2], owners([(0, 1), (1, 1), (u16::MAX, 1), (3, 1)])));
    let core = core_of(cluster.clone(), &clock);
    cluster.0.lock().next = Some((clock.monotonic().after(TAKEN_OVER_AFTER), two_servers_later()));
    ask(&core, 2).unwrap();
    assert!(clock.monotonic().0 >= TAKEN_OVER_AFTER);
}

fn two_servers_later() -> ShardMap {
    map_of(6, &[1, 2], owners([(0, 1), (1, 1), (2, 2), (3, 1)]))
}

/// Promise: with several servers, the client learns of a moved shard by asking for the map, without a call for the
/// shard.
#[test]
fn refreshed_map_moves_registrations() {
    let clock = manual_clock();
    let cluster = ClusterTransport::new(&clock, two_servers());
    let core = core_of(cluster.clone(), &clock);
    open_files(&core);
    cluster.0.lock().map = two_servers_later();
    crate::block_on(core.refresh_map(1, core.deadline()));
    crate::block_on(core.register_at_lost_shards(|| false));
    assert_eq!(cluster.0.lock().registered, [(2, 2)]);
}

/// Promise: a client of one server learns that another one has joined it and has some of its shards.
#[test]
fn map_of_a_server_that_was_joined_is_followed() {
    let clock = manual_clock();
    let one = map_of(5, &[1], owners([(0, 1), (1, 1), (0, 1), (1, 1)]));
    let cluster = ClusterTransport::new(&clock, one);
    let core = core_of(cluster.clone(), &clock);
    open_files(&core);
    cluster.0.lock().map = two_servers_later();
    crate::block_on(core.refresh_map(1, core.deadline()));
    crate::block_on(core.register_at_lost_shards(|| false));
    assert!(cluster.0.lock().registered.contains(&(2, 2)));
}
