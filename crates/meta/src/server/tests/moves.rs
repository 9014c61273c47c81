//! Shards that move between workers, and a shard that another server takes over.

use super::client::request;
use super::*;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use varve_proto::{ShardPhase, WireShardMap};
use varve_store::Table;
use varve_types::InodeId;

/// One client of each worker.
pub fn clients(server: &Server, site: &Site, session: u64, purpose: Purpose) -> [TestClient<UnixStream>; 2] {
    [0, 1].map(|worker| TestClient::at(server, site, worker, session, purpose))
}

/// The owner of each shard.
fn owners(map: &WireShardMap) -> Vec<u16> {
    map.owners.iter().map(|owner| owner.worker).collect()
}

fn mkdir(name: &str) -> Call {
    Call::MakeDirectory { parent: InodeId::ROOT.0, name: name.into(), mode: 0o755 }
}

fn lookup(name: &str) -> Call {
    Call::Lookup { parent: InodeId::ROOT.0, name: name.into() }
}

/// Calls again while the shard is busy or on its way.
pub fn settled(client: &mut TestClient<UnixStream>, shard: u16, call: &Call) -> Result<Reply, CallFailure> {
    let begun = Instant::now();
    loop {
        match client.call(shard, call.clone()) {
            Err(CallFailure::Busy) if begun.elapsed() < STOP => {}
            answer => return answer,
        }
    }
}

/// A new directory whose home is shard 1.
fn directory_at_shard_1(server: &Server, site: &Site) -> u64 {
    let mut client = TestClient::of(server, site, 90, Purpose::Work);
    let made = (0..).map(|number| match settled(&mut client, 0, &mkdir(&format!("d{number}"))) {
        Ok(Reply::Node(made)) => made.inode,
        other => panic!("{other:?}"),
    });
    made.take(1000).find(|inode| InodeId(*inode).shard() == ShardId(1)).expect("homes are spread")
}

pub fn moved(answer: Result<Reply, CallFailure>) -> (u16, u16) {
    match answer {
        Ok(Reply::ShardMoved { from, to, microseconds }) => {
            assert_eq!(microseconds == 0, from == to);
            (from, to)
        }
        other => panic!("{other:?}"),
    }
}

pub fn stays(answer: Result<Reply, CallFailure>) -> String {
    match answer {
        Ok(Reply::ShardStays { reason }) => reason,
        other => panic!("{other:?}"),
    }
}

/// Promise: after a move the old worker refuses calls with the new map, and the new one has every row and every reply to
/// a change.
#[test]
fn moved_shard_serves_with_its_replies() {
    let site = Site::new(4);
    let server = site.start();
    let mut workers = clients(&server, &site, 1, Purpose::Work);
    let first = request(1, 77, 1, 0, mkdir("made"));
    let reply = workers[0].exchange(first.clone()).unwrap();
    assert!(matches!(reply, Ok(Reply::Node(_))), "{reply:?}");
    let mut admin = clients(&server, &site, 2, Purpose::Administer);
    assert_eq!(moved(admin[0].call(0, Call::MoveShard { worker: 1 })), (0, 1));

    for refused in [workers[0].call(0, lookup("made")), admin[0].call(0, Call::MoveShard { worker: 0 })] {
        let Err(CallFailure::NotOwner { map }) = refused else { panic!("{refused:?}") };
        assert_eq!((map.version, owners(&map)), (2, vec![1, 1, 0, 1]));
    }
    assert!(matches!(settled(&mut workers[1], 0, &lookup("made")), Ok(Reply::Entry { .. })));
    assert_eq!(workers[1].exchange(first).unwrap(), reply, "the change was made once");
    assert!(matches!(settled(&mut workers[1], 0, &mkdir("next")), Ok(Reply::Node(_))));
    match admin[1].call(0, Call::LocateShard) {
        Ok(Reply::ShardLocation(place)) => assert_eq!((place.worker, place.phase), (1, ShardPhase::Open)),
        other => panic!("{other:?}"),
    }

    assert_eq!(moved(admin[1].call(0, Call::MoveShard { worker: 1 })), (1, 1), "it is there");
    assert_eq!(moved(admin[1].call(0, Call::MoveShard { worker: 0 })), (1, 0));
    assert!(matches!(settled(&mut workers[0], 0, &lookup("next")), Ok(Reply::Entry { .. })));
    drop((workers, admin));
    server.stop(STOP).unwrap();
    assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}

