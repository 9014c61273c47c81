//! Encoding of keys and rows, as `formats/tables.md` describes it.
//!
//! Keys are encoded by hand, because their order matters: one byte for the [`Kind`], then ids in big-endian order. Rows
//! are one version byte, then postcard of the types in `stored`. The key determines the type of the row. Decoding
//! accepts any bytes: bytes that are not a valid key or row give a [`DecodeError`], never a panic.

use super::stored::{
    StoredCounter, StoredDecision, StoredDirectory, StoredDirectoryMoves, StoredEntry, StoredIntent, StoredNode,
    StoredOrphan, StoredPartition, StoredReplies, WrittenReplies,
};
use super::{DirectoryMovesRow, Key, Kind, ReplyRecord, Row, TransactionId};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use varve_types::{Epoch, HashRange, InodeId, Name, NameHash, PartitionIndex, SessionId, ShardId};

/// The first byte of every row; incremented when the following bytes change their meaning.
pub const ROW_VERSION: u8 = 1;

/// Longest name of an extended attribute (Linux's XATTR_NAME_MAX).
pub const XATTR_NAME_BYTES_MAX: usize = 255;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("a key of {0} bytes is not a key of this version")]
    Key(usize),
    #[error("a row's version is {found}, not {ROW_VERSION}: it was written by another version of Varve")]
    Version { found: u8 },
    #[error("a row of {0} bytes is malformed: {1}")]
    Row(usize, String),
}

impl Kind {
    pub const ALL: [Kind; 12] = [
        Kind::Partition,
        Kind::Entry,
        Kind::Directory,
        Kind::Inode,
        Kind::Xattr,
        Kind::Orphan,
        Kind::Garbage,
        Kind::Intent,
        Kind::Decision,
        Kind::Replies,
        Kind::Counter,
        Kind::DirectoryMoves,
    ];

    /// The first byte of this kind's keys.
    pub fn tag(self) -> u8 {
        match self {
            Kind::Partition => b'P',
            Kind::Entry => b'E',
            Kind::Directory => b'D',
            Kind::Inode => b'I',
            Kind::Xattr => b'X',
            Kind::Orphan => b'O',
            Kind::Garbage => b'G',
            Kind::Intent => b'T',
            Kind::Decision => b'V',
            Kind::Replies => b'R',
            Kind::Counter => b'C',
            Kind::DirectoryMoves => b'M',
        }
    }
}

/// Encodes `key`.
pub fn encode_key(key: &Key) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    append_key(key, &mut out);
    out
}

/// Appends the encoding of `key` to `out`.
pub fn append_key(key: &Key, out: &mut Vec<u8>) {
    out.push(key.kind().tag());
    match key {
        Key::Partition(directory, index) => {
            out.extend_from_slice(&directory.0.to_be_bytes());
            out.extend_from_slice(&index.0.to_be_bytes());
        }
        Key::Entry(directory, name) => {
            out.extend_from_slice(&directory.0.to_be_bytes());
            out.extend_from_slice(&name.hash().0.to_be_bytes());
            out.extend_from_slice(name.as_bytes());
        }
        Key::Directory(inode) | Key::Inode(inode) | Key::Orphan(inode) | Key::Garbage(inode) => {
            out.extend_from_slice(&inode.0.to_be_bytes());
        }
        Key::Xattr(inode, name) => {
            out.extend_from_slice(&inode.0.to_be_bytes());
            out.extend_from_slice(name);
        }
        Key::Intent(id) | Key::Decision(id) => {
            out.extend_from_slice(&id.coordinator.0.to_be_bytes());
            out.extend_from_slice(&id.epoch.0.to_be_bytes());
            out.extend_from_slice(&id.counter.to_be_bytes());
        }
        Key::Reply(session, slot) => {
            out.extend_from_slice(&session.0.to_be_bytes());
            out.extend_from_slice(&slot.to_be_bytes());
        }
        Key::Replies(number) => out.extend_from_slice(&number.to_be_bytes()),
        Key::Counter | Key::DirectoryMoves => {}
    }
}

/// Decodes a key.
pub fn decode_key(bytes: &[u8]) -> Result<Key, DecodeError> {
    parse_key(bytes).ok_or(DecodeError::Key(bytes.len()))
}

