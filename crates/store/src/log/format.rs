//! The bytes of log files and seals; `formats/log.md` explains them. Little-endian throughout. Pure.

mod fields;
mod rows;

pub use fields::LogFormatError;
pub use rows::{BatchRows, decode_batch, find_in_batch};

use bytes::{BufMut, BytesMut};
use fields::{BATCH_PREFIX_BYTES, Fields};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub const VERSION: u32 = 1;

const FILE_MAGIC: &[u8; 8] = b"VARVELOG";
const SEAL_MAGIC: &[u8; 8] = b"VARVSEAL";
const MARK_MAGIC: &[u8; 8] = b"VARVSYNC";
const GROUP_MAGIC: [u8; 4] = *b"VGRP";
const BATCH_MAGIC: [u8; 4] = *b"VBAT";

pub const FILE_HEADER_BYTES: usize = 64;
pub const SEAL_BYTES: usize = 48;
pub const MARK_BYTES: usize = 40;
pub const RECORD_HEADER_BYTES: usize = 32;
/// The bytes before the checksum. The checksum covers them and the body.
const COVERED_BYTES: usize = RECORD_HEADER_BYTES - 8;
const GROUP_BODY_BYTES: usize = 16;
const GROUP_BYTES: usize = RECORD_HEADER_BYTES + GROUP_BODY_BYTES;
/// The longest body of a record. It is far above what a worker writes in one batch, and it limits what a reader
/// allocates for a length that it has not checked yet.
pub const BODY_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The header of a log file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    pub shard: u16,
    pub epoch: u64,
    /// Counts the files of the epoch from 0.
    pub number: u32,
    /// Position in the epoch's stream of the byte after this header.
    pub base: u64,
    /// Synced position of the stream when the file was made.
    pub synced: u64,
    /// Every group in the file has a higher id.
    pub last_group: u64,
}

impl FileHeader {
    pub fn encode(&self) -> [u8; FILE_HEADER_BYTES] {
        let mut bytes = Vec::with_capacity(FILE_HEADER_BYTES);
        bytes.put_slice(FILE_MAGIC);
        bytes.put_u32_le(VERSION);
        bytes.put_u16_le(self.shard);
        bytes.put_u16_le(0);
        bytes.put_u64_le(self.epoch);
        bytes.put_u32_le(self.number);
        bytes.put_u32_le(0);
        bytes.put_u64_le(self.base);
        bytes.put_u64_le(self.synced);
        bytes.put_u64_le(self.last_group);
        bytes.put_u64_le(xxh3_64(&bytes));
        bytes.try_into().expect("the fields fill a header")
    }

    pub fn decode(bytes: &[u8]) -> Result<FileHeader, LogFormatError> {
        let mut fields = checked(bytes, FILE_HEADER_BYTES, FILE_MAGIC)?;
        let shard = fields.u16();
        fields.skip(2);
        let epoch = fields.u64();
        let number = fields.u32();
        fields.skip(4);
        Ok(FileHeader { shard, epoch, number, base: fields.u64(), synced: fields.u64(), last_group: fields.u64() })
    }
}

/// The record that ends an epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal {
    pub shard: u16,
    pub epoch: u64,
    /// Length of the epoch's stream in bytes: nothing at or beyond this position is ever replayed.
    pub length: u64,
    /// The last group of the epoch, or of an earlier one if it has none.
    pub last_group: u64,
}

impl Seal {
    pub fn encode(&self) -> [u8; SEAL_BYTES] {
        let mut bytes = Vec::with_capacity(SEAL_BYTES);
        bytes.put_slice(SEAL_MAGIC);
        bytes.put_u32_le(VERSION);
        bytes.put_u16_le(self.shard);
        bytes.put_u16_le(0);
        bytes.put_u64_le(self.epoch);
        bytes.put_u64_le(self.length);
        bytes.put_u64_le(self.last_group);
        bytes.put_u64_le(xxh3_64(&bytes));
        bytes.try_into().expect("the fields fill a seal")
    }

    pub fn decode(bytes: &[u8]) -> Result<Seal, LogFormatError> {
        let mut fields = checked(bytes, SEAL_BYTES, SEAL_MAGIC)?;
        let shard = fields.u16();
        fields.skip(2);
        Ok(Seal { shard, epoch: fields.u64(), length: fields.u64(), last_group: fields.u64() })
    }
}

/// The content of an epoch's mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncedMark {
    pub shard: u16,
    pub epoch: u64,
    /// Everything of the epoch's stream below this position was fsynced.
    pub synced: u64,
}

impl SyncedMark {
    pub fn encode(&self) -> [u8; MARK_BYTES] {
        let mut bytes = Vec::with_capacity(MARK_BYTES);
        bytes.put_slice(MARK_MAGIC);
        bytes.put_u32_le(VERSION);
        bytes.put_u16_le(self.shard);
        bytes.put_u16_le(0);
        bytes.put_u64_le(self.epoch);
        bytes.put_u64_le(self.synced);
        bytes.put_u64_le(xxh3_64(&bytes));
        bytes.try_into().expect("the fields fill a mark")
    }

