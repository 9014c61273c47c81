use super::*;
use varve_types::{Name, PartitionIndex};

fn shards() -> ShardCount {
    ShardCount::new(8).unwrap()
}

fn map_with(indexes: &[u16]) -> WireMap {
    let mut map = PartitionMap::whole(shards());
    indexes.iter().for_each(|index| map.add(PartitionIndex(*index)));
    WireMap::from(&map)
}

/// Promise: an unknown directory is at its home shard; a learned map decides; maps are merged, not replaced.
#[test]
fn maps_are_merged() {
    let routing = Routing::new(shards());
    let directory = InodeId::new(ShardId(3), 9);
    let hash = Name::new(b"name").unwrap().hash();
    assert_eq!(routing.shard_of(directory, hash), ShardId(3));
    assert!(routing.learn(directory, &map_with(&[1])));
    assert!(!routing.learn(directory, &map_with(&[1])), "nothing new");
    assert!(routing.learn(directory, &map_with(&[1, 2])));
    assert!(!routing.learn(directory, &map_with(&[1])), "an older map takes nothing away");
    assert_eq!(routing.map(directory).len(), 3);
    let expected = routing.map(directory).shard_of(ShardId(3), hash);
    assert_eq!(routing.shard_of(directory, hash), expected);
}

/// Promise: a map that is not of this volume is rejected.
#[test]
fn unsound_maps_are_refused() {
    let routing = Routing::new(shards());
    assert!(!routing.learn(InodeId::ROOT, &WireMap(vec![0b100])));
    assert!(!routing.learn(InodeId::ROOT, &WireMap(vec![])));
    assert_eq!(routing.map(InodeId::ROOT).len(), 1);
}

/// Promise: the number of maps is bounded, and a map in use survives the eviction of others.
#[test]
fn maps_in_use_are_kept() {
    let routing = Routing::new(shards());
    let used = InodeId(1_000_000);
    routing.learn(used, &map_with(&[1]));
    for other in 0..3 * MAPS_MAX as u64 {
        routing.learn(InodeId(other + 2_000_000), &map_with(&[1]));
        if other % 1000 == 0 {
            assert_eq!(routing.map(used).len(), 2);
        }
    }
    let maps = routing.maps.lock();
    assert!(maps.recent.len() + maps.older.len() <= 2 * MAPS_MAX);
}
