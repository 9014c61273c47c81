//! The superblock, version 3: 48 bytes at the head of the file, and the only bytes of metadata that are ever rewritten.

use super::UNDEFINED;
use super::bytes::Block;

pub const LENGTH: usize = 48;
const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
const VERSION: u8 = 3;

/// What changes in it from one commit to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Object header of the root group.
    pub root: u64,
    /// One past the last byte that belongs to the file; readers refuse a file shorter than this.
    pub end: u64,
}

impl Superblock {
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Block::new();
        block.bytes(&SIGNATURE).byte(VERSION);
        // Sizes of addresses and of lengths, and consistency flags: no writer holds the file open through HDF5.
        block.byte(8).byte(8).byte(0);
        // Base address; no superblock extension.
        block.long(0).long(UNDEFINED).long(self.end).long(self.root);
        let bytes = block.sealed();
        assert_eq!(bytes.len(), LENGTH, "superblock version 3 has 48 bytes");
        bytes
    }

    /// What a file's first bytes say; `None` if they are no whole superblock of ours.
    pub fn decode(bytes: &[u8; LENGTH]) -> Option<Superblock> {
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let superblock = Superblock { root: long(36), end: long(28) };
        (superblock.encode() == bytes).then_some(superblock)
    }
}
