//! The bytes of log files and seals; `formats/log.md` explains them. Little-endian throughout. Pure.

use bytes::{BufMut, Bytes};
use slatedb::{RowEntry, ValueDeletable};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

pub const VERSION: u32 = 1;

const FILE_MAGIC: &[u8; 8] = b"VARVELOG";
const SEAL_MAGIC: &[u8; 8] = b"VARVSEAL";
const MARK_MAGIC: &[u8; 8] = b"VARVSYNC";
pub const GROUP_MAGIC: [u8; 4] = *b"VGRP";
const BATCH_MAGIC: [u8; 4] = *b"VBAT";

pub const FILE_HEADER_BYTES: usize = 64;
pub const SEAL_BYTES: usize = 48;
pub const MARK_BYTES: usize = 40;
pub const RECORD_HEADER_BYTES: usize = 32;
pub const GROUP_BODY_BYTES: usize = 16;
pub const GROUP_BYTES: usize = RECORD_HEADER_BYTES + GROUP_BODY_BYTES;
/// Before the rows of a batch: sequence number and count.
const BATCH_PREFIX_BYTES: usize = 12;
/// The longest body of a record. Far above what a worker writes in one batch; it bounds what a reader allocates for a
/// length that it has not checked yet.
pub const BODY_BYTES_MAX: u64 = 256 * 1024 * 1024;

const ROW_KIND_MASK: u8 = 0b11;
const ROW_VALUE: u8 = 0;
const ROW_TOMBSTONE: u8 = 1;
const ROW_MERGE: u8 = 2;
const ROW_HAS_CREATED: u8 = 0b0100;
const ROW_HAS_EXPIRES: u8 = 0b1000;

/// What a file begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    pub shard: u16,
    pub epoch: u64,
    /// Counts the files of the epoch from 0.
    pub number: u32,
    /// Position in the epoch's stream of the byte after this header.
    pub base: u64,
    /// How far the stream was synced when the file was made.
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

    pub fn decode(bytes: &[u8]) -> Result<FileHeader, FormatError> {
        let mut fields = checked(bytes, FILE_HEADER_BYTES, FILE_MAGIC)?;
        let shard = fields.u16();
        fields.skip(2);
        let epoch = fields.u64();
        let number = fields.u32();
        fields.skip(4);
        Ok(FileHeader { shard, epoch, number, base: fields.u64(), synced: fields.u64(), last_group: fields.u64() })
    }
}

/// What ends an epoch.
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

    pub fn decode(bytes: &[u8]) -> Result<Seal, FormatError> {
        let mut fields = checked(bytes, SEAL_BYTES, SEAL_MAGIC)?;
        let shard = fields.u16();
        fields.skip(2);
        Ok(Seal { shard, epoch: fields.u64(), length: fields.u64(), last_group: fields.u64() })
    }
}

/// What the mark of an epoch holds.
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

    pub fn decode(bytes: &[u8]) -> Result<SyncedMark, FormatError> {
        let mut fields = checked(bytes, MARK_BYTES, MARK_MAGIC)?;
        let shard = fields.u16();
        fields.skip(2);
        Ok(SyncedMark { shard, epoch: fields.u64(), synced: fields.u64() })
    }
}

/// What a record is, with what its header says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHeader {
    pub kind: RecordKind,
    pub body_bytes: u32,
    pub position: u64,
    pub epoch: u64,
    checksum: u64,
    covered: [u8; RECORD_HEADER_BYTES - 8],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordKind {
    Group,
    Batch,
}

impl RecordHeader {
    /// Reads the header; whether it is true only the body can tell ([`RecordHeader::matches`]).
    pub fn decode(bytes: &[u8; RECORD_HEADER_BYTES]) -> Result<RecordHeader, FormatError> {
        let mut fields = Fields(bytes);
        let kind = match fields.array::<4>() {
            GROUP_MAGIC => RecordKind::Group,
            BATCH_MAGIC => RecordKind::Batch,
            _ => return Err(FormatError::Magic),
        };
        let body_bytes = fields.u32();
        if u64::from(body_bytes) > BODY_BYTES_MAX {
            return Err(FormatError::Length);
        }
        let (position, epoch, checksum) = (fields.u64(), fields.u64(), fields.u64());
        let covered = bytes[..RECORD_HEADER_BYTES - 8].try_into().expect("a constant length");
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
    /// How far the epoch's stream was synced when the group began.
    pub synced: u64,
}

impl GroupHeader {
    pub fn decode(body: &[u8]) -> Result<GroupHeader, FormatError> {
        if body.len() != GROUP_BODY_BYTES {
            return Err(FormatError::Length);
        }
        let mut fields = Fields(body);
        Ok(GroupHeader { id: fields.u64(), synced: fields.u64() })
    }

