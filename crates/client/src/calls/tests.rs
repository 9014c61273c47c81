mod servers;

use super::*;
use crate::registrations::{OPENED_MAX, REGISTERED_MAX};
use crate::transport::ServerWelcome;
use futures::FutureExt;
use futures::future::{LocalBoxFuture, ready};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use varve_env::volume_dir::VolumeDir;
use varve_proto::{OpenMode, Response};
use varve_types::{
    MapServer, SessionId, ShardCount, ShardMap, ShardOwner, Timestamp, VolumeId, WorkerAddress, WorkerPlace,
};

/// A clock that advances only when the test moves it.
struct ManualClock(Mutex<Instant>);

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp { seconds: 0, nanoseconds: 0 }
    }

    fn monotonic(&self) -> Instant {
        *self.0.lock()
    }
}

/// Version `version` of the map of servers with two workers each.
fn map_of(version: u64, servers: &[u64], owners: [ShardOwner; 4]) -> ShardMap {
    let workers = vec![WorkerAddress::default(); 2];
    let server = |number: &u64| MapServer { number: *number, boot_id: String::new(), workers: workers.clone() };
    ShardMap::new(version, servers.iter().map(server).collect(), owners.to_vec()).unwrap()
}

/// The map of server `number` alone.
fn map(number: u64, version: u64, owners: [u16; 4]) -> ShardMap {
    map_of(version, &[number], owners.map(|worker| ShardOwner { worker, term: 1 }))
}

fn welcome(server: u64, map: ShardMap) -> ServerWelcome {
    ServerWelcome { server, map, embedded: false }
}

fn nobody() -> std::result::Result<ServerWelcome, FindError> {
    Err(FindError::Absent("for the test".into()))
}

/// A client of `transport`, without a volume.
fn core_of(transport: impl Transport + 'static, clock: &Arc<ManualClock>) -> Core {
    start(transport, clock).unwrap()
}

fn start(transport: impl Transport + 'static, clock: &Arc<ManualClock>) -> Result<Core> {
    let settings = VolumeSettings {
        id: VolumeId([0; 16]),
        name: "test".into(),
        shards: ShardCount::new(4).unwrap(),
        split_threshold: 8,
        inline_limit: 4096,
        sync_interval: Duration::from_secs(5),
        owner_uid: 0,
    };
    let session = ClientSession::new(SessionId(7), settings.shards);
    let config = ClientConfig::new(VolumeDir::new("/nowhere"));
    let core = Core::start(config, settings, clock.clone(), session, Box::new(transport));
    crate::block_on(core)
}

fn manual_clock() -> Arc<ManualClock> {
    Arc::new(ManualClock(Mutex::new(Instant(Duration::ZERO))))
}

/// A server that is lost at its first call, followed by one that is still opening a shard.
struct OpeningServer {
    clock: Arc<ManualClock>,
    shard: ShardId,
    /// Number of calls that it answered with busy.
    busy: Arc<AtomicUsize>,
    /// Files that were registered at it, each message by itself.
    registered: Arc<Mutex<Vec<Vec<InodeId>>>>,
    found: AtomicU64,
}

/// As long as a server delays a call for its shard.
const ANSWERED_BUSY: Duration = Duration::from_secs(5);

impl Transport for OpeningServer {
    fn find(&self) -> LocalBoxFuture<'_, std::result::Result<ServerWelcome, FindError>> {
        let server = self.found.fetch_add(1, Relaxed) + 1;
        ready(Ok(welcome(server, map(server, 1, [0; 4])))).boxed()
    }

    fn greet<'a>(&'a self, _: &'a MapServer) -> LocalBoxFuture<'a, std::result::Result<ServerWelcome, FindError>> {
        ready(nobody()).boxed()
    }

    fn follow(&self, _: &ShardMap) {}

    fn lose(&self, _: u64) {}

    fn call<'a>(
        &'a self,
        to: WorkerPlace,
        request: &'a Request,
        deadline: Instant,
    ) -> LocalBoxFuture<'a, std::result::Result<Response, CallError>> {
        let answer = |result| Ok(Response { id: request.id, result });
        let mut now = self.clock.0.lock();
        let answered = if to.server == 1 {
            Err(CallError::Lost { server: 1, why: "for the test".into() })
        } else if request.shard != self.shard.0 {
            if let Call::Register { files } = &request.call {
                self.registered.lock().push(files.iter().map(|file| InodeId(file.inode)).collect());
            }
            answer(Ok(Reply::Done))
        } else if now.after(ANSWERED_BUSY) > deadline {
            *now = deadline;
            Err(CallError::Deadline)
        } else {
            *now = now.after(ANSWERED_BUSY);
            self.busy.fetch_add(1, Relaxed);
            answer(Err(wire::CallFailure::Busy))
        };
        ready(answered).boxed()
    }

    fn pause(&self, wait: Duration) -> LocalBoxFuture<'_, ()> {
        let mut now = self.clock.0.lock();
        *now = now.after(wait);
        ready(()).boxed()
    }

    fn close(&self) {}
}

