//! Servers that have joined others, and the lease under which replies leave.

use super::moves::{clients, fence, settled};
use super::*;
use varve_cluster::membership::REPLY_GRACE;
use varve_proto::ShardPhase;
use varve_types::InodeId;

/// Long enough for a takeover on a busy machine.
const TAKEOVER: Duration = Duration::from_secs(60);

fn joining(shards: u16) -> Site {
    let mut site = Site::new(shards);
    site.config.join = Some(JoinSettings { registry: None, lease: LEASE_DEFAULT });
    site
}

fn lookup(name: &str) -> Call {
    Call::Lookup { parent: InodeId::ROOT.0, name: name.into() }
}

/// The shards of a server, by its own map.
fn owned(server: &Server) -> Vec<(ShardId, usize)> {
    let shards = server.settings().shards.all();
    shards.filter_map(|shard| Some((shard, server.shared.shard_map.worker(shard)?))).collect()
}

/// Waits until a server owns this number of shards and has opened all of them.
fn await_open(server: &Server, site: &Site, wanted: usize) -> Vec<(ShardId, usize)> {
    let begun = Instant::now();
    let mut observers = clients(server, site, 900, Purpose::Observe);
    let mut is_open = |(shard, worker): &(ShardId, usize)| match observers[*worker].call(shard.0, Call::LocateShard) {
        Ok(Reply::ShardLocation(place)) => place.phase == ShardPhase::Open,
        Err(CallFailure::NotOwner { .. }) => false,
        other => panic!("{other:?}"),
    };
    loop {
        let owned = owned(server);
        if owned.len() == wanted && owned.iter().all(&mut is_open) {
            return owned;
        }
        assert!(begun.elapsed() < TAKEOVER, "it has {owned:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Promise: no reply leaves a server whose lease has ended; the connection ends instead, and no other one is admitted.
#[test]
fn reply_does_not_leave_after_the_lease() {
    let site = Site::new(2);
    let server = site.start();
    let mut client = TestClient::of(&server, &site, 1, Purpose::Work);
    assert!(matches!(settled(&mut client, 0, &lookup("absent")), Err(CallFailure::Errno(_))));
    server.shared.lease.end();
    client.try_call(0, lookup("absent")).expect_err("the connection has ended");
    let stream = UnixStream::connect(socket(&server, 0)).unwrap();
    let refused = TestClient::new(stream, &site.key, 1, Purpose::Work).err().expect("it welcomes nobody");
    assert!(refused.contains("lease") && refused.contains("try again"), "{refused}");
    server.stop(STOP).unwrap();
}

/// Promise: servers that join divide the shards, spread over their workers; a call at another server is told the owner.
#[test]
fn joined_servers_divide_shards_and_name_owners() {
    let site = joining(8);
    let one = site.start();
    let alone: Vec<usize> = await_open(&one, &site, 8).into_iter().map(|(_, worker)| worker).collect();
    assert_eq!(alone, [0, 1, 1, 0, 1, 0, 0, 1]);
    // Both servers are in this process, whose number is in the names of sockets.
    let unix_directory = Some(site.directory.path().join("other"));
    let other = Server::start(ServerConfig { unix_directory, ..site.config.clone() }).unwrap();
    let theirs = await_open(&other, &site, 4);
    let ours = await_open(&one, &site, 4);
    assert!(ours.iter().all(|(shard, _)| !theirs.iter().any(|(their, _)| their == shard)));
    assert_eq!(theirs.iter().filter(|(_, worker)| *worker == 0).count(), 2);

    let (foreign, worker) = theirs[0];
    match TestClient::of(&one, &site, 1, Purpose::Work).call(foreign.0, lookup("absent")) {
        Err(CallFailure::NotOwner { map }) => {
            let owner = map.to_map(one.settings().shards).unwrap().owner(foreign).unwrap();
            assert_eq!((owner.server, owner.worker), (other.shared.number, worker));
        }
        other => panic!("{other:?}"),
    }
    other.stop(STOP).unwrap();
    await_open(&one, &site, 8);
    one.stop(STOP).unwrap();
    assert!(varve_admin::fsck::check(&site.config.volume, &mut |_| {}).unwrap().is_sound());
}

/// Promise: a server that finds the registry empty opens no shard before the leases of the servers that may have joined
/// before have ended. The first server of a volume does not wait.
#[test]
fn server_waits_if_the_registry_lost_its_content() {
    let lease = Duration::from_secs(1);
    let mut site = joining(2);
    site.config.join = Some(JoinSettings { registry: None, lease });
    let opened_after = || {
        let begun = Instant::now();
        let server = site.start();
        await_open(&server, &site, 2);
        server.stop(STOP).unwrap();
        begun.elapsed()
    };
    opened_after();
    std::fs::remove_dir_all(site.config.volume.root().join("cluster/map")).unwrap();
    let waited = opened_after();
    assert!(waited >= 2 * lease + REPLY_GRACE, "{waited:?}");
}

/// Promise: a server takes a shard back that another process has opened although the cluster's map does not name it.
#[test]
fn fenced_shard_of_the_map_is_taken_back() {
    let site = joining(2);
    let server = site.start();
    await_open(&server, &site, 2);
    let intruder = fence(&site, ShardId(1));
    let worker = server.shared.shard_map.worker(ShardId(1)).unwrap();
    let mut client = TestClient::at(&server, &site, worker, 1, Purpose::Work);
    let begun = Instant::now();
    // The server notices it when it syncs the next change.
    while server.shared.shard_map.current().term(ShardId(1)) == 1 {
        let _ = client.call(1, lookup("absent"));
        let _ = client.call(1, Call::Sync);
        assert!(begun.elapsed() < TAKEOVER, "it does not take the shard back");
    }
    await_open(&server, &site, 2);
    let synced = settled(&mut client, 1, &Call::Sync);
    assert!(synced.is_ok(), "{synced:?}");
    assert_eq!(server.shared.shard_map.current().term(ShardId(1)), 2);
    drop((client, intruder));
    server.stop(STOP).unwrap();
}