fn parse_key(bytes: &[u8]) -> Option<Key> {
    let (tag, rest) = bytes.split_first()?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.tag() == *tag)?;
    let whole = |(key, rest): (Key, &[u8])| rest.is_empty().then_some(key);
    match kind {
        Kind::Partition => {
            let (directory, rest) = take_u64(rest)?;
            let (index, rest) = take_u16(rest)?;
            whole((Key::Partition(InodeId(directory), PartitionIndex(index)), rest))
        }
        Kind::Entry => {
            let (directory, rest) = take_u64(rest)?;
            let (hash, rest) = take_u64(rest)?;
            let name = Name::new(rest).ok()?;
            (name.hash() == NameHash(hash)).then(|| Key::Entry(InodeId(directory), name))
        }
        Kind::Directory => take_u64(rest).and_then(|(id, rest)| whole((Key::Directory(InodeId(id)), rest))),
        Kind::Inode => take_u64(rest).and_then(|(id, rest)| whole((Key::Inode(InodeId(id)), rest))),
        Kind::Orphan => take_u64(rest).and_then(|(id, rest)| whole((Key::Orphan(InodeId(id)), rest))),
        Kind::Garbage => take_u64(rest).and_then(|(id, rest)| whole((Key::Garbage(InodeId(id)), rest))),
        Kind::Xattr => {
            let (inode, name) = take_u64(rest)?;
            let sound = (1..=XATTR_NAME_BYTES_MAX).contains(&name.len()) && !name.contains(&0);
            sound.then(|| Key::Xattr(InodeId(inode), Bytes::copy_from_slice(name)))
        }
        Kind::Intent => take_transaction(rest).and_then(|(id, rest)| whole((Key::Intent(id), rest))),
        Kind::Decision => take_transaction(rest).and_then(|(id, rest)| whole((Key::Decision(id), rest))),
        Kind::Replies => {
            let (first, rest) = take_u64(rest)?;
            match <[u8; 4]>::try_from(rest) {
                Ok(slot) => Some(Key::Reply(SessionId(first), u32::from_be_bytes(slot))),
                Err(_) => whole((Key::Replies(first), rest)),
            }
        }
        Kind::Counter => whole((Key::Counter, rest)),
        Kind::DirectoryMoves => whole((Key::DirectoryMoves, rest)),
    }
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    bytes.split_first_chunk().map(|(head, rest)| (u64::from_be_bytes(*head), rest))
}

fn take_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    bytes.split_first_chunk().map(|(head, rest)| (u16::from_be_bytes(*head), rest))
}

fn take_transaction(bytes: &[u8]) -> Option<(TransactionId, &[u8])> {
    let (coordinator, rest) = take_u16(bytes)?;
    let (epoch, rest) = take_u64(rest)?;
    let (counter, rest) = take_u64(rest)?;
    Some((TransactionId { coordinator: ShardId(coordinator), epoch: Epoch(epoch), counter }, rest))
}

/// The range of all keys of one kind in a shard.
pub fn keys_of(kind: Kind) -> Range<Vec<u8>> {
    vec![kind.tag()]..vec![kind.tag() + 1]
}

/// The range of keys of the entries of `directory` with hashes in `range`.
pub fn entries_of(directory: InodeId, range: HashRange) -> Range<Vec<u8>> {
    let at = |hash: u64| {
        let mut key = prefix(Kind::Entry, directory);
        key.extend_from_slice(&hash.to_be_bytes());
        key
    };
    // Hashes have 63 bits, so the one after the last does not overflow.
    at(range.first.0)..at(range.last.0 + 1)
}

/// The range of keys of the extended attributes of `inode`.
pub fn xattrs_of(inode: InodeId) -> Range<Vec<u8>> {
    let end = match inode.0.checked_add(1) {
        Some(next) => prefix(Kind::Xattr, InodeId(next)),
        None => vec![Kind::Xattr.tag() + 1],
    };
    prefix(Kind::Xattr, inode)..end
}

fn prefix(kind: Kind, inode: InodeId) -> Vec<u8> {
    let mut key = Vec::with_capacity(17);
    key.push(kind.tag());
    key.extend_from_slice(&inode.0.to_be_bytes());
    key
}

