//! Checks whether a pre-filtered chunk has the framing of its filter. The check reads only sizes, a few bytes per
//! block. An accepted chunk may still fail to decompress; no reader can open a rejected one.

use super::{Compression, Filter, bitshuffle};

/// Length of a chunk before compression, and length of a block.
const HEADER_BYTES: usize = 12;

/// The chunk of filter 32004 that holds one LZ4 block of `length` bytes, as compressed by a sender without a header.
///
/// # Errors
/// If the filter would take the block for uncompressed bytes.
pub fn chunk_of_lz4(block: &[u8], length: usize) -> Result<Vec<u8>, String> {
    // The filter stores a block that LZ4 does not shrink as it is.
    if block.len() >= length {
        return Err(format!("its LZ4 block has {} bytes for a frame of {length}; send it uncompressed", block.len()));
    }
    let mut chunk = header(block.len() + 4, length, length as u32);
    chunk.extend((block.len() as u32).to_be_bytes());
    chunk.extend(block);
    Ok(chunk)
}

/// The chunk of filter 32008 that holds what the bitshuffle library's `bshuf_compress_lz4` made of `length` bytes with
/// its default block size.
pub fn chunk_of_bitshuffle_lz4(blocks: &[u8], length: usize) -> Vec<u8> {
    let mut chunk = header(blocks.len(), length, 0);
    chunk.extend(blocks);
    chunk
}

fn header(capacity: usize, length: usize, block: u32) -> Vec<u8> {
    let mut chunk = Vec::with_capacity(HEADER_BYTES + capacity);
    chunk.extend((length as u64).to_be_bytes());
    chunk.extend(block.to_be_bytes());
    chunk
}

impl Filter {
    /// Checks whether `chunk` may be the filtered form of `length` bytes, with elements of `element_bytes`.
    ///
    /// # Errors
    /// The reason if it cannot be.
    pub fn check(&self, chunk: &[u8], element_bytes: usize, length: usize) -> Result<(), String> {
        match self.compression {
            Compression::None if chunk.len() == length => Ok(()),
            Compression::None => Err(format!("it has {} bytes", chunk.len())),
            Compression::Gzip { .. } => zlib(chunk),
            Compression::Zstd { .. } => zstd(chunk, length),
            Compression::Lz4 => blocks(chunk, length, 1, 0),
            Compression::BitshuffleLz4 | Compression::BitshuffleZstd { .. } => {
                let default = bitshuffle::block_elements(element_bytes) * element_bytes;
                blocks(chunk, length, 8 * element_bytes, default)
            }
        }
    }
}

/// Checks the stream's first two bytes (RFC 1950), which must not announce a dictionary. The stream ends with four
/// checksum bytes.
fn zlib(chunk: &[u8]) -> Result<(), String> {
    const BYTES_MIN: usize = 8;
    match chunk {
        [method, flags, ..] if chunk.len() >= BYTES_MIN => {
            let sound = method & 0xf == 8 && flags & 0x20 == 0 && u16::from_be_bytes([*method, *flags]) % 31 == 0;
            if sound { Ok(()) } else { Err("it does not begin with a zlib header".into()) }
        }
        _ => Err(format!("{} bytes are too short for a zlib stream", chunk.len())),
    }
}

fn zstd(chunk: &[u8], length: usize) -> Result<(), String> {
    let Ok(reported) = zstd::zstd_safe::get_frame_content_size(chunk) else {
        return Err("it does not begin with a zstd frame".into());
    };
    let Ok(bytes) = zstd::zstd_safe::find_frame_compressed_size(chunk) else {
        return Err("its zstd frame is damaged or truncated".into());
    };
    match reported {
        // More frames may follow the first one.
        Some(reported) if reported > length as u64 || bytes == chunk.len() && reported != length as u64 => {
            Err(format!("its zstd frame declares {reported} bytes"))
        }
        _ => Ok(()),
    }
}

/// Checks the framing of filters 32004 and 32008: length (8 bytes, big-endian), block length (4; 0: `default`), then
/// each block with its length (4). The remainder, less than a `group`, is stored uncompressed.
fn blocks(chunk: &[u8], length: usize, group: usize, default: usize) -> Result<(), String> {
    let Some((header, mut rest)) = chunk.split_first_chunk::<HEADER_BYTES>() else {
        return Err(format!("it has {} bytes, less than its header of {HEADER_BYTES}", chunk.len()));
    };
    let [total @ .., b0, b1, b2, b3] = *header;
    let (total, reported) = (u64::from_be_bytes(total), u32::from_be_bytes([b0, b1, b2, b3]) as usize);
    let block = if reported == 0 { default } else { reported };
    if total != length as u64 || block == 0 || !block.is_multiple_of(group) {
        return Err(format!("its header declares {total} bytes in blocks of {reported}"));
    }
    let whole = length / group * group;
    for _ in 0..whole.div_ceil(block) {
        let cut = || "it is truncated".to_owned();
        let (stored, after) = rest.split_first_chunk::<4>().ok_or_else(cut)?;
        let stored = u32::from_be_bytes(*stored) as usize;
        if stored == 0 {
            return Err("it has a block of no bytes".into());
        }
        rest = after.get(stored..).ok_or_else(cut)?;
    }
    match rest.len() == length - whole {
        true => Ok(()),
        false => Err(format!("{} bytes follow its blocks instead of {}", rest.len(), length - whole)),
    }
}

#[cfg(test)]
mod tests {
    use crate::Encoder;

    #[test]
    fn valid_framing_is_accepted_and_cut_or_resized_is_rejected() {
        // Several blocks, an incomplete last block, and a remainder of less than a group.
        for elements in [3, 8, 4096, 12_345] {
            let plain: Vec<u8> = (0..2 * elements).map(|byte: u32| (byte * byte / 7) as u8).collect();
            for name in ["gzip:4", "shuffle+gzip:1", "lz4", "zstd:3", "shuffle+zstd:1", "bslz4", "bszstd:2", "raw"] {
                let filter: super::Filter = name.parse().expect("a filter");
                let mut chunk = Vec::new();
                Encoder::new(filter, 2).and_then(|mut encoder| encoder.encode(&plain, &mut chunk)).expect("encoded");
                let check = |chunk: &[u8]| filter.check(chunk, 2, plain.len());
                assert_eq!(check(&chunk), Ok(()), "{name} of {elements}");
                let refused = |chunk: &[u8]| assert!(check(chunk).is_err(), "{name} of {elements}: {chunk:?}");
                refused(b"abc");
                if !name.contains("gzip") {
                    refused(&chunk[..chunk.len() - 1]);
                    assert!(filter.check(&chunk, 2, plain.len() + 2).is_err(), "{name}: of another length");
                }
                if name != "raw" {
                    refused(&[&[0xff], &chunk[1..]].concat());
                }
            }
        }
    }
}
