//! The filter pipeline message, version 2.

use super::bytes::Block;

/// Filters with this or a higher identifier have their name in the message.
const REGISTERED_MIN: u16 = 256;

/// One filter of the pipeline that readers must undo.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterMessage {
    pub id: u16,
    pub name: String,
    pub values: Vec<u32>,
}

pub fn encode(filters: &[FilterMessage]) -> Vec<u8> {
    let mut block = Block::new();
    block.byte(2).byte(filters.len() as u8);
    for filter in filters {
        block.short(filter.id);
        let named = filter.id >= REGISTERED_MIN;
        if named {
            block.short(filter.name.len() as u16 + 1);
        }
        // Mandatory filter: a chunk that skips it records that in its filter mask.
        block.short(0).short(filter.values.len() as u16);
        if named {
            block.bytes(filter.name.as_bytes()).byte(0);
        }
        for value in &filter.values {
            block.word(*value);
        }
    }
    block.into_bytes()
}