/// Encodes `row`.
pub fn encode_row(row: &Row) -> Vec<u8> {
    let mut out = Vec::with_capacity(128);
    append_row(row, &mut out);
    out
}

/// Appends the encoding of `row` to `out`.
pub fn append_row(row: &Row, out: &mut Vec<u8>) {
    out.push(ROW_VERSION);
    match row {
        Row::Partition(row) => append(&StoredPartition::from(row), out),
        Row::Entry(row) => append(&StoredEntry::from(row), out),
        Row::Directory(row) => append(&StoredDirectory::from(row), out),
        Row::Inode(row) => append(&StoredNode::from(row), out),
        Row::Xattr(value) => out.extend_from_slice(value),
        Row::Orphan(row) => append(&StoredOrphan::from(row), out),
        Row::Garbage => {}
        Row::Intent(row) => append(&StoredIntent::from(row), out),
        Row::Decision(row) => append(&StoredDecision::from(row), out),
        Row::Replies(records) => append(&WrittenReplies(records), out),
        Row::Counter(row) => append(&StoredCounter::from(row), out),
        Row::DirectoryMoves(row) => append(&StoredDirectoryMoves { count: row.count }, out),
    }
}

/// [`append_row`] for replies that are not in a row yet.
pub fn append_replies(records: &[ReplyRecord], out: &mut Vec<u8>) {
    out.push(ROW_VERSION);
    append(&WrittenReplies(records), out);
}

/// Decodes the row of a key of `kind`.
pub fn decode_row(kind: Kind, bytes: &[u8]) -> Result<Row, DecodeError> {
    let malformed = |why: &str| DecodeError::Row(bytes.len(), why.to_owned());
    let body = match bytes.split_first() {
        Some((&ROW_VERSION, body)) => body,
        Some((&found, _)) => return Err(DecodeError::Version { found }),
        None => return Err(malformed("no version")),
    };
    let row = match kind {
        Kind::Partition => read::<StoredPartition<'_>>(body).and_then(|row| row.to_row().map(Row::Partition)),
        Kind::Entry => read::<StoredEntry<'_>>(body).and_then(|row| row.to_row().map(Row::Entry)),
        Kind::Directory => read::<StoredDirectory<'_>>(body).and_then(|row| row.to_row().map(Row::Directory)),
        Kind::Inode => read::<StoredNode<'_>>(body).and_then(|row| row.to_row().map(Row::Inode)),
        Kind::Xattr => Ok(Row::Xattr(Bytes::copy_from_slice(body))),
        Kind::Orphan => read::<StoredOrphan>(body).and_then(|row| row.to_row().map(Row::Orphan)),
        Kind::Garbage => match body {
            [] => Ok(Row::Garbage),
            rest => Err(format!("{} bytes too many", rest.len())),
        },
        Kind::Intent => read::<StoredIntent<'_>>(body).and_then(|row| row.to_row().map(Row::Intent)),
        Kind::Decision => read::<StoredDecision>(body).map(|row| Row::Decision(row.to_row())),
        Kind::Replies => read::<StoredReplies<'_>>(body).map(|row| Row::Replies(row.to_records())),
        Kind::Counter => read::<StoredCounter>(body).map(|row| Row::Counter(row.to_row())),
        Kind::DirectoryMoves => read::<StoredDirectoryMoves>(body)
            .map(|StoredDirectoryMoves { count }| Row::DirectoryMoves(DirectoryMovesRow { count })),
    };
    row.map_err(|why| malformed(&why))
}

/// Decodes a key and its row.
pub fn decode(key: &[u8], row: &[u8]) -> Result<(Key, Row), DecodeError> {
    let key = decode_key(key)?;
    let row = decode_row(key.kind(), row)?;
    Ok((key, row))
}

fn append<S: Serialize>(stored: &S, out: &mut Vec<u8>) {
    varve_proto::append(stored, out).expect("stored types have known lengths, and a vector takes any number of bytes");
}

fn read<'a, S: Deserialize<'a>>(body: &'a [u8]) -> Result<S, String> {
    match postcard::take_from_bytes(body) {
        Ok((stored, [])) => Ok(stored),
        Ok((_, rest)) => Err(format!("{} bytes too many", rest.len())),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests;
