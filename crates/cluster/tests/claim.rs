//! Claims of commands that work in a volume without servers, on simulated time.

mod cluster;

use cluster::{Cluster, LEASE, Node};
use std::rc::Rc;
use std::time::Duration;
use tokio::task::AbortHandle;
use varve_cluster::claim::{ClaimError, VolumeClaim, living_members};
use varve_cluster::map::{ClusterMap, MapRefusal};
use varve_cluster::membership::{MembershipError, evict};
use varve_env::random::Seeded;

/// A command that was not killed.
fn keep(claim: &Rc<VolumeClaim>) -> AbortHandle {
    let claim = Rc::clone(claim);
    tokio::task::spawn_local(async move { claim.keep().await }).abort_handle()
}

fn holder(map: &ClusterMap) -> Option<varve_cluster::map::ServerId> {
    map.claim.as_ref().map(|claim| claim.holder)
}

fn is_claimed<T>(joined: Result<T, MembershipError>) -> bool {
    let refused = joined.err().expect("it is refused");
    let text = refused.to_string();
    assert!(text.contains("`varve fsck`, process 99 on host host"), "{text}");
    matches!(refused, MembershipError::Map(MapRefusal::Claimed { .. }))
}

#[test]
fn claim_keeps_servers_away_until_it_is_released() {
    Cluster::run(async |cluster| {
        let claim = Rc::new(cluster.claim().await.unwrap());
        let kept = keep(&claim);
        tokio::time::sleep(LEASE * 10).await;
        assert!(claim.is_valid());
        assert!(is_claimed(Node::join(&cluster).await));
        assert_eq!(cluster.chains().await, 1, "a refused join leaves no renewals");
        assert!(matches!(cluster.claim().await, Err(ClaimError::Membership(MembershipError::Map(_)))));
        assert!(claim.is_valid());
        kept.abort();
        claim.release().await.unwrap();
        assert!(!claim.is_valid());
        Node::join(&cluster).await.unwrap();
    });
}

#[test]
fn claim_names_living_servers_and_removes_dead_ones() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(3).await;
        let Err(ClaimError::InUse(living)) = cluster.claim().await else { panic!("they live") };
        assert_eq!(
            living.iter().map(|server| server.server).collect::<Vec<_>>(),
            [1, 2, 3].map(varve_cluster::map::ServerId)
        );
        assert!(nodes.iter().all(|node| node.is_member() && node.lease.is_valid()));
        assert_eq!(cluster.chains().await, 3, "a refused claim leaves no renewals");
        nodes.iter().for_each(Node::kill);
        let claim = cluster.claim().await.unwrap();
        assert!(nodes.iter().all(|node| !node.lease.is_valid()));
        let map = cluster.map().await;
        assert!(map.members.is_empty() && map.claim.is_some());
        claim.release().await.unwrap();
    });
}

/// All that is known of a server that hangs together with the registry is that nobody can renew.
#[test]
fn claim_kills_no_server_while_the_registry_hangs() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(2).await;
        let hangs = async {
            tokio::time::sleep(LEASE / 4).await;
            cluster.network.hang_all(true);
            tokio::time::sleep(LEASE * 10).await;
            cluster.network.hang_all(false);
        };
        let (claimed, ()) = futures::join!(cluster.claim(), hangs);
        assert!(matches!(claimed, Err(ClaimError::InUse(_))));
        assert!(nodes.iter().all(Node::is_member));
    });
}

/// Promise: a look for living servers takes none for dead because the registry hung.
#[test]
fn look_for_servers_outlasts_a_registry_that_hangs() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(2).await;
        let hangs = async {
            tokio::time::sleep(LEASE / 24).await;
            cluster.network.hang_all(true);
            tokio::time::sleep(LEASE * 10).await;
            cluster.network.hang_all(false);
        };
        let (registry, clock) = (cluster.registry(), cluster.clock());
        let map = cluster.map().await;
        let (living, ()) = futures::join!(living_members(&*registry, &*clock, &map), hangs);
        assert_eq!(living.unwrap().len(), 2);
        nodes[0].kill();
        let living = living_members(&*registry, &*clock, &map).await.unwrap();
        assert_eq!(living.iter().map(|server| server.server).collect::<Vec<_>>(), [nodes[1].server]);
    });
}