/// Promise: the files of a shard are registered at the next server with one message, before the first call to that
/// shard. A shard that does not answer delays no call to another one: its files are registered later.
#[test]
fn opening_shard_does_not_block_other_shards() {
    let clock = manual_clock();
    let (opening, busy) = (ShardId(2), Arc::<AtomicUsize>::default());
    let registered = Arc::<Mutex<Vec<Vec<InodeId>>>>::default();
    let transport = OpeningServer {
        clock: Arc::clone(&clock),
        shard: opening,
        busy: Arc::clone(&busy),
        registered: Arc::clone(&registered),
        found: AtomicU64::new(0),
    };
    let core = core_of(transport, &clock);
    let files: Vec<InodeId> = (0..40).map(|number| InodeId::new(ShardId(number % 4), number.into())).collect();
    files.iter().for_each(|inode| core.register(*inode, OpenMode::Read, None));
    let of = |shard: ShardId| files.iter().copied().filter(move |inode| inode.shard() == shard).collect::<Vec<_>>();
    let messages = || {
        let mut messages = std::mem::take(&mut *registered.lock());
        messages.iter_mut().for_each(|files| files.sort());
        messages.sort();
        messages
    };
    for _ in 0..2 {
        let asked = crate::block_on(core.ask_shard(ShardId(0), Call::Sync)).map_err(|failure| failure.to_string());
        assert!(matches!(asked, Ok(Reply::Done)), "{asked:?}");
    }
    assert_eq!(core.map().servers()[0].number, 2);
    assert_eq!(messages(), [of(ShardId(0))], "once, and not those of other shards");
    crate::block_on(core.register_at_lost_shards(|| false));
    assert_eq!(messages(), [of(ShardId(1)), of(ShardId(3))]);
    assert_eq!((busy.load(Relaxed), clock.monotonic().0.as_secs()), (1, REGISTERED_MAX.as_secs()));
    // Closed before the server has replied: its release is sent when the reply is due.
    core.unregister(of(opening)[0]);
    assert_eq!(core.session.untold(), []);
    core.session.release_due(clock.monotonic().after(OPENED_MAX));
    assert_eq!(core.session.untold(), [opening]);
    // It is tried again, and a call to it is not delayed once more.
    crate::block_on(core.register_at_lost_shards(|| false));
    assert_eq!(busy.load(Relaxed), 2);
    assert!(messages().is_empty());
}

/// A server whose last shard has moved from the first worker to the second since the client came.
struct MovedServer {
    clock: Arc<ManualClock>,
    /// The worker and the id of each call.
    asked: Arc<Mutex<Vec<(usize, wire::CallId)>>>,
    /// Replies "not the owner", with the client's own map, that come before the move.
    before: usize,
}

impl Transport for MovedServer {
    fn find(&self) -> LocalBoxFuture<'_, std::result::Result<ServerWelcome, FindError>> {
        ready(Ok(welcome(1, map(1, 1, [0; 4])))).boxed()
    }

    fn greet<'a>(&'a self, _: &'a MapServer) -> LocalBoxFuture<'a, std::result::Result<ServerWelcome, FindError>> {
        ready(nobody()).boxed()
    }

    fn follow(&self, _: &ShardMap) {}

    fn lose(&self, _: u64) {}

    fn call<'a>(
        &'a self,
        to: WorkerPlace,
        request: &'a Request,
        _deadline: Instant,
    ) -> LocalBoxFuture<'a, std::result::Result<Response, CallError>> {
        let mut asked = self.asked.lock();
        asked.push((to.worker, request.id));
        let map = match asked.len() > self.before {
            true => map(1, 2, [0, 0, 0, 1]),
            false => map(1, 1, [0; 4]),
        };
        let map = wire::WireShardMap::from(&map);
        let result = if to.worker == 1 { Ok(Reply::Done) } else { Err(wire::CallFailure::NotOwner { map }) };
        ready(Ok(Response { id: request.id, result })).boxed()
    }

    fn pause(&self, wait: Duration) -> LocalBoxFuture<'_, ()> {
        let mut now = self.clock.0.lock();
        *now = now.after(wait);
        ready(()).boxed()
    }

    fn close(&self) {}
}

