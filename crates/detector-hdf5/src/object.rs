//! Object headers, version 2, with a single chunk.

use super::bytes::Block;
use super::message;

/// The size of the chunk has 4 bytes; no times, no creation order.
const FLAGS: u8 = 0x02;
/// Flag of messages that never change, such as the datatype.
const CONSTANT: u8 = 0x01;
/// The HDF5 library sets this flag on every attribute info message: it belongs to this object alone.
const NOT_SHARED: u8 = 0x04;
/// Bytes of a message's own header.
const MESSAGE_HEADER: usize = 4;

#[derive(Debug, Default)]
pub struct ObjectHeader {
    messages: Block,
}

impl ObjectHeader {
    /// # Panics
    /// If `data` has 64 KiB or more, the limit of a message's length field. Checks of dataset specs rule this out.
    pub fn message(&mut self, kind: u8, data: &[u8]) -> &mut ObjectHeader {
        let length = u16::try_from(data.len()).expect("a message is shorter than 64 KiB");
        let flags = match kind {
            message::DATATYPE => CONSTANT,
            message::ATTRIBUTE_INFO => NOT_SHARED,
            _ => 0,
        };
        self.messages.byte(kind).short(length).byte(flags).bytes(data);
        self
    }

    pub fn encode(self) -> Vec<u8> {
        let mut block = Block::signed(b"OHDR", 2);
        block.byte(FLAGS).word(self.messages.len() as u32).bytes(&self.messages.into_bytes());
        block.sealed()
    }
}

/// Length of [`ObjectHeader::encode`]'s result for messages of these lengths.
pub fn length(messages: impl IntoIterator<Item = usize>) -> usize {
    const AROUND: usize = 4 + 1 + 1 + 4 + 4;
    AROUND + messages.into_iter().map(|length| MESSAGE_HEADER + length).sum::<usize>()
}
