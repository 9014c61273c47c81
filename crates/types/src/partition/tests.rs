use super::*;
use proptest::prelude::*;

fn shards(count: u16) -> ShardCount {
    ShardCount::new(count).unwrap()
}

#[test]
fn unsplit_directory_is_at_its_home() {
    let map = PartitionMap::whole(shards(64));
    assert_eq!(map.shard_of(ShardId(7), NameHash::LAST), ShardId(7));
    assert_eq!(PartitionIndex::FIRST.range(map.depth(PartitionIndex::FIRST)), HashRange::ALL);
}

proptest! {
    /// However a directory was split, every hash has exactly one partition, and that partition's range holds it.
    #[test]
    fn partitions_tile_the_hash_space(count_log2 in 0u32..=12, splits in prop::collection::vec(any::<u64>(), 0..200), probes in prop::collection::vec(any::<u64>(), 1..50)) {
        let shards = shards(1 << count_log2);
        let mut map = PartitionMap::whole(shards);
        for at in splits {
            let index = map.partition_of(NameHash(at >> 1));
            let depth = map.depth(index);
            if depth < shards.depth_max() {
                map.add(index.upper_half(depth));
            }
        }
        let reread = PartitionMap::from_words(shards, map.words().to_vec());
        prop_assert_eq!(reread.as_ref(), Some(&map));
        for probe in probes {
            let hash = NameHash(probe >> 1);
            let holders: Vec<_> = map.iter().filter(|index| index.range(map.depth(*index)).contains(hash)).collect();
            prop_assert_eq!(&holders, &vec![map.partition_of(hash)]);
        }
        let home = ShardId(3 & (shards.get() - 1));
        for index in map.iter() {
            prop_assert_eq!(PartitionIndex::at(index.shard(home, shards), home, shards), index);
        }
    }
}

#[test]
fn invalid_partition_words_are_refused() {
    assert_eq!(PartitionMap::from_words(shards(4), vec![0b1000 | 1]), None, "3 was cut from 1, which is missing");
    assert_eq!(PartitionMap::from_words(shards(4), vec![0b10]), None);
    assert_eq!(PartitionMap::from_words(shards(4), vec![1 | 1 << 4]), None);
    assert_eq!(PartitionMap::from_words(shards(4), vec![1, 0]), None);
}
