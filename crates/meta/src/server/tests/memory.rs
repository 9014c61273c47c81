//! The division of the memory limit.

use super::*;
use crate::shards::NAME_BYTES;

/// The parts leave memory for what is not counted, and a server of the default size can hold the names of 16 million
/// files.
#[test]
fn memory_shares_stay_below_the_limit() {
    for shards in [1, 64, 4096] {
        for bytes in [MemoryShares::BYTES_MIN, MemoryShares::BYTES_DEFAULT, 64 << 30] {
            let memory = MemoryShares::divide(bytes, shards);
            let counted =
                memory.rows as u64 + memory.blocks + memory.names as u64 + memory.memtables + memory.messages as u64;
            assert!(counted <= bytes / 4 * 3, "{memory:?} of {bytes}");
            assert!(memory.memtable_of_each * shards as u64 <= memory.memtables, "{memory:?} of {bytes}");
        }
    }
    assert!(MemoryShares::divide(MemoryShares::BYTES_DEFAULT, 64).names > 16_000_000 * NAME_BYTES);
}
