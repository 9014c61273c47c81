//! Keys and rows of a shard's table.
//!
//! Input: `K` and a key, or the tag byte of a kind of key and a row of that kind.

use super::choice;
use varve_schema::Kind;
use varve_schema::codec::{decode_key, decode_row, encode_key, encode_row};

pub fn reads(bytes: &[u8]) -> bool {
    match choice(bytes) {
        Some((b'K', key)) => reads_key(key),
        Some((tag, row)) => {
            Kind::ALL.into_iter().find(|kind| kind.tag() == tag).is_some_and(|kind| reads_row(kind, row))
        }
        None => false,
    }
}

fn reads_key(bytes: &[u8]) -> bool {
    let Ok(key) = decode_key(bytes) else { return false };
    assert_eq!(encode_key(&key), bytes, "a key has one form: {key:?}");
    true
}

fn reads_row(kind: Kind, bytes: &[u8]) -> bool {
    let Ok(row) = decode_row(kind, bytes) else { return false };
    // Numbers may be encoded in longer forms than those that are written, so only the decoded rows are compared.
    let again = decode_row(kind, &encode_row(&row));
    assert_eq!(again.as_ref(), Ok(&row), "what is read is written and read again");
    true
}