/// Promise: a call for a shard that has moved goes to its new worker at once, under the same id. It waits only while the
/// server knows no other owner either, and at most until its deadline.
#[test]
fn call_follows_a_moved_shard() {
    for before in [0, 2] {
        let (clock, asked) = (manual_clock(), Arc::<Mutex<Vec<_>>>::default());
        let core = core_of(MovedServer { clock: clock.clone(), asked: asked.clone(), before }, &clock);
        let answered = crate::block_on(core.ask_shard(ShardId(3), Call::Sync));
        assert!(matches!(answered, Ok(Reply::Done)));
        let asked = std::mem::take(&mut *asked.lock());
        let workers: Vec<usize> = asked.iter().map(|(worker, _)| *worker).collect();
        assert_eq!(workers, [vec![0; before + 1], vec![1]].concat());
        assert!(asked.iter().all(|(_, id)| *id == asked[0].1), "{asked:?}");
        assert_eq!(clock.monotonic().0.is_zero(), before == 0, "it waits for nothing but the server");
        assert_eq!((core.map().servers()[0].number, core.map().version()), (1, 2));
    }
    let clock = manual_clock();
    let core = core_of(MovedServer { clock: clock.clone(), asked: Arc::default(), before: usize::MAX }, &clock);
    let failure = crate::block_on(core.ask_shard(ShardId(3), Call::Sync)).unwrap_err();
    assert_eq!(failure.errno, Errno::ETIMEDOUT, "{failure}");
}

/// Servers that answer the first looks for them in a given way.
struct Beginning {
    clock: Arc<ManualClock>,
    looks: Mutex<Vec<FindError>>,
}

impl Transport for Beginning {
    fn find(&self) -> LocalBoxFuture<'_, std::result::Result<ServerWelcome, FindError>> {
        let next = self.looks.lock().pop();
        ready(next.map_or_else(|| Ok(welcome(1, map(1, 1, [0; 4]))), Err)).boxed_local()
    }

    fn greet<'a>(&'a self, _: &'a MapServer) -> LocalBoxFuture<'a, std::result::Result<ServerWelcome, FindError>> {
        ready(nobody()).boxed_local()
    }

    fn follow(&self, _: &ShardMap) {}

    fn lose(&self, _: u64) {}

    fn call<'a>(
        &'a self,
        _: WorkerPlace,
        _: &'a Request,
        _: Instant,
    ) -> LocalBoxFuture<'a, std::result::Result<Response, CallError>> {
        ready(Err(CallError::Deadline)).boxed_local()
    }

    fn pause(&self, wait: Duration) -> LocalBoxFuture<'_, ()> {
        let mut now = self.clock.0.lock();
        *now = now.after(wait);
        ready(()).boxed_local()
    }

    fn close(&self) {}
}

/// Promise: a client that starts while a server's lease is late, or while the server is crowded, waits until its deadline; it
/// does not wait where nobody serves, or where it is refused.
#[test]
fn client_waits_for_a_server_that_is_not_ready() {
    let clock = manual_clock();
    let started = |looks: Vec<FindError>| {
        let begun = clock.monotonic();
        let core = start(Beginning { clock: clock.clone(), looks: Mutex::new(looks) }, &clock);
        (core.map(drop).map_err(|failure| failure.errno), clock.monotonic().since(begun))
    };
    let late = || FindError::Unready("its lease is late".into());
    assert!(matches!(started(vec![late(); 10]), (Ok(()), _)));
    let (ended, waited) = started(vec![late(); 1000]);
    assert_eq!(ended, Err(Errno::EHOSTDOWN));
    assert!(waited >= ClientConfig::DEADLINE_DEFAULT, "{waited:?}");
    assert_eq!(started(vec![FindError::Absent("nobody".into())]), (Err(Errno::EHOSTDOWN), Duration::ZERO));
    assert_eq!(started(vec![FindError::Refused("no".into())]), (Err(Errno::EACCES), Duration::ZERO));
}
