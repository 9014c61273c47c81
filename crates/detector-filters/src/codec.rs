//! Encodes and decodes chunks with a filter.

use super::{Compression, Filter, bitshuffle, shuffle};
use flate2::{Compress, Decompress, FlushCompress, FlushDecompress};

/// Error of a filter that cannot encode or decode a chunk.
#[derive(Debug, thiserror::Error)]
#[error("{filter}: {why}")]
pub struct FilterError {
    pub filter: Filter,
    pub why: String,
}

/// LZ4's own limit is a little below 2 GiB; this is the HDF5 filter's default.
const LZ4_BLOCK_BYTES_MAX: usize = 1 << 30;

pub fn lz4_block_bytes(chunk_bytes: usize) -> usize {
    chunk_bytes.clamp(1, LZ4_BLOCK_BYTES_MAX)
}

/// Compression state of one thread: contexts and scratch buffers that are reused for every chunk.
pub struct Encoder {
    filter: Filter,
    element: usize,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    deflate: Option<Compress>,
    shuffled: Vec<u8>,
    compressed: Vec<u8>,
}

impl Encoder {
    pub fn new(filter: Filter, element_bytes: usize) -> Result<Encoder, FilterError> {
        let zstd = match filter.compression {
            Compression::Zstd { level } | Compression::BitshuffleZstd { level } => Some(
                zstd::bulk::Compressor::new(level).map_err(|error| FilterError { filter, why: error.to_string() })?,
            ),
            _ => None,
        };
        let deflate = match filter.compression {
            Compression::Gzip { level } => Some(Compress::new(flate2::Compression::new(level), true)),
            _ => None,
        };
        Ok(Encoder { filter, element: element_bytes, zstd, deflate, shuffled: Vec::new(), compressed: Vec::new() })
    }

    /// Filters `chunk` and appends the result to `out`.
    ///
    /// # Errors
    /// If the codec fails. With valid levels this means out of memory.
    pub fn encode(&mut self, chunk: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        let mut shuffled = std::mem::take(&mut self.shuffled);
        let input = if self.filter.shuffle {
            shuffle::shuffle(chunk, self.element, &mut shuffled);
            shuffled.as_slice()
        } else {
            chunk
        };
        let done = match self.filter.compression {
            Compression::None => {
                out.extend_from_slice(input);
                Ok(())
            }
            Compression::Gzip { .. } => self.gzip(input, out),
            Compression::Lz4 => self.lz4(input, out),
            Compression::Zstd { .. } => self.zstd(input, out),
            Compression::BitshuffleLz4 | Compression::BitshuffleZstd { .. } => self.bitshuffle(input, out),
        };
        self.shuffled = shuffled;
        done
    }

    fn error(&self, why: impl ToString) -> FilterError {
        FilterError { filter: self.filter, why: why.to_string() }
    }

    fn gzip(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        let filter = self.filter;
        let deflate = self.deflate.as_mut().expect("made for gzip");
        deflate.reset();
        loop {
            let taken = deflate.total_in() as usize;
            out.reserve((input.len() - taken) / 2 + 4096);
            let status = deflate
                .compress_vec(&input[taken..], out, FlushCompress::Finish)
                .map_err(|error| FilterError { filter, why: error.to_string() })?;
            if status == flate2::Status::StreamEnd {
                return Ok(());
            }
        }
    }

    /// Framing of filter 32004: length (8 bytes, big-endian), block length (4), then each block with its length (4). A
    /// block that does not shrink is stored uncompressed.
    fn lz4(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        let block_bytes = lz4_block_bytes(input.len());
        out.extend_from_slice(&(input.len() as u64).to_be_bytes());
        out.extend_from_slice(&(block_bytes as u32).to_be_bytes());
        for block in input.chunks(block_bytes) {
            let length = self.compress_lz4(block)?;
            let stored = if length < block.len() { &self.compressed[..length] } else { block };
            out.extend_from_slice(&(stored.len() as u32).to_be_bytes());
            out.extend_from_slice(stored);
        }
        Ok(())
    }

    fn compress_lz4(&mut self, block: &[u8]) -> Result<usize, FilterError> {
        let bound = lz4::block::compress_bound(block.len()).map_err(|error| self.error(error))?;
        if self.compressed.len() < bound {
            self.compressed.resize(bound, 0);
        }
        lz4::block::compress_to_buffer(block, None, false, &mut self.compressed).map_err(|error| self.error(error))
    }

    fn zstd(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        let start = out.len();
        out.resize(start + zstd::zstd_safe::compress_bound(input.len()), 0);
        let zstd = self.zstd.as_mut().expect("made for zstd");
        match zstd.compress_to_buffer(input, &mut out[start..]) {
            Ok(length) => {
                out.truncate(start + length);
                Ok(())
            }
            Err(error) => Err(self.error(error)),
        }
    }

    /// Framing of filter 32008: length (8 bytes, big-endian), block length in bytes (4), then each block with its
    /// length (4). A block has whole groups of 8 elements, transposed and compressed. Remaining elements, fewer than 8,
    /// are stored uncompressed.
    fn bitshuffle(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        self.begin(input.len(), out);
        self.add(input, out)
    }

    /// Bytes of a block, for a filter that [accepts a chunk block by block](Filter::takes_blocks).
    pub fn block_bytes(&self) -> usize {
        bitshuffle::block_elements(self.element) * self.element
    }

