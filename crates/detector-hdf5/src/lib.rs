//! Encoding of HDF5 files after the *HDF5 File Format Specification Version 3.0*: superblock version 3, object headers
//! version 2, data layout version 4 with its chunk indexes.
//!
//! This module does no file I/O, except that [`lock`] takes the library's lock of a file. A [`FileImage`] collects
//! consecutive blocks from one address on, and [`tree::encode`] fills it with a whole tree of groups and datasets. A
//! file's metadata is thus a pure function of the state of the run.
//!
//! Everything is little-endian; addresses and lengths have 8 bytes. HDF5 1.10 and newer can read the result.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

pub mod bytes;
pub mod checksum;
pub mod datatype;
pub mod filter;
pub mod index;
pub mod lock;
pub mod message;
pub mod object;
pub mod superblock;
pub mod tree;

pub use datatype::{Datatype, ElementType};
pub use filter::FilterMessage;
pub use index::{ChunkMap, ChunkRecord, Grid, IndexKind};
pub use tree::{Attribute, Dataset, Group, Storage, TreeNode, Value};

/// The address that means "not allocated".
pub const UNDEFINED: u64 = u64::MAX;

/// Consecutive blocks of the file, starting at `base`.
#[derive(Debug)]
pub struct FileImage {
    base: u64,
    bytes: Vec<u8>,
}

impl FileImage {
    /// # Panics
    /// If `base` is not a multiple of 8, as every block's address is.
    pub fn new(base: u64) -> FileImage {
        assert_eq!(base % 8, 0, "an image begins at a multiple of 8");
        FileImage { base, bytes: Vec::new() }
    }

    /// Reserves `length` zero bytes and returns their address, for a block that is referenced before it is written.
    pub fn reserve(&mut self, length: usize) -> u64 {
        let start = self.bytes.len().next_multiple_of(8);
        self.bytes.resize(start + length, 0);
        self.base + start as u64
    }

    /// Writes a reserved block.
    pub fn fill(&mut self, address: u64, block: &[u8]) {
        let start = usize::try_from(address - self.base).expect("an image fits in memory");
        self.bytes[start..start + block.len()].copy_from_slice(block);
    }

    pub fn append(&mut self, block: &[u8]) -> u64 {
        let address = self.reserve(block.len());
        self.fill(address, block);
        address
    }

    pub fn base(&self) -> u64 {
        self.base
    }

    /// The address after the last byte.
    pub fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}

#[cfg(test)]
mod tests;