/// Promise: a move that cannot be made leaves the shard where it is, with the reason.
#[test]
fn refused_move_leaves_the_shard() {
    let site = Site::new(4);
    let server = site.start();
    let mut admin = clients(&server, &site, 2, Purpose::Administer);
    assert!(matches!(settled(&mut admin[0], 0, &Call::ShardStatus), Ok(Reply::ShardStatus(_))));
    for purpose in [Purpose::Work, Purpose::Observe] {
        let mut other = TestClient::of(&server, &site, 3 + u64::from(purpose == Purpose::Work), purpose);
        let refused = other.call(0, Call::MoveShard { worker: 1 });
        assert_eq!(refused, Err(CallFailure::Errno(libc::EPERM)), "{purpose:?}");
    }
    assert_eq!(admin[0].call(0, mkdir("mine")), Err(CallFailure::Errno(libc::EROFS)), "it only administers");
    let reason = stays(admin[0].call(0, Call::MoveShard { worker: 2 }));
    assert_eq!(reason, "there is no worker 2: the server has workers 0 to 1");
    let snapshot = Call::TakeSnapshot { number: 9 };
    assert_eq!(settled(&mut admin[0], 0, &snapshot), Ok(Reply::Done));
    let reason = stays(admin[0].call(0, Call::MoveShard { worker: 1 }));
    assert!(reason.contains("snapshot"), "{reason}");
    assert_eq!(admin[0].call(0, Call::ReleaseSnapshot { number: 9 }), Ok(Reply::Done));
    assert!(matches!(admin[0].call(0, lookup("none")), Err(CallFailure::Errno(libc::ENOENT))));
    assert_eq!(moved(admin[0].call(0, Call::MoveShard { worker: 1 })), (0, 1));
}

/// Promise: a shard whose store takes no writes is not moved, and still serves.
#[test]
fn read_only_store_refuses_a_move() {
    let site = Site::new(2);
    let server = site.start();
    let mut worker = TestClient::at(&server, &site, 1, 1, Purpose::Work);
    let directory = directory_at_shard_1(&server, &site);
    let tables = site.config.volume.shard(ShardId(1));
    let itself = tables.path().to_str().unwrap();
    let Some(read_only) = MountGuard::mount(&["--bind", itself], tables.path()) else { return };
    read_only.turn_read_only();
    let mut admin = TestClient::at(&server, &site, 1, 2, Purpose::Administer);
    let reason = stays(admin.call(1, Call::MoveShard { worker: 0 }));
    assert!(reason.contains("shard 1"), "{reason}");
    let list = Call::List { directory, from: 0, bytes_max: 1000 };
    assert!(matches!(settled(&mut worker, 1, &list), Ok(Reply::Listing(_))), "it still serves: {reason}");
    drop(read_only);
    drop((worker, admin));
    server.stop(STOP).unwrap();
    assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}

/// Promise: while shards move back and forth, every change over several shards is made once, and no call fails.
#[test]
fn changes_over_shards_survive_moves() {
    let site = Site::new(4);
    let server = site.start();
    let ended = AtomicBool::new(false);
    let moves = std::thread::scope(|scope| {
        for session in 10..13 {
            let (server, site, ended) = (&server, &site, &ended);
            scope.spawn(move || work(server, site, session, ended));
        }
        let moves = scope.spawn(|| move_about(&server, &site));
        let moves = moves.join();
        ended.store(true, SeqCst);
        moves.unwrap()
    });
    assert!(moves > 3, "only {moves} moves");
    server.stop(STOP).unwrap();
    assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}

/// Asks the worker that the map names, as clients do.
struct Router {
    clients: [TestClient<UnixStream>; 2],
    owners: Vec<u16>,
    session: u64,
    number: u64,
}

impl Router {
    fn new(server: &Server, site: &Site, session: u64, purpose: Purpose) -> Router {
        Router { clients: clients(server, site, session, purpose), owners: vec![0, 1, 0, 1], session, number: 0 }
    }

