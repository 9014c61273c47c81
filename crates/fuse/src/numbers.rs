//! Node numbers: the numbers by which the kernel and programs know inodes (`st_ino`, `d_ino`, FUSE's node ids).
//!
//! They are the inode ids, whose top 16 bits are a shard. A 32-bit program without large-file support gets EOVERFLOW for a
//! number above 2^32, and then sees an empty directory. With `-o inode32` the bits of the shard follow the counter
//! instead, so that numbers are small as long as counters are: with 64 shards up to 2^26. Larger ones keep 64 bits, apart
//! from the small ones by the top bit, which no id has. The mapping needs no memory and is one to one, so hard links have
//! one number, no two inodes share one, and numbers last over remounts.

use fuser::INodeNo;
use varve_types::{InodeId, ShardCount};

/// Set in numbers with 64 bits under `inode32`. The largest shard is 4095, in 12 of the id's top 16 bits.
const LONG: u64 = 1 << 63;

/// The mapping of one mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeNumbers {
    Ids,
    /// `inode32` for a volume with 2^`shard_bits` shards.
    Short {
        shard_bits: u8,
    },
}

impl NodeNumbers {
    pub fn of_mount(inode32: bool, shards: ShardCount) -> NodeNumbers {
        match inode32 {
            true => NodeNumbers::Short { shard_bits: shards.depth_max() },
            false => NodeNumbers::Ids,
        }
    }

    pub fn number(self, inode: InodeId) -> INodeNo {
        let NodeNumbers::Short { shard_bits } = self else { return INodeNo(inode.0) };
        let counter = inode.0 & InodeId::COUNTER_MAX;
        let short = counter << shard_bits | u64::from(inode.shard().0);
        INodeNo(match u32::try_from(short) {
            Ok(short) => swap_root(short.into(), shard_bits),
            Err(_) => inode.0 | LONG,
        })
    }

    pub fn inode(self, number: INodeNo) -> InodeId {
        match self {
            NodeNumbers::Short { shard_bits } if number.0 & LONG == 0 => {
                let short = swap_root(number.0, shard_bits);
                InodeId((short & ((1 << shard_bits) - 1)) << 48 | short >> shard_bits)
            }
            _ => InodeId(number.0 & !LONG),
        }
    }
}

/// Exchanges the short number of the root with 1, which FUSE demands.
fn swap_root(short: u64, shard_bits: u8) -> u64 {
    let root = InodeId::ROOT.0 << shard_bits;
    match short {
        1 => root,
        short if short == root => 1,
        short => short,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use varve_types::ShardId;

    fn numbers(shards: u16) -> NodeNumbers {
        NodeNumbers::of_mount(true, ShardCount::new(shards).unwrap())
    }

    #[test]
    fn inode32_numbers_are_one_to_one_and_fit() {
        for shards in [1, 2, 64, 4096] {
            let numbers = numbers(shards);
            let mut seen = std::collections::HashSet::new();
            let largest = u64::from(u32::MAX) >> shards.trailing_zeros();
            for shard in [0, 1, shards / 2, shards - 1].into_iter().filter(|shard| *shard < shards) {
                for counter in [0, 1, 2, 65_536, largest - 1, largest] {
                    let inode = InodeId::new(ShardId(shard), counter);
                    let number = numbers.number(inode);
                    assert!(number.0 <= u64::from(u32::MAX), "{inode} of {shards} shards is {number:?}");
                    assert_eq!(numbers.inode(number), inode);
                    seen.insert((inode, number.0));
                }
            }
            let distinct: std::collections::HashSet<u64> = seen.iter().map(|(_, number)| *number).collect();
            assert_eq!(distinct.len(), seen.len(), "{shards} shards");
            assert_eq!(numbers.number(InodeId::ROOT), INodeNo(1));
        }
    }

    #[test]
    fn inode32_keeps_64_bits_beyond_its_range() {
        for (shards, shard, counter) in [(64, 0, 1 << 26), (64, 63, 1 << 40), (1, 0, 1 << 32), (4096, 0, 1 << 20)] {
            let inode = InodeId::new(ShardId(shard), counter);
            let number = numbers(shards).number(inode);
            assert!(number.0 > u64::from(u32::MAX));
            assert_eq!(numbers(shards).inode(number), inode);
        }
    }

    #[test]
    fn numbers_are_ids_by_default() {
        let numbers = NodeNumbers::of_mount(false, ShardCount::new(64).unwrap());
        let inode = InodeId::new(ShardId(63), 7);
        assert_eq!(numbers.number(inode), INodeNo(inode.0));
        assert_eq!(numbers.inode(INodeNo(inode.0)), inode);
    }
}