    pub fn decode(bytes: &[u8]) -> Result<SyncedMark, LogFormatError> {
        let mut fields = checked(bytes, MARK_BYTES, MARK_MAGIC)?;
        let shard = fields.u16();
        fields.skip(2);
        Ok(SyncedMark { shard, epoch: fields.u64(), synced: fields.u64() })
    }
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    pub kind: RecordKind,
    pub body_bytes: u32,
    pub position: u64,
    pub epoch: u64,
    checksum: u64,
    covered: [u8; COVERED_BYTES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    Group,
    Batch,
}

impl RecordHeader {
    /// Decodes the header. Only the body shows whether it is valid ([`RecordHeader::matches`]).
    pub fn decode(bytes: &[u8; RECORD_HEADER_BYTES]) -> Result<RecordHeader, LogFormatError> {
        let mut fields = Fields(bytes);
        let kind = match fields.array::<4>() {
            GROUP_MAGIC => RecordKind::Group,
            BATCH_MAGIC => RecordKind::Batch,
            _ => return Err(LogFormatError::Magic),
        };
        let body_bytes = fields.u32();
        if u64::from(body_bytes) > BODY_BYTES_MAX {
            return Err(LogFormatError::Length);
        }
        let (position, epoch, checksum) = (fields.u64(), fields.u64(), fields.u64());
        let covered = bytes[..COVERED_BYTES].try_into().expect("a constant length");
        Ok(RecordHeader { kind, body_bytes, position, epoch, checksum, covered })
    }

    pub fn matches(&self, body: &[u8]) -> bool {
        checksum(&self.covered, body) == self.checksum
    }
}

/// The body of a group's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupHeader {
    pub id: u64,
    /// Synced position of the epoch's stream when the group began.
    pub synced: u64,
}

impl GroupHeader {
    pub fn decode(body: &[u8]) -> Result<GroupHeader, LogFormatError> {
        if body.len() != GROUP_BODY_BYTES {
            return Err(LogFormatError::Length);
        }
        let mut fields = Fields(body);
        Ok(GroupHeader { id: fields.u64(), synced: fields.u64() })
    }

    /// Appends the group's record, which begins at `position`.
    pub fn encode(&self, epoch: u64, position: u64, out: &mut BytesMut) {
        let [id, synced] = [self.id, self.synced].map(u64::to_le_bytes);
        append_record(GROUP_MAGIC, epoch, position, &id, &synced, out);
    }
}

/// Size in bytes of a batch's record of `rows`, preceded by a group's record if `with_group`.
pub fn record_bytes(with_group: bool, rows: &BatchRows) -> usize {
    let group = if with_group { GROUP_BYTES } else { 0 };
    group + RECORD_HEADER_BYTES + BATCH_PREFIX_BYTES + rows.bytes().len()
}

/// Appends the record of a batch, which begins at `position`. Returns where its body begins in `out`.
///
/// # Errors
/// [`LogFormatError::Length`] above [`BODY_BYTES_MAX`], [`LogFormatError::Empty`] without rows; nothing is appended
/// then.
pub fn encode_batch(
    rows: &BatchRows,
    sequence: u64,
    epoch: u64,
    position: u64,
    out: &mut BytesMut,
) -> Result<usize, LogFormatError> {
    if (BATCH_PREFIX_BYTES + rows.bytes().len()) as u64 > BODY_BYTES_MAX {
        return Err(LogFormatError::Length);
    }
    if rows.count() == 0 {
        return Err(LogFormatError::Empty);
    }
    let mut prefix = [0; BATCH_PREFIX_BYTES];
    prefix[..8].copy_from_slice(&sequence.to_le_bytes());
    prefix[8..].copy_from_slice(&rows.count().to_le_bytes());
    let start = out.len();
    append_record(BATCH_MAGIC, epoch, position, &prefix, rows.bytes(), out);
    Ok(start + RECORD_HEADER_BYTES)
}

/// Appends a record whose body is `head` and then `rest`, and which begins at `position`.
fn append_record(magic: [u8; 4], epoch: u64, position: u64, head: &[u8], rest: &[u8], out: &mut BytesMut) {
    const CHECKSUM_BYTES: usize = RECORD_HEADER_BYTES - COVERED_BYTES;
    let mut covered = [0; COVERED_BYTES];
    covered[..4].copy_from_slice(&magic);
    covered[4..8].copy_from_slice(&((head.len() + rest.len()) as u32).to_le_bytes());
    covered[8..16].copy_from_slice(&position.to_le_bytes());
    covered[16..].copy_from_slice(&epoch.to_le_bytes());
    let start = out.len();
    out.put_slice(&[0; CHECKSUM_BYTES]);
    out.put_slice(&covered);
    out.put_slice(head);
    out.put_slice(rest);
    let record = &mut out[start..];
    // The checksum lies between the header fields and the body that it covers. They are hashed as one piece before they
    // are moved into place.
    let checksum = xxh3_64(&record[CHECKSUM_BYTES..]);
    record[..COVERED_BYTES].copy_from_slice(&covered);
    record[COVERED_BYTES..RECORD_HEADER_BYTES].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(header: &[u8], body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(header);
    hasher.update(body);
    hasher.digest()
}

/// The fields after magic and version of a structure of `length` bytes that ends with its checksum.
fn checked<'a>(bytes: &'a [u8], length: usize, magic: &[u8; 8]) -> Result<Fields<'a>, LogFormatError> {
    let bytes = bytes.get(..length).ok_or(LogFormatError::Length)?;
    if &bytes[..8] != magic {
        return Err(LogFormatError::Magic);
    }
    let (covered, checksum) = bytes.split_at(length - 8);
    let mut fields = Fields(&covered[8..]);
    let version = fields.u32();
    if xxh3_64(covered) != Fields(checksum).u64() {
        return Err(LogFormatError::Checksum);
    }
    if version != VERSION {
        return Err(LogFormatError::Version(version));
    }
    Ok(fields)
}

#[cfg(test)]
mod tests;
