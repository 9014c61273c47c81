//! One limit, and what follows from it.

use super::*;

/// The shares leave room for what is not counted, and five million names are kept in a server of the usual size.
#[test]
fn the_shares_stay_below_the_limit() {
    for shards in [1, 64, 4096] {
        for bytes in [Memory::BYTES_MIN, Memory::BYTES_DEFAULT, 64 << 30] {
            let memory = Memory::divide(bytes, shards);
            let names = memory.names_of_each as u64 * shards as u64 * 28;
            let counted = memory.rows as u64 + memory.blocks + names + memory.memtables + memory.messages as u64;
            assert!(counted <= bytes / 4 * 3, "{memory:?} of {bytes}");
            assert!(memory.memtable_of_each * shards as u64 <= memory.memtables, "{memory:?} of {bytes}");
        }
    }
    assert!(Memory::divide(Memory::BYTES_DEFAULT, 64).names_of_each > 5_000_000 / 64);
}