    /// Appends the group's record, which begins at `position`.
    pub fn encode(&self, epoch: u64, position: u64, out: &mut Vec<u8>) {
        let start = begin_record(GROUP_MAGIC, epoch, position, out);
        out.put_u64_le(self.id);
        out.put_u64_le(self.synced);
        end_record(start, out);
    }
}

/// Appends the record of a batch, which begins at `position`. All rows have the same sequence number.
pub fn encode_batch(rows: &[RowEntry], epoch: u64, position: u64, out: &mut Vec<u8>) -> Result<(), FormatError> {
    let body: u64 = rows.iter().map(row_bytes).sum::<u64>() + BATCH_PREFIX_BYTES as u64;
    if body > BODY_BYTES_MAX {
        return Err(FormatError::Length);
    }
    let sequence = rows.first().ok_or(FormatError::Empty)?.seq;
    if rows.iter().any(|row| row.seq != sequence) {
        return Err(FormatError::Sequence);
    }
    out.reserve(RECORD_HEADER_BYTES + body as usize);
    let start = begin_record(BATCH_MAGIC, epoch, position, out);
    out.put_u64_le(sequence);
    out.put_u32_le(rows.len() as u32);
    rows.iter().for_each(|row| encode_row(row, out));
    end_record(start, out);
    Ok(())
}

fn row_bytes(row: &RowEntry) -> u64 {
    let timestamps = u64::from(row.create_ts.is_some()) + u64::from(row.expire_ts.is_some());
    9 + 8 * timestamps + row.key.len() as u64 + value_of(&row.value).1.len() as u64
}

fn value_of(value: &ValueDeletable) -> (u8, &[u8]) {
    match value {
        ValueDeletable::Value(value) => (ROW_VALUE, value),
        ValueDeletable::Tombstone => (ROW_TOMBSTONE, &[]),
        ValueDeletable::Merge(value) => (ROW_MERGE, value),
    }
}

fn encode_row(row: &RowEntry, out: &mut Vec<u8>) {
    let (kind, value) = value_of(&row.value);
    let created = if row.create_ts.is_some() { ROW_HAS_CREATED } else { 0 };
    let expires = if row.expire_ts.is_some() { ROW_HAS_EXPIRES } else { 0 };
    let mut head = [kind | created | expires; 9];
    head[1..5].copy_from_slice(&(row.key.len() as u32).to_le_bytes());
    head[5..].copy_from_slice(&(value.len() as u32).to_le_bytes());
    out.put_slice(&head);
    row.create_ts.iter().chain(&row.expire_ts).for_each(|time| out.put_i64_le(*time));
    out.put_slice(&row.key);
    out.put_slice(value);
}

/// The sequence number of a batch's body.
pub fn decode_sequence(body: &[u8]) -> Result<u64, FormatError> {
    if body.len() < BATCH_PREFIX_BYTES {
        return Err(FormatError::Length);
    }
    Ok(Fields(body).u64())
}

/// The rows of a batch's body, which share its memory.
pub fn decode_batch(body: &Bytes) -> Result<Vec<RowEntry>, FormatError> {
    let seq = decode_sequence(body)?;
    let count = u32::from_le_bytes(body[8..12].try_into().expect("a constant length"));
    let mut rows = Vec::with_capacity((count as usize).min(body.len() / 9));
    let mut at = BATCH_PREFIX_BYTES;
    for _ in 0..count {
        let mut take = |length: usize| {
            let end = at.checked_add(length).filter(|end| *end <= body.len()).ok_or(FormatError::Length)?;
            let taken = body.slice(at..end);
            at = end;
            Ok(taken)
        };
        let flags = take(1)?[0];
        let lengths = take(8)?;
        let (key_bytes, value_bytes) = (Fields(&lengths).u32(), Fields(&lengths[4..]).u32());
        let mut time = |flag: u8| match flags & flag {
            0 => Ok(None),
            _ => take(8).map(|bytes| Some(Fields(&bytes).u64() as i64)),
        };
        let (create_ts, expire_ts) = (time(ROW_HAS_CREATED)?, time(ROW_HAS_EXPIRES)?);
        let (key, value) = (take(key_bytes as usize)?, take(value_bytes as usize)?);
        let value = match flags & ROW_KIND_MASK {
            _ if flags & !(ROW_KIND_MASK | ROW_HAS_CREATED | ROW_HAS_EXPIRES) != 0 => return Err(FormatError::Flags),
            ROW_VALUE => ValueDeletable::Value(value),
            ROW_TOMBSTONE if value.is_empty() => ValueDeletable::Tombstone,
            ROW_MERGE => ValueDeletable::Merge(value),
            _ => return Err(FormatError::Flags),
        };
        rows.push(RowEntry { key, value, seq, create_ts, expire_ts });
    }
    if at != body.len() || rows.is_empty() {
        return Err(FormatError::Length);
    }
    Ok(rows)
}

fn begin_record(magic: [u8; 4], epoch: u64, position: u64, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.put_slice(&magic);
    out.put_u32_le(0);
    out.put_u64_le(position);
    out.put_u64_le(epoch);
    out.put_u64_le(0);
    start
}

/// Fills in the length and the checksum of the record that begins at `start` and ends with `out`.
fn end_record(start: usize, out: &mut [u8]) {
    let body_bytes = (out.len() - start - RECORD_HEADER_BYTES) as u32;
    out[start + 4..start + 8].copy_from_slice(&body_bytes.to_le_bytes());
    let (header, body) = out[start..].split_at(RECORD_HEADER_BYTES);
    let checksum = checksum(&header[..RECORD_HEADER_BYTES - 8], body);
    out[start + 24..start + 32].copy_from_slice(&checksum.to_le_bytes());
}

fn checksum(header: &[u8], body: &[u8]) -> u64 {
    let mut hasher = Xxh3::new();
    hasher.update(header);
    hasher.update(body);
    hasher.digest()
}

/// The fields after magic and version of a structure of `length` bytes that ends with its checksum.
fn checked<'a>(bytes: &'a [u8], length: usize, magic: &[u8; 8]) -> Result<Fields<'a>, FormatError> {
    let bytes = bytes.get(..length).ok_or(FormatError::Length)?;
    if &bytes[..8] != magic {
        return Err(FormatError::Magic);
    }
    let (covered, checksum) = bytes.split_at(length - 8);
    let mut fields = Fields(&covered[8..]);
    let version = fields.u32();
    if xxh3_64(covered) != Fields(checksum).u64() {
        return Err(FormatError::Checksum);
    }
    if version != VERSION {
        return Err(FormatError::Version(version));
    }
    Ok(fields)
}

/// Reads fields of known lengths off the front of checked bytes.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const LENGTH: usize>(&mut self) -> [u8; LENGTH] {
        let (taken, rest) = self.0.split_at(LENGTH);
        self.0 = rest;
        taken.try_into().expect("split at its length")
    }

    fn skip(&mut self, length: usize) {
        self.0 = &self.0[length..];
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }
}

/// Why bytes are not what they should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("no record begins here")]
    Magic,
    #[error("its length is wrong")]
    Length,
    #[error("its checksum is wrong")]
    Checksum,
    #[error("its version is {0}")]
    Version(u32),
    #[error("it belongs to another place")]
    Place,
    #[error("a row has unknown flags")]
    Flags,
    #[error("it has no rows")]
    Empty,
    #[error("its rows have different sequence numbers")]
    Sequence,
    #[error("its group is out of order")]
    Order,
    #[error("it ends here, and more of it was fsynced")]
    Cut,
}

#[cfg(test)]
mod tests;