    fn ask(&mut self, shard: u16, call: Call) -> Result<Reply, CallFailure> {
        self.number += 1;
        let request = request(self.session, 5, self.number, shard, call);
        loop {
            let client = &mut self.clients[usize::from(self.owners[usize::from(shard)])];
            match client.exchange(request.clone()).unwrap() {
                Err(CallFailure::NotOwner { map }) => self.owners = owners(&map),
                Err(CallFailure::Busy) => std::thread::sleep(Duration::from_millis(1)),
                answer => return answer,
            }
        }
    }
}

fn move_about(server: &Server, site: &Site) -> u32 {
    let mut admin = Router::new(server, site, 2, Purpose::Administer);
    let (begun, mut moves) = (Instant::now(), 0);
    for number in 0_u16.. {
        let (shard, worker) = (number % 4, (number / 4 + number) % 2);
        match admin.ask(shard, Call::MoveShard { worker }) {
            Ok(Reply::ShardMoved { from, to, .. }) => moves += u32::from(from != to),
            Ok(Reply::ShardStays { .. }) => {}
            other => panic!("{other:?}"),
        }
        if begun.elapsed() > Duration::from_secs(3) {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    moves
}

/// Makes, looks up and removes directories, whose rows are at other shards than their names, until `ended`.
fn work(server: &Server, site: &Site, session: u64, ended: &AtomicBool) {
    let mut router = Router::new(server, site, session, Purpose::Work);
    for number in 0.. {
        let name = format!("s{session}-{number}");
        let made = match router.ask(0, mkdir(&name)) {
            Ok(Reply::Node(made)) => InodeId(made.inode),
            other => panic!("{name}: {other:?}"),
        };
        let list = Call::List { directory: made.0, from: 0, bytes_max: 1000 };
        let listed = router.ask(made.shard().0, list);
        assert!(matches!(listed, Ok(Reply::Listing(_))), "{name}: {listed:?}");
        let remove = Call::RemoveDirectory { parent: InodeId::ROOT.0, name: name.clone().into() };
        let removed = router.ask(0, remove);
        assert!(matches!(removed, Ok(Reply::Removed { .. })), "{name}: {removed:?}");
        if ended.load(SeqCst) {
            return;
        }
    }
}

/// Opens the table of a shard, as a server does that has taken the shard over.
pub fn fence(site: &Site, shard: ShardId) -> (Table, tokio::runtime::Runtime) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let volume = site.config.volume.clone();
    let config = TableConfig {
        shard,
        store: PosixStore::open(volume.shards()).unwrap(),
        volume,
        sync_interval: Duration::from_millis(50),
        cache: TableCache::with_memtables(1 << 20, 1 << 20),
        background: runtime.handle().clone(),
        merges: Merges::on(runtime.handle().clone()),
        memtable_bytes: 1 << 20,
        sync_writes: Default::default(),
        may_claim: None,
    };
    (runtime.block_on(Table::open(config)).unwrap(), runtime)
}

/// Promise: a shard that another server has taken over is released for good: calls get an error that says so, and it is
/// not taken back.
#[test]
fn fenced_shard_is_released() {
    let site = Site::new(2);
    let server = site.start();
    let directory = directory_at_shard_1(&server, &site);
    let mut client = TestClient::at(&server, &site, 1, 1, Purpose::Work);
    assert_eq!(settled(&mut client, 1, &Call::Sync), Ok(Reply::Done));
    let (successor, runtime) = fence(&site, ShardId(1));
    let begun = Instant::now();
    let message = loop {
        let (name, node) = (format!("f{}", client.number).into_bytes(), varve_proto::NewNode::Regular);
        let _ = client.call(1, Call::Create { parent: directory, name, node, mode: 0o600, open: false });
        match client.call(1, Call::Sync) {
            Err(CallFailure::Server { message, .. }) if message.contains("another server has taken") => break message,
            answer => assert!(begun.elapsed() < STOP, "{answer:?}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(message.contains("shard 1") && message.contains("varve status"), "{message}");
    match client.call(1, Call::LocateShard) {
        Ok(Reply::ShardLocation(place)) => assert_eq!(place.phase, ShardPhase::Released),
        other => panic!("{other:?}"),
    }
    std::thread::sleep(Duration::from_millis(1500));
    assert!(matches!(client.call(1, Call::Sync), Err(CallFailure::Server { .. })));
    assert!(!successor.has_ended(), "it still owns the shard");
    runtime.block_on(successor.sync()).unwrap();
    drop(client);
    let _ = server.stop(STOP);
    runtime.block_on(successor.close()).unwrap();
}
