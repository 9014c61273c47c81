//! A client of two servers with one shard map. Each serves its own copy of the volume, so that they need no cluster.

use crate::site::{STOP, Site};
use std::process::Command;
use std::time::{Duration, Instant};
use varve_client::block_on;
use varve_env::volume_dir::VolumeDir;
use varve_meta::server::Server;
use varve_types::{MapServer, ShardId, ShardMap, ShardOwner};

/// Longer than a client needs to notice that the connection is lost.
const TAKEN_OVER_AFTER: Duration = Duration::from_millis(300);

/// The entry of a server in the maps of this test.
fn entry(server: &Server) -> MapServer {
    server.map().servers()[0].clone()
}

/// Each server has the shard at the worker that it gave it when it was alone.
fn map(version: u64, servers: &[&MapServer], owners: [u16; 4]) -> ShardMap {
    let owners = owners.map(|worker| ShardOwner { worker, term: version }).to_vec();
    ShardMap::new(version, servers.iter().map(|server| (*server).clone()).collect(), owners).unwrap()
}

/// A server of a copy of the site's volume, which proves the same key.
fn serve_copy(site: &Site) -> Server {
    let copy = site.path("copy");
    assert!(Command::new("cp").arg("-a").arg(site.volume.root()).arg(&copy).status().unwrap().success());
    site.serve_at(VolumeDir::new(copy), "other-sockets")
}

/// Promise: calls go to the server that owns the shard. If one of two servers ends, calls for its shards wait for the
/// next map, calls for other shards go on, and the client goes on with the connections that it has.
#[test]
fn client_follows_the_map_of_two_servers() {
    let site = Site::new(4);
    let second = serve_copy(&site);
    let first = site.serve();
    let (one, two) = (entry(&first), entry(&second));
    for server in [&first, &second] {
        assert_eq!(server.follow(map(7, &[&one, &two], [0, 3, 0, 3])), Ok(true));
    }
    let fs = site.connect();
    let ping = |shard| block_on(fs.ping(ShardId(shard), b"there?"));
    (0..4).for_each(|shard| ping(shard).unwrap());
    assert_eq!((first.sessions(), second.sessions()), (1, 1));

    second.stop(STOP).unwrap();
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| ping(1).map(|()| begun.elapsed()));
        ping(0).unwrap();
        ping(2).unwrap();
        assert!(begun.elapsed() < TAKEN_OVER_AFTER, "calls to the first server wait: {:?}", begun.elapsed());
        std::thread::sleep(TAKEN_OVER_AFTER.saturating_sub(begun.elapsed()));
        assert_eq!(first.follow(map(8, &[&one], [0, 1, 0, 1])), Ok(true));
        assert!(waiting.join().unwrap().unwrap() >= TAKEN_OVER_AFTER);
    });
    (0..4).for_each(|shard| ping(shard).unwrap());
    assert_eq!(fs.counters().reconnects(), 1);
    block_on(fs.shutdown()).unwrap();
}