    /// Begins a chunk of `bytes` that comes in pieces, for a filter that [accepts it block by
    /// block](Filter::takes_blocks).
    pub fn begin(&self, bytes: usize, out: &mut Vec<u8>) {
        out.extend_from_slice(&(bytes as u64).to_be_bytes());
        out.extend_from_slice(&(self.block_bytes() as u32).to_be_bytes());
    }

    /// Filters a piece and appends the result to `out`. All pieces but the last consist of whole blocks.
    ///
    /// # Errors
    /// Same as [`Encoder::encode`].
    pub fn add(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<(), FilterError> {
        let block_bytes = self.block_bytes();
        let whole = input.len() / (8 * self.element) * (8 * self.element);
        let mut transposed = std::mem::take(&mut self.shuffled);
        transposed.resize(block_bytes, 0);
        for block in input[..whole].chunks(block_bytes) {
            let turned = &mut transposed[..block.len()];
            bitshuffle::transpose(block, self.element, turned);
            let at = out.len();
            out.extend_from_slice(&[0; 4]);
            if self.filter.compression == Compression::BitshuffleLz4 {
                let length = self.compress_lz4(turned)?;
                out.extend_from_slice(&self.compressed[..length]);
            } else {
                self.zstd(turned, out)?;
            }
            let length = (out.len() - at - 4) as u32;
            out[at..at + 4].copy_from_slice(&length.to_be_bytes());
        }
        out.extend_from_slice(&input[whole..]);
        self.shuffled = transposed;
        Ok(())
    }
}

/// Decodes chunks of a filter.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    pub filter: Filter,
    pub element_bytes: usize,
}

impl Decoder {
    /// Decodes `chunk`, whose plain form has `length` bytes.
    ///
    /// # Errors
    /// If `chunk` is not output of the filter, or has another plain length.
    pub fn decode(&self, chunk: &[u8], length: usize) -> Result<Vec<u8>, FilterError> {
        let plain = match self.filter.compression {
            Compression::None => chunk.to_vec(),
            Compression::Gzip { .. } => self.gzip(chunk, length)?,
            Compression::Zstd { .. } => zstd::bulk::decompress(chunk, length).map_err(|error| self.error(error))?,
            Compression::Lz4 => self.blocks(chunk, length, false)?,
            Compression::BitshuffleLz4 | Compression::BitshuffleZstd { .. } => self.blocks(chunk, length, true)?,
        };
        if plain.len() != length {
            return Err(self.error(format!("contains {} bytes instead of {length}", plain.len())));
        }
        if !self.filter.shuffle {
            return Ok(plain);
        }
        let mut restored = Vec::new();
        shuffle::unshuffle(&plain, self.element_bytes, &mut restored);
        Ok(restored)
    }

    fn error(&self, why: impl ToString) -> FilterError {
        FilterError { filter: self.filter, why: why.to_string() }
    }

    fn gzip(&self, chunk: &[u8], length: usize) -> Result<Vec<u8>, FilterError> {
        let mut out = Vec::with_capacity(length);
        let mut inflate = Decompress::new(true);
        match inflate.decompress_vec(chunk, &mut out, FlushDecompress::Finish) {
            Ok(flate2::Status::StreamEnd) => Ok(out),
            Ok(_) => Err(self.error("the stream is truncated or too long")),
            Err(error) => Err(self.error(error)),
        }
    }

    fn blocks(&self, chunk: &[u8], length: usize, shuffled: bool) -> Result<Vec<u8>, FilterError> {
        let mut rest = chunk;
        let mut take = |count: usize| -> Result<&[u8], FilterError> {
            let (taken, after) = rest.split_at_checked(count).ok_or_else(|| self.error("it is truncated"))?;
            rest = after;
            Ok(taken)
        };
        let total = u64::from_be_bytes(take(8)?.try_into().expect("8 bytes")) as usize;
        let block_bytes = u32::from_be_bytes(take(4)?.try_into().expect("4 bytes")) as usize;
        let group = if shuffled { 8 * self.element_bytes } else { 1 };
        if total != length || block_bytes == 0 || !block_bytes.is_multiple_of(group) {
            return Err(
                self.error(format!("its header declares {total} bytes in blocks of {block_bytes}, not {length}"))
            );
        }
        let mut out = Vec::with_capacity(length);
        let whole = length / group * group;
        while out.len() < whole {
            let block_length = block_bytes.min(whole - out.len());
            let stored = u32::from_be_bytes(take(4)?.try_into().expect("4 bytes")) as usize;
            let stored = take(stored)?;
            if !shuffled {
                if stored.len() == block_length {
                    out.extend_from_slice(stored);
                } else {
                    out.extend_from_slice(&self.lz4(stored, block_length)?);
                }
                continue;
            }
            let block = match self.filter.compression {
                Compression::BitshuffleLz4 => self.lz4(stored, block_length)?,
                _ => zstd::bulk::decompress(stored, block_length).map_err(|error| self.error(error))?,
            };
            if block.len() != block_length {
                return Err(self.error("a block does not have the expected length"));
            }
            let at = out.len();
            out.resize(at + block_length, 0);
            bitshuffle::restore(&block, self.element_bytes, &mut out[at..]);
        }
        out.extend_from_slice(take(length - whole)?);
        Ok(out)
    }

    fn lz4(&self, stored: &[u8], length: usize) -> Result<Vec<u8>, FilterError> {
        let limit = i32::try_from(length).map_err(|_| self.error("a block above 2 GiB"))?;
        lz4::block::decompress(stored, Some(limit)).map_err(|error| self.error(error))
    }
}
