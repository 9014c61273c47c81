//! Filters: compression of chunks, in the framing that HDF5's registered filters read. They run in the service's own
//! threads, each with its [`Encoder`]. This module knows nothing of files or frames.

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a process of its own with real threads, sockets and clocks, which no simulated cluster contains"
)]

mod bitshuffle;
mod codec;
mod framing;
mod name;
mod plugin;
mod shuffle;

pub use codec::{Decoder, Encoder, FilterError};
pub use framing::{chunk_of_bitshuffle_lz4, chunk_of_lz4};
pub use name::BadFilterName;
pub use plugin::{FilterRegistration, Plugin, PluginChoice, PluginError};

use varve_detector_hdf5::FilterMessage;

/// zlib's default.
pub const GZIP_LEVEL: u32 = 6;
/// zstd's default.
pub const ZSTD_LEVEL: i32 = 3;

const GZIP: u16 = 1;
const SHUFFLE: u16 = 2;
const LZ4: u16 = 32004;
const BITSHUFFLE: u16 = 32008;
const ZSTD: u16 = 32015;

/// How chunks are compressed. As text: `raw`, `gzip:6`, `lz4`, `zstd:3`, `bslz4`, `bszstd:3`; `gzip`, `lz4` and `zstd`
/// may follow `shuffle+`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Whether bytes of equal significance are grouped before compression.
    pub shuffle: bool,
    pub compression: Compression,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    None,
    Gzip { level: u32 },
    Lz4,
    Zstd { level: i32 },
    BitshuffleLz4,
    BitshuffleZstd { level: i32 },
}

impl Compression {
    /// Length of a chunk before compression, as the chunk states it; `None` if it states none.
    pub fn plain_bytes(self, chunk: &[u8]) -> Option<usize> {
        match self {
            Compression::Zstd { .. } => {
                let length = zstd::zstd_safe::get_frame_content_size(chunk).ok()??;
                usize::try_from(length).ok()
            }
            _ => usize::try_from(u64::from_be_bytes(*chunk.first_chunk()?)).ok(),
        }
    }
}

impl Filter {
    pub const RAW: Filter = Filter { shuffle: false, compression: Compression::None };
    pub const BSLZ4: Filter = Filter { shuffle: false, compression: Compression::BitshuffleLz4 };

    pub fn is_raw(&self) -> bool {
        *self == Filter::RAW
    }

    /// Whether the filter compresses a chunk in independent blocks, so that a chunk may arrive in pieces.
    pub fn takes_blocks(&self) -> bool {
        matches!(self.compression, Compression::BitshuffleLz4 | Compression::BitshuffleZstd { .. })
    }

    /// Whether readers undo both filters in the same way. The compression level matters only to the writer.
    pub fn reads_as(&self, other: &Filter) -> bool {
        let kind = std::mem::discriminant::<Compression>;
        self.shuffle == other.shuffle && kind(&self.compression) == kind(&other.compression)
    }

    /// The filter pipeline that readers must undo, for elements of `element_bytes` in chunks of `chunk_bytes`.
    pub fn messages(&self, element_bytes: usize, chunk_bytes: u64) -> Vec<FilterMessage> {
        let mut messages = Vec::new();
        let element = element_bytes as u32;
        if self.shuffle {
            messages.push(FilterMessage { id: SHUFFLE, name: "shuffle".into(), values: vec![element] });
        }
        // Version of the bitshuffle filter with this framing; block size 0 means the default.
        const BITSHUFFLE_VERSION: [u32; 2] = [0, 4];
        let bitshuffle = |codec: &[u32]| {
            let values = [&BITSHUFFLE_VERSION[..], &[element, 0], codec].concat();
            FilterMessage {
                id: BITSHUFFLE,
                name: "bitshuffle; see https://github.com/kiyo-masui/bitshuffle".into(),
                values,
            }
        };
        match self.compression {
            Compression::None => {}
            Compression::Gzip { level } => {
                messages.push(FilterMessage { id: GZIP, name: "deflate".into(), values: vec![level] });
            }
            Compression::Lz4 => {
                let block = codec::lz4_block_bytes(chunk_bytes as usize) as u32;
                messages.push(FilterMessage { id: LZ4, name: "lz4".into(), values: vec![block] });
            }
            Compression::Zstd { level } => {
                messages.push(FilterMessage { id: ZSTD, name: "zstd".into(), values: vec![level as u32] });
            }
            Compression::BitshuffleLz4 => messages.push(bitshuffle(&[2])),
            Compression::BitshuffleZstd { level } => messages.push(bitshuffle(&[3, level as u32])),
        }
        messages
    }
}

#[cfg(test)]
mod tests;
