//! Builder of one block: little-endian numbers, followed by a checksum of all of it.

use super::checksum::lookup3;

#[derive(Clone, Debug, Default)]
pub struct Block(Vec<u8>);

impl Block {
    pub fn new() -> Block {
        Block::default()
    }

    /// A block that begins with `signature` and a version byte.
    pub fn signed(signature: &[u8; 4], version: u8) -> Block {
        let mut block = Block(signature.to_vec());
        block.byte(version);
        block
    }

    pub fn byte(&mut self, value: u8) -> &mut Block {
        self.0.push(value);
        self
    }

    pub fn short(&mut self, value: u16) -> &mut Block {
        self.bytes(&value.to_le_bytes())
    }

    pub fn word(&mut self, value: u32) -> &mut Block {
        self.bytes(&value.to_le_bytes())
    }

    pub fn long(&mut self, value: u64) -> &mut Block {
        self.bytes(&value.to_le_bytes())
    }

    /// Appends the lowest `width` bytes of `value`.
    ///
    /// # Panics
    /// If `value` needs more bytes; a truncated number would mean another number to the reader.
    pub fn number(&mut self, value: u64, width: usize) -> &mut Block {
        assert!(width >= 8 || value >> (8 * width) == 0, "{value} does not fit in {width} bytes");
        self.bytes(&value.to_le_bytes()[..width])
    }

    pub fn bytes(&mut self, bytes: &[u8]) -> &mut Block {
        self.0.extend_from_slice(bytes);
        self
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The block with the checksum of all its bytes appended.
    pub fn sealed(mut self) -> Vec<u8> {
        let checksum = lookup3(&self.0);
        self.word(checksum);
        self.0
    }
}
