//! The files of a log directory.
//!
//! Input: `F` and a file's header, `S` and a seal, `M` and a mark, `R` and a record, or `B` and a batch's body.

use super::choice;
use bytes::Bytes;
use varve_store::log::format::{
    FileHeader, GroupHeader, RECORD_HEADER_BYTES, RecordHeader, RecordKind, Seal, SyncedMark, decode_batch,
};
use xxhash_rust::xxh3::xxh3_64;

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'F', header)) => [header.to_vec(), resealed(header, 64)].iter().any(|bytes| reads_file_header(bytes)),
        Some((b'S', seal)) => [seal.to_vec(), resealed(seal, 48)].iter().any(|bytes| reads_seal(bytes)),
        Some((b'M', mark)) => [mark.to_vec(), resealed(mark, 40)].iter().any(|bytes| reads_mark(bytes)),
        Some((b'R', record)) => reads_record(record),
        Some((b'B', body)) => decode_batch(&Bytes::copy_from_slice(body)).is_ok(),
        _ => false,
    }
}

/// Corrects the checksum at the end of `length` bytes, so that a fuzzer passes it.
fn resealed(bytes: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if bytes.len() >= length {
        let (covered, checksum) = bytes[..length].split_at_mut(length - 8);
        checksum.copy_from_slice(&xxh3_64(covered).to_le_bytes());
    }
    bytes
}

fn reads_file_header(bytes: &[u8]) -> bool {
    let Ok(header) = FileHeader::decode(bytes) else { return false };
    assert_eq!(FileHeader::decode(&header.encode()), Ok(header));
    true
}

fn reads_seal(bytes: &[u8]) -> bool {
    let Ok(seal) = Seal::decode(bytes) else { return false };
    assert_eq!(Seal::decode(&seal.encode()), Ok(seal));
    true
}

fn reads_mark(bytes: &[u8]) -> bool {
    let Ok(mark) = SyncedMark::decode(bytes) else { return false };
    assert_eq!(SyncedMark::decode(&mark.encode()), Ok(mark));
    true
}

fn reads_record(bytes: &[u8]) -> bool {
    let Some((header, body)) = bytes.split_first_chunk::<RECORD_HEADER_BYTES>() else { return false };
    let Ok(header) = RecordHeader::decode(header) else { return false };
    let understood = match header.kind {
        RecordKind::Group => GroupHeader::decode(body).is_ok(),
        RecordKind::Batch => decode_batch(&Bytes::copy_from_slice(body)).is_ok(),
    };
    understood && header.matches(body)
}
