//! Members that die, stop, are cut off and come back, on simulated time.

mod cluster;

use cluster::{Cluster, LEASE, Node};
use std::time::Duration;
use varve_cluster::map::MapRefusal;
use varve_cluster::membership::{EndCause, MembershipError, Standing, evict, leave};
use varve_env::random::Seeded;

/// By then the others have a dead server's shards: its lease and a tenth since its last renewal, and two rounds.
const TAKEN_OVER: Duration = Duration::from_millis(2200 + 2 * 700);

#[test]
fn shards_of_a_dead_server_go_to_the_others() {
    Cluster::run(async |cluster| {
        let mut nodes = cluster.join(3).await;
        let dead = nodes.remove(1);
        let owned = dead.owned();
        assert!(!owned.is_empty());
        dead.kill();
        tokio::time::sleep(TAKEN_OVER).await;
        let map = cluster.map().await;
        assert!(!map.members.contains_key(&dead.server));
        assert!(
            owned.iter().all(|shard| map.ownership(*shard).unwrap().owner.is_some_and(|owner| owner != dead.server))
        );
        assert!(nodes.iter().all(|node| node.is_member() && node.lease.is_valid()));
    });
}

/// A stopped process sees nothing of the time that passes.
#[test]
fn stopped_server_that_wakes_up_late_owns_nothing() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(3).await;
        nodes[0].stop();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert!(!nodes[0].lease.is_valid());
        nodes[0].go_on();
        tokio::time::sleep(LEASE).await;
        assert_eq!(*nodes[0].standing.borrow(), Standing::Ended(EndCause::TakenForDead));
        assert!(!nodes[0].lease.is_valid());
    });
}

/// Nobody can renew: that is the store's fault, and no server's.
#[test]
fn no_server_is_killed_while_the_registry_hangs() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(4).await;
        let version = cluster.map().await.version;
        cluster.network.hang_all(true);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(nodes.iter().all(|node| !node.lease.is_valid()));
        cluster.network.hang_all(false);
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(cluster.map().await.version, version);
        assert!(nodes.iter().all(|node| node.is_member() && node.lease.is_valid()));
    });
}

/// Promise: servers whose registry has lost its maps end and say so, also if an older map is left.
#[test]
fn servers_end_when_the_maps_are_lost() {
    for lost in [1, usize::MAX] {
        Cluster::run(async |cluster| {
            let nodes = cluster.join(3).await;
            cluster.lose_maps(lost).await;
            tokio::time::sleep(LEASE * 2).await;
            for node in &nodes {
                assert!(!node.lease.is_valid());
                let Standing::Ended(EndCause::RegistryLost(reason)) = &*node.standing.borrow() else {
                    panic!("it goes on")
                };
                assert!(reason.contains("has lost the cluster's map"), "{reason}");
            }
        });
    }
}

#[test]
fn cut_off_server_loses_its_lease_before_others_get_its_shards() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(3).await;
        let (cut, version) = (&nodes[2], cluster.map().await.version);
        cluster.network.hang(cut.server, true);
        let mut others = nodes[0].standing.clone();
        let gone = |standing: &Standing| matches!(standing, Standing::Member(map) if map.version > version);
        tokio::time::timeout(TAKEN_OVER, others.wait_for(gone)).await.unwrap().unwrap();
        assert!(!cut.lease.is_valid());
        cluster.network.hang(cut.server, false);
        tokio::time::sleep(LEASE).await;
        assert_eq!(*cut.standing.borrow(), Standing::Ended(EndCause::TakenForDead));
    });
}

/// Its lease may run out while nobody looks: it goes on as if nothing had been.
#[test]
fn server_that_was_late_and_not_killed_goes_on() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(1).await;
        nodes[0].stop();
        tokio::time::sleep(Duration::from_secs(100)).await;
        nodes[0].go_on();
        tokio::time::sleep(LEASE).await;
        assert!(nodes[0].is_member() && nodes[0].lease.is_valid());
    });
}

#[test]
fn server_that_left_gives_its_shards_away() {
    Cluster::run(async |cluster| {
        let mut nodes = cluster.join(2).await;
        let left = nodes.pop().unwrap();
        left.kill();
        leave(&*cluster.registry(), left.server).await.unwrap();
        let map = cluster.map().await;
        assert_eq!(map.shards_of(nodes[0].server).count(), map.shards.len());
        leave(&*cluster.registry(), left.server).await.unwrap();
    });
}

#[test]
fn evicted_server_stops_before_others_get_its_shards() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(2).await;
        let registry = cluster.registry();
        let evicted = evict(&*registry, nodes[1].server);
        let mut others = nodes[0].standing.clone();
        let gone = async {
            let is_gone =
                |s: &Standing| matches!(s, Standing::Member(map) if !map.members.contains_key(&nodes[1].server));
            others.wait_for(is_gone).await.unwrap();
            assert!(!nodes[1].lease.is_valid());
        };
        let (evicted, ()) = futures::join!(evicted, gone);
        evicted.unwrap();
        assert_eq!(*nodes[1].standing.borrow(), Standing::Ended(EndCause::Evicted));
        let again = evict(&*registry, nodes[1].server).await.unwrap_err();
        assert!(matches!(again, MembershipError::Map(MapRefusal::NotAMember(_))));
    });
}

