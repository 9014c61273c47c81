//! Object header messages other than datatype, filter pipeline and data layout.

use super::UNDEFINED;
use super::bytes::Block;
use super::datatype::Datatype;

pub const DATASPACE: u8 = 0x01;
pub const LINK_INFO: u8 = 0x02;
pub const DATATYPE: u8 = 0x03;
pub const FILL_VALUE: u8 = 0x05;
pub const LINK: u8 = 0x06;
pub const LAYOUT: u8 = 0x08;
pub const GROUP_INFO: u8 = 0x0a;
pub const FILTERS: u8 = 0x0b;
pub const ATTRIBUTE: u8 = 0x0c;
pub const ATTRIBUTE_INFO: u8 = 0x15;
pub const REFERENCE_COUNT: u8 = 0x16;

/// Version 2. Empty `dims` mean a scalar. `None` in `max` means an unlimited dimension.
pub fn dataspace(dims: &[u64], max: Option<&[Option<u64>]>) -> Vec<u8> {
    let mut block = Block::new();
    block.byte(2).byte(dims.len() as u8).byte(u8::from(max.is_some())).byte(u8::from(!dims.is_empty()));
    for dim in dims {
        block.long(*dim);
    }
    for dim in max.unwrap_or_default() {
        block.long(dim.unwrap_or(u64::MAX));
    }
    block.into_bytes()
}

/// When a dataset's space is allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationTime {
    Early,
    Late,
    Incremental,
}

/// Version 3. The fill value is written to new space only if the user set one.
pub fn fill_value(allocation: AllocationTime, value: Option<&[u8]>) -> Vec<u8> {
    const WRITE_IF_SET: u8 = 2 << 2;
    const DEFINED: u8 = 1 << 5;
    let time = match allocation {
        AllocationTime::Early => 1,
        AllocationTime::Late => 2,
        AllocationTime::Incremental => 3,
    };
    let mut block = Block::new();
    block.byte(3);
    match value {
        None => block.byte(time | WRITE_IF_SET),
        Some(value) => block.byte(time | WRITE_IF_SET | DEFINED).word(value.len() as u32).bytes(value),
    };
    block.into_bytes()
}

/// Version 3.
pub fn attribute(name: &str, datatype: &Datatype, dims: &[u64], data: &[u8]) -> Vec<u8> {
    const UTF8: u8 = 1;
    let datatype = datatype.encode();
    let dataspace = dataspace(dims, None);
    let mut block = Block::new();
    block.byte(3).byte(0).short(name.len() as u16 + 1).short(datatype.len() as u16).short(dataspace.len() as u16);
    block.byte(UTF8).bytes(name.as_bytes()).byte(0).bytes(&datatype).bytes(&dataspace).bytes(data);
    block.into_bytes()
}

/// Attributes are stored in the object header itself: no fractal heap, no name index, no creation order. When readers
/// count attributes, they treat an object without this message as having none.
pub fn attribute_info() -> Vec<u8> {
    let mut block = Block::new();
    block.byte(0).byte(0).long(UNDEFINED).long(UNDEFINED);
    block.into_bytes()
}

/// Links are stored in the object header itself: no fractal heap, no name index.
pub fn link_info() -> Vec<u8> {
    let mut block = Block::new();
    block.byte(0).byte(0).long(UNDEFINED).long(UNDEFINED);
    block.into_bytes()
}

pub fn group_info() -> Vec<u8> {
    vec![0, 0]
}

const LINK_VERSION: u8 = 1;
/// Names have a two-byte length and are marked as UTF-8.
const LINK_FLAGS: u8 = 0x01 | 0x10;

pub fn hard_link(name: &str, address: u64) -> Vec<u8> {
    let mut block = Block::new();
    block.byte(LINK_VERSION).byte(LINK_FLAGS).byte(1).short(name.len() as u16).bytes(name.as_bytes()).long(address);
    block.into_bytes()
}

pub fn soft_link(name: &str, target: &str) -> Vec<u8> {
    const HAS_TYPE: u8 = 0x08;
    const SOFT: u8 = 1;
    let mut block = Block::new();
    block.byte(LINK_VERSION).byte(LINK_FLAGS | HAS_TYPE).byte(SOFT).byte(1);
    block.short(name.len() as u16).bytes(name.as_bytes()).short(target.len() as u16).bytes(target.as_bytes());
    block.into_bytes()
}

pub fn reference_count(count: u32) -> Vec<u8> {
    let mut block = Block::new();
    block.byte(0).word(count);
    block.into_bytes()
}
