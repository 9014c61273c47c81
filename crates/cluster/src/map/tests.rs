use super::*;
use proptest::prelude::*;

const LEASE: Duration = Duration::from_secs(2);

pub(crate) fn member(pid: u32) -> Member {
    let (host, boot_id) = ("host".to_owned(), "boot".to_owned());
    let at = |tcp| WorkerRecord { unix: None, tcp: Some(tcp) };
    let workers = (0..2).map(|worker| at(format!("10.0.0.1:{pid}{worker}"))).collect();
    Member {
        host,
        boot_id,
        pid,
        workers,
        peers: at(format!("10.0.0.1:{pid}9")),
        state: MemberState::Active,
        synced: false,
        store_id: None,
    }
}

fn of_members(shards: u16, members: u64) -> ClusterMap {
    let mut map = ClusterMap::first(ShardCount::new(shards).unwrap(), LEASE);
    for id in 1..=members {
        map = balanced(map.joined(ServerId(id), member(id as u32)).unwrap());
    }
    map
}

/// Carries out the handovers as their owners would.
fn balanced(mut map: ClusterMap) -> ClusterMap {
    for Handover { shard, from, to } in handovers(&map) {
        map = map.moved(shard, from, to, None).unwrap();
    }
    map
}

fn counts(map: &ClusterMap) -> Vec<usize> {
    map.active().map(|server| map.shards_of(server).count()).collect()
}

fn adjacent_of_one_owner(map: &ClusterMap) -> usize {
    let count = map.shards.len();
    (0..count).filter(|at| map.shards[*at].owner == map.shards[(at + 1) % count].owner).count()
}

#[test]
fn first_member_owns_all_shards() {
    let map = of_members(64, 1);
    assert_eq!(counts(&map), [64]);
    assert!(map.shards.iter().all(|shard| shard.term == Term(1)));
    assert!(map.is_consistent());
    assert!(handovers(&map).is_empty());
}

#[test]
fn adjacent_shards_go_to_different_members() {
    for members in [2, 4, 8, 16] {
        let map = of_members(64, members);
        assert_eq!(counts(&map), vec![64 / members as usize; members as usize]);
        assert_eq!(adjacent_of_one_owner(&map), 0, "{members} members");
    }
}

#[test]
fn join_moves_only_the_share_of_the_new_member() {
    for members in 2..=8 {
        let before = of_members(64, members - 1);
        let joined = before.joined(ServerId(99), member(99)).unwrap();
        let moves = handovers(&joined);
        assert_eq!(moves.len(), 64 / members as usize);
        assert!(moves.iter().all(|handover| handover.to == ServerId(99)));
    }
}

#[test]
fn shards_of_a_dead_member_get_other_owners_at_once() {
    let map = of_members(64, 4);
    let terms: Vec<_> = map.shards.iter().map(|shard| shard.term).collect();
    let next = map.left(ServerId(2)).unwrap();
    assert_eq!(next.version, map.version + 1);
    for (shard, before) in map.shards.iter().enumerate() {
        let after = next.shards[shard];
        match before.owner == Some(ServerId(2)) {
            true => assert!(after.owner.is_some() && after.owner != before.owner && after.term.0 == terms[shard].0 + 1),
            false => assert_eq!(after, *before),
        }
    }
    let counts = counts(&balanced(next));
    assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1, "{counts:?}");
}

#[test]
fn last_member_leaves_shards_without_owner() {
    let map = of_members(4, 1);
    let empty = map.left(ServerId(1)).unwrap();
    assert!(empty.shards.iter().all(|shard| shard.owner.is_none() && shard.term == Term(1)));
    let next = empty.joined(ServerId(2), member(2)).unwrap();
    assert!(next.shards.iter().all(|shard| shard.owner == Some(ServerId(2)) && shard.term == Term(2)));
}

