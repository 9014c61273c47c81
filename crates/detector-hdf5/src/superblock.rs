//! The superblock, version 3: the first 48 bytes of the file, and the only metadata that are ever overwritten.

use super::UNDEFINED;
use super::bytes::Block;

pub const LENGTH: usize = 48;
const SIGNATURE: [u8; 8] = *b"\x89HDF\r\n\x1a\n";
const VERSION: u8 = 3;

/// The fields that change from commit to commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Address of the root group's object header.
    pub root: u64,
    /// End of the file's used part; readers refuse a shorter file.
    pub end: u64,
}

impl Superblock {
    pub fn encode(&self) -> Vec<u8> {
        let mut block = Block::new();
        block.bytes(&SIGNATURE).byte(VERSION);
        // Sizes of addresses and lengths, and consistency flags: no writer has the file open through HDF5.
        block.byte(8).byte(8).byte(0);
        // Base address; no superblock extension.
        block.long(0).long(UNDEFINED).long(self.end).long(self.root);
        let bytes = block.sealed();
        assert_eq!(bytes.len(), LENGTH, "superblock version 3 has 48 bytes");
        bytes
    }

    /// Decodes a file's first bytes; `None` if they are not an intact superblock of this writer.
    pub fn decode(bytes: &[u8; LENGTH]) -> Option<Superblock> {
        let long = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let superblock = Superblock { root: long(36), end: long(28) };
        (superblock.encode() == bytes).then_some(superblock)
    }
}