/// Promise: a server on a second host joins once the others sync before they reply, and have synced what they had replied to.
#[test]
fn server_on_another_host_waits_until_others_sync() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(2).await;
        assert_eq!(cluster.map().await.synced, None, "one host");
        let registry = cluster.registry();
        let others = async {
            let mut standing = nodes[0].standing.clone();
            for node in &nodes {
                let asked = |standing: &Standing| matches!(standing, Standing::Member(map) if map.synced.is_some());
                standing.wait_for(asked).await.unwrap();
                tokio::time::sleep(LEASE * 2).await;
                assert_eq!(cluster.map().await.members.len(), 2, "it has not joined yet");
                let confirmed = cluster.map().await.sync_confirmed(node.server).unwrap();
                registry.publish(&confirmed).await.unwrap();
            }
        };
        let (far, ()) = futures::join!(Node::join_from(&cluster, "another boot"), others);
        let far = far.unwrap();
        let map = cluster.map().await;
        assert_eq!(map.synced, Some([nodes[0].server, nodes[1].server, far.server].into()));
        let near = Node::join(&cluster).await.unwrap();
        assert!(cluster.map().await.synced.is_some_and(|synced| synced.contains(&near.server)));
    });
}

/// Nobody else would notice it.
#[test]
fn server_on_another_host_replaces_dead_ones() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(1).await;
        nodes[0].kill();
        let far = Node::join_from(&cluster, "another boot").await.unwrap();
        let map = cluster.map().await;
        assert_eq!(map.members.keys().copied().collect::<Vec<_>>(), [far.server]);
    });
}

/// A host that lost power stays in the map: no other member can remove it.
#[test]
fn dead_members_without_tcp_do_not_block_a_join() {
    Cluster::run(async |cluster| {
        let dead = Node::join_without_tcp(&cluster).await.unwrap();
        let refused = Node::join_from(&cluster, "another boot").await.err().unwrap();
        assert!(matches!(refused, MembershipError::Map(MapRefusal::OtherWithoutTcp { .. })), "{refused}");
        dead.kill();
        let joined = Node::join_from(&cluster, "another boot").await.unwrap();
        let map = cluster.map().await;
        assert_eq!(map.members.keys().collect::<Vec<_>>(), [&joined.server]);
        assert!(map.shards.iter().all(|shard| shard.owner == Some(joined.server)));
    });
}

#[test]
fn map_of_another_volume_is_refused() {
    Cluster::run(async |cluster| {
        cluster.join(1).await;
        let refused = Node::join_with_shards(&cluster, 32).await.err().unwrap();
        assert!(matches!(refused, MembershipError::OtherVolume { volume: 32, map: 16 }), "{refused}");
    });
}

/// Promise: whatever happens, at no moment do two servers with a valid lease believe that they own one shard. A server
/// that takes a shard over waits for [`REPLY_GRACE`](varve_cluster::membership::REPLY_GRACE) more.
#[test]
fn two_servers_never_own_one_shard_with_valid_leases() {
    let seeds = std::env::var("VARVE_SIM_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let all = if std::env::var_os("VARVE_SOAK").is_some() { 0..3_000 } else { 0..100 };
    for seed in seeds.map_or(all, |seed| seed..seed + 1) {
        let failed = std::panic::catch_unwind(|| chaos(seed));
        assert!(failed.is_ok(), "seed {seed}: VARVE_SIM_SEED={seed} replays it");
    }
}

fn chaos(seed: u64) {
    Cluster::run(async move |cluster| {
        let mut chance = Seeded::new(seed);
        cluster.network.delays(chance.number());
        let mut nodes = cluster.join(2 + chance.below(4)).await;
        for _ in 0..20 {
            let node = &nodes[chance.below(nodes.len())];
            match chance.below(10) {
                0 => node.stop(),
                1 | 2 => nodes.iter().for_each(Node::go_on),
                3 => node.kill(),
                4 => cluster.network.hang(node.server, true),
                5 => cluster.network.hang_all(true),
                6 if nodes.len() < 8 => {
                    // The registry may hang.
                    if let Ok(Ok(joined)) = tokio::time::timeout(LEASE, Node::join(&cluster)).await {
                        nodes.push(joined);
                    }
                }
                7 => drop(tokio::time::timeout(LEASE * 3, evict(&*cluster.registry(), node.server)).await),
                _ => {
                    cluster.network.hang_all(false);
                    nodes.iter().for_each(|node| cluster.network.hang(node.server, false));
                }
            }
            for _ in 0..chance.below(200) {
                tokio::time::sleep(Duration::from_millis(chance.below(30) as u64)).await;
                cluster::check_owners(&nodes);
            }
        }
        // When all is well again, each shard has one owner, which knows it.
        cluster.network.hang_all(false);
        nodes.iter().for_each(|node| cluster.network.hang(node.server, false));
        nodes.iter().for_each(Node::go_on);
        tokio::time::sleep(TAKEN_OVER * 4).await;
        let map = cluster.map().await;
        let alive: Vec<_> = nodes.iter().filter(|node| node.is_member()).collect();
        assert!(alive.iter().all(|node| node.lease.is_valid() && node.map().version == map.version), "{map:?}");
        // If all are dead, nobody is left to notice it.
        assert!(alive.is_empty() || map.members.len() == alive.len(), "{map:?}");
        assert!(alive.is_empty() || map.shards.iter().all(|shard| shard.owner.is_some()), "{map:?}");
        cluster::check_owners(&nodes);
    });
}