#[test]
fn draining_member_gives_all_and_takes_nothing() {
    let map = of_members(16, 3).draining(ServerId(1)).unwrap();
    let moves = handovers(&map);
    assert_eq!(moves.len(), map.shards_of(ServerId(1)).count());
    let drained = balanced(map);
    assert_eq!(drained.shards_of(ServerId(1)).count(), 0);
    let refused = drained.moved(ShardId(0), drained.shards[0].owner.unwrap(), ServerId(1), None);
    assert_eq!(refused, Err(MapRefusal::Draining(ServerId(1))));
}

#[test]
fn shards_of_a_member_spread_over_its_workers() {
    for members in [1, 2, 4] {
        let map = of_members(64, members);
        for server in map.members.keys() {
            let of_worker =
                |worker| map.shards.iter().filter(|s| s.owner == Some(*server) && s.worker == worker).count();
            assert_eq!(of_worker(0), of_worker(1), "{members} members");
        }
    }
    let alone: Vec<u16> = of_members(8, 1).shards.iter().map(|shard| shard.worker).collect();
    assert_eq!(alone, [0, 1, 1, 0, 1, 0, 0, 1]);
}

#[test]
fn move_to_a_worker_of_the_owner_raises_the_term() {
    let (map, one) = (of_members(4, 1), ServerId(1));
    let next = map.moved(ShardId(0), one, one, Some(1)).unwrap();
    assert_eq!(next.shards[0], Ownership { owner: Some(one), worker: 1, term: Term(2) });
    let refused = map.moved(ShardId(0), one, one, Some(2));
    assert_eq!(refused, Err(MapRefusal::NoSuchWorker { server: one, worker: 2, last: 1 }));
}

#[test]
fn owner_without_such_a_worker_is_inconsistent() {
    let mut map = of_members(4, 1);
    map.shards[3].worker = 2;
    assert!(!map.is_consistent());
}

#[test]
fn claim_and_members_exclude_each_other() {
    let empty = ClusterMap::first(ShardCount::new(4).unwrap(), LEASE);
    let claim = Claim { holder: ServerId(7), purpose: "varve fsck".into(), host: "host".into(), pid: 1 };
    let claimed = empty.claimed(claim.clone()).unwrap();
    assert!(matches!(claimed.joined(ServerId(1), member(1)), Err(MapRefusal::Claimed { .. })));
    assert!(matches!(claimed.claimed(claim.clone()), Err(MapRefusal::Claimed { .. })));
    assert_eq!(claimed.released(ServerId(8)), None);
    let free = claimed.released(ServerId(7)).unwrap();
    let one = free.joined(ServerId(1), member(1)).unwrap();
    assert_eq!(one.claimed(claim), Err(MapRefusal::HasMembers(1)));
}

#[test]
fn every_member_is_watched_by_the_next_two() {
    let map = of_members(16, 4);
    assert_eq!(map.watchers(ServerId(1)), [ServerId(2), ServerId(3)]);
    assert_eq!(map.watchers(ServerId(3)), [ServerId(4), ServerId(1)]);
    assert_eq!(of_members(16, 2).watchers(ServerId(2)), [ServerId(1)]);
    assert!(of_members(16, 1).watchers(ServerId(1)).is_empty());
}

#[test]
fn moved_shard_stays_until_members_change() {
    let map = of_members(8, 2);
    let (one, two) = (ServerId(1), ServerId(2));
    let shards: Vec<_> = map.shards_of(one).take(2).collect();
    let mut pinned = map.clone();
    for shard in &shards {
        pinned = balanced(pinned.pinned(*shard, two).unwrap());
    }
    assert_eq!(counts(&pinned), [2, 6]);
    assert!(handovers(&pinned).is_empty());
    assert_eq!(serde_json::from_str::<ClusterMap>(&serde_json::to_string(&pinned).unwrap()).unwrap(), pinned);
    let back = balanced(pinned.pinned(shards[0], one).unwrap());
    assert_eq!((back.ownership(shards[0]).unwrap().owner, counts(&back)), (Some(one), vec![3, 5]));
    let third = balanced(back.joined(ServerId(3), member(3)).unwrap());
    assert!(third.pins.is_empty());
    let mut even = counts(&third);
    even.sort_unstable();
    assert_eq!(even, [2, 3, 3]);
    assert_eq!(counts(&balanced(pinned.unpinned(shards[0], two).unwrap().unpinned(shards[1], two).unwrap())), [4, 4]);

    let draining = pinned.draining(two).unwrap();
    assert_eq!(draining.pinned(shards[0], two), Err(MapRefusal::Draining(two)));
    assert_eq!(map.pinned(shards[0], one), Err(MapRefusal::OwnsAlready { shard: shards[0], owner: one }));
    assert_eq!(map.pinned(shards[0], ServerId(9)), Err(MapRefusal::NotAMember(ServerId(9))));
    assert_eq!(map.pinned(ShardId(8), two), Err(MapRefusal::NoSuchShard { shard: ShardId(8), last: 7 }));
}

