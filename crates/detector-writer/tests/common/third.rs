//! The third independent reader: `hdf5-reader`, written in Rust only. It supports all layouts, indexes and types of
//! ours, and the filters gzip, shuffle and LZ4. Zstandard and bitshuffle must come from its user. This module decodes
//! them bit by bit from their specifications, and shares no code with the writer.

use hdf5_reader::error::Error;
use hdf5_reader::filters::FilterRegistry;
use hdf5_reader::messages::filter_pipeline::FilterDescription;
use hdf5_reader::{Hdf5File, OpenOptions};
use std::path::Path;

const BITSHUFFLE: u16 = 32008;
const ZSTD: u16 = 32015;

type Result<T> = std::result::Result<T, Error>;

pub fn open(path: &Path) -> Hdf5File {
    let mut registry = FilterRegistry::new();
    registry.register(ZSTD, Box::new(|_, stored, _| zstd(stored)));
    registry.register(BITSHUFFLE, Box::new(|description, stored, _| bitshuffle(description, stored)));
    let options = OpenOptions::default().with_filter_registry(registry);
    Hdf5File::open_with_options(path, options).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn damaged(why: impl ToString) -> Error {
    Error::InvalidData(why.to_string())
}

fn zstd(stored: &[u8]) -> Result<Vec<u8>> {
    zstd::stream::decode_all(stored).map_err(damaged)
}

/// The format: length (8 bytes, big-endian), bytes of a block before compression (4); then the blocks, each after its
/// length (4); then the remainder of fewer than eight elements, uncompressed.
fn bitshuffle(description: &FilterDescription, stored: &[u8]) -> Result<Vec<u8>> {
    let values = &description.client_data;
    let (element, compression) = (values[2] as usize, values[4]);
    let (head, mut rest) = stored.split_at_checked(12).ok_or_else(|| damaged("no head"))?;
    let length = u64::from_be_bytes(head[..8].try_into().expect("8 bytes")) as usize;
    let block = u32::from_be_bytes(head[8..].try_into().expect("4 bytes")) as usize;
    let mut plain = Vec::new();
    let shuffled = length - length % (8 * element);
    while plain.len() < shuffled {
        let bytes = block.min(shuffled - plain.len());
        let (size, after) = rest.split_at_checked(4).ok_or_else(|| damaged("no length of a block"))?;
        let size = u32::from_be_bytes(size.try_into().expect("4 bytes")) as usize;
        let (block, after) = after.split_at_checked(size).ok_or_else(|| damaged("a block is cut short"))?;
        let bits = match compression {
            2 => lz4::block::decompress(block, Some(bytes as i32)).map_err(damaged)?,
            3 => zstd(block)?,
            other => return Err(damaged(format!("compression {other}"))),
        };
        plain.extend(unshuffle(&bits, element));
        rest = after;
    }
    plain.extend_from_slice(rest);
    (plain.len() == length).then_some(plain).ok_or_else(|| damaged("another length than its head says"))
}

/// Bit `b` of element `e` lies in row `b`, at position `e`.
fn unshuffle(bits: &[u8], element: usize) -> Vec<u8> {
    let elements = bits.len() / element;
    let mut plain = vec![0; bits.len()];
    for bit in 0..8 * element {
        for number in 0..elements {
            let at = bit * elements + number;
            plain[number * element + bit / 8] |= (bits[at / 8] >> (at % 8) & 1) << (bit % 8);
        }
    }
    plain
}