#[test]
fn claim_of_a_killed_command_ends_with_the_next_join() {
    Cluster::run(async |cluster| {
        let claim = cluster.claim().await.unwrap();
        Node::join(&cluster).await.unwrap();
        assert!(!claim.is_valid());
        assert_eq!(holder(&cluster.map().await), None);
    });
}

#[test]
fn evicted_claim_ends_before_servers_join() {
    Cluster::run(async |cluster| {
        let claim = Rc::new(cluster.claim().await.unwrap());
        keep(&claim);
        let number = holder(&cluster.map().await).expect("it is claimed");
        evict(&*cluster.registry(), number).await.unwrap();
        assert!(!claim.is_valid());
        Node::join(&cluster).await.unwrap();
    });
}

/// Promise: while a claim is valid, no server owns a shard with a valid lease.
#[test]
fn valid_claims_and_owners_exclude_each_other() {
    let all = if std::env::var_os("VARVE_SOAK").is_some() { 0..3_000 } else { 0..60 };
    for seed in all {
        let failed = std::panic::catch_unwind(|| chaos(seed));
        assert!(failed.is_ok(), "seed {seed}");
    }
}

fn chaos(seed: u64) {
    Cluster::run(async move |cluster| {
        let mut chance = Seeded::new(seed);
        cluster.network.delays(chance.number());
        let mut nodes = cluster.join(2).await;
        let mut claims: Vec<(Rc<VolumeClaim>, AbortHandle)> = Vec::new();
        for _ in 0..20 {
            let node = &nodes[chance.below(nodes.len())];
            match chance.below(8) {
                0 => node.stop(),
                1 => node.go_on(),
                2 => node.kill(),
                3 => cluster.network.hang_all(true),
                4 => cluster.network.hang_all(false),
                5 => {
                    if let Ok(Ok(joined)) = tokio::time::timeout(LEASE * 3, Node::join(&cluster)).await {
                        nodes.push(joined);
                    }
                }
                6 => {
                    if let Ok(Ok(claim)) = tokio::time::timeout(LEASE * 3, cluster.claim()).await {
                        let claim = Rc::new(claim);
                        claims.push((Rc::clone(&claim), keep(&claim)));
                    }
                }
                _ => {
                    if let Some((claim, kept)) = claims.pop() {
                        kept.abort();
                        if chance.below(2) == 0 {
                            drop(tokio::time::timeout(LEASE, claim.release()).await);
                        }
                        // Else the command was killed.
                        claims.insert(0, (claim, kept));
                    }
                }
            }
            for _ in 0..chance.below(200) {
                tokio::time::sleep(Duration::from_millis(chance.below(30) as u64)).await;
                cluster::check_owners(&nodes);
                let owned = nodes.iter().any(|node| !node.owned().is_empty());
                let claimed = claims.iter().filter(|(claim, _)| claim.is_valid()).count();
                assert!(claimed <= 1 && !(owned && claimed > 0), "{claimed} claims, owned: {owned}");
            }
        }
    });
}

/// Promise: a command that only reads, where the registry takes no writes, is refused while servers renew, and is not once they
/// are dead.
#[test]
fn servers_are_found_without_a_claim() {
    Cluster::run(async |cluster| {
        let nodes = cluster.join(2).await;
        let registry = cluster.registry();
        let look = async || VolumeClaim::look_for_servers(&*registry, &*cluster.clock()).await;
        assert!(matches!(look().await, Err(ClaimError::InUse(_))));
        nodes.iter().for_each(Node::kill);
        look().await.unwrap();
        assert_eq!(cluster.map().await.members.len(), 2, "nothing is written");
    });
}