#[test]
fn json_of_a_map_is_stable() {
    let map = of_members(2, 2);
    let json = serde_json::to_string(&map).unwrap();
    let member = |pid| {
        format!(
            concat!(
                r#"{{"host":"host","boot_id":"boot","pid":{},"workers":[{{"tcp":"10.0.0.1:{}0"}},"#,
                r#"{{"tcp":"10.0.0.1:{}1"}}],"peers":{{"tcp":"10.0.0.1:{}9"}},"state":"active"}}"#
            ),
            pid, pid, pid, pid
        )
    };
    let expected = format!(
        concat!(
            r#"{{"version":4,"lease_ms":2000,"members":{{"0000000000000001":{},"0000000000000002":{}}},"#,
            r#""shards":[{{"owner":"0000000000000002","worker":0,"term":2}},{{"owner":"0000000000000001","worker":1,"term":1}}],"claim":null}}"#
        ),
        member(1),
        member(2)
    );
    assert_eq!(json, expected);
    assert_eq!(serde_json::from_str::<ClusterMap>(&json).unwrap(), map);
    let synced = ClusterMap::first(ShardCount::new(1).unwrap(), LEASE);
    let synced = synced.joined(ServerId(1), Member { synced: true, ..self::member(1) }).unwrap();
    assert!(serde_json::to_string(&synced).unwrap().contains(r#""state":"active","synced":true}"#));
}

/// Promise: the map shows at which level each member replies.
#[test]
fn map_shows_who_syncs() {
    let map = ClusterMap::first(ShardCount::new(4).unwrap(), LEASE);
    let map = map.joined(ServerId(1), member(1)).unwrap();
    let map = map.joined(ServerId(2), Member { synced: true, ..member(2) }).unwrap();
    assert_eq!([1, 2, 3].map(|server| map.is_synced(ServerId(server))), [false, true, false]);
    assert!(map.sync_confirmed(ServerId(1)).unwrap().is_synced(ServerId(1)));
}

proptest! {
    /// After any sequence of joins and ends, the balanced map is even, and no change lowers a term.
    #[test]
    fn balance_is_even_after_any_changes(changes in proptest::collection::vec((0..6u64, 0..3u8), 1..30)) {
        let mut map = ClusterMap::first(ShardCount::new(32).unwrap(), LEASE);
        for (server, change) in changes {
            let server = ServerId(server);
            let changed = match change {
                0 => map.joined(server, member(1)),
                1 => map.left(server),
                _ => map.draining(server),
            };
            let Ok(changed) = changed else { continue };
            let next = balanced(changed);
            prop_assert!(next.is_consistent());
            prop_assert!(next.shards.iter().zip(&map.shards).all(|(after, before)| after.term >= before.term));
            let counts = counts(&next);
            if let (Some(most), Some(least)) = (counts.iter().max(), counts.iter().min()) {
                prop_assert!(most - least <= 1, "{counts:?}");
                prop_assert_eq!(counts.iter().sum::<usize>(), 32);
            }
            map = next;
        }
    }
}

#[test]
fn owner_takes_a_shard_back_in_its_own_term_only() {
    let (map, shard) = (of_members(4, 2), ShardId(1));
    let Ownership { owner, worker, term } = map.ownership(shard).unwrap();
    let owner = owner.unwrap();
    let again = map.reclaimed(shard, owner, term).unwrap();
    assert_eq!(again.ownership(shard), Some(Ownership { owner: Some(owner), worker, term: Term(term.0 + 1) }));
    let late = again.reclaimed(shard, owner, term);
    assert_eq!(late, Err(MapRefusal::OtherTerm { shard, newest: term.0 + 1, claimed: term.0 }));
    let other = map.active().find(|server| *server != owner).unwrap();
    assert_eq!(map.reclaimed(shard, other, term), Err(MapRefusal::NotTheOwner { shard, owner, claimed: other }));
}

/// A member of another host, which clients reach by TCP only.
fn far(pid: u32) -> Member {
    Member { host: "far".into(), boot_id: "far boot".into(), ..member(pid) }
}

fn without_tcp(mut member: Member) -> Member {
    member.workers.iter_mut().for_each(|worker| worker.tcp = None);
    member.peers.tcp = None;
    member
}

#[test]
fn members_of_several_hosts_need_tcp() {
    let local = without_tcp(member(1));
    let map = ClusterMap::first(ShardCount::new(4).unwrap(), LEASE).joined(ServerId(1), local.clone()).unwrap();
    let map = map.joined(ServerId(2), without_tcp(member(2))).expect("Unix sockets are enough within a host");
    let refused = map.joined(ServerId(3), far(3)).unwrap_err();
    assert_eq!(refused, MapRefusal::OtherWithoutTcp { server: ServerId(1), host: "host".into() });
    let map = of_members(4, 1);
    let refused = map.joined(ServerId(3), without_tcp(far(3))).unwrap_err();
    assert_eq!(refused, MapRefusal::WithoutTcp { server: ServerId(1), host: "host".into() });
    assert!(refused.to_string().contains("--listen"), "{refused}");
    assert_eq!(map.joined(ServerId(3), far(3)), Err(MapRefusal::NotSynced(ServerId(1))));
    assert!(map.sync_confirmed(ServerId(1)).unwrap().joined(ServerId(3), far(3)).is_ok());
}

/// Promise: a server of a copied store does not join the servers of the original.
#[test]
fn server_of_a_copy_is_refused() {
    let of_store = |pid, id: &str| Member { store_id: Some(id.into()), ..member(pid) };
    let map = ClusterMap::first(ShardCount::new(4).unwrap(), LEASE).joined(ServerId(1), of_store(1, "fe-2a")).unwrap();
    let refused = map.joined(ServerId(2), of_store(2, "fe-2b")).unwrap_err();
    assert_eq!(refused, MapRefusal::OtherStore { server: ServerId(1), host: "host".into(), pid: 1 });
    assert!(map.joined(ServerId(2), of_store(2, "ff-2a")).is_ok(), "another mount of the same store");
    assert!(map.joined(ServerId(2), member(2)).is_ok());
}

/// Promise: of two commands that move one shard, the one that was overtaken neither moves it nor withdraws the other's move.
#[test]
fn overtaken_move_is_refused() {
    let map = of_members(4, 3);
    let (shard, [one, two, three]) = (map.shards_of(ServerId(1)).next().unwrap(), [1, 2, 3].map(ServerId));
    let first = map.pinned(shard, two).unwrap();
    let handover = handovers(&first)[0];
    assert_eq!(handover, Handover { shard, from: one, to: two });
    assert!(first.handed_over(handover, first.pin(shard)).is_ok());
    let second = first.pinned(shard, three).unwrap();
    assert_eq!(second.handed_over(handover, first.pin(shard)), Err(MapRefusal::OtherPin(shard)));
    assert_eq!(second.unpinned(shard, two), Err(MapRefusal::OtherPin(shard)));
    assert_eq!(handovers(&second)[0], Handover { shard, from: one, to: three });
}
