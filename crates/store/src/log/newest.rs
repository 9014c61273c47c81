//! Selects the newest row of each key.

use bytes::{Bytes, BytesMut};
use hashbrown::HashTable;
use slatedb::{RowEntry, ValueDeletable};
use std::hash::BuildHasher;
use varve_env::key_hash::KeyHashing;

/// Rows are stored together in pieces of this size. A row that is kept, as SlateDB keeps the first and the last key of
/// a table, keeps its piece in memory.
const PIECE_BYTES: usize = 32 * 1024;

/// Returns the last row of each key, in key order, which is the fastest order for the table. The rows are copied into
/// memory of their own, so that they do not keep the read buffers. Merges, which add to the earlier value, are treated
/// as values.
pub fn newest_of_each(rows: impl IntoIterator<Item = RowEntry>) -> Vec<RowEntry> {
    let hashing = KeyHashing::default();
    let mut places = HashTable::new();
    let mut newest: Vec<RowEntry> = Vec::new();
    for row in rows {
        let hash = hashing.hash_one(&*row.key);
        match places.find(hash, |place: &u32| newest[*place as usize].key == row.key) {
            Some(place) => newest[*place as usize] = row,
            None => {
                places
                    .insert_unique(hash, newest.len() as u32, |place| hashing.hash_one(&*newest[*place as usize].key));
                newest.push(row);
            }
        }
    }
    newest.sort_unstable_by(|a, b| a.key.cmp(&b.key));
    let mut piece = BytesMut::new();
    let mut copy = |bytes: &Bytes| {
        if piece.capacity() < bytes.len() {
            piece = BytesMut::with_capacity(PIECE_BYTES.max(bytes.len()));
        }
        piece.extend_from_slice(bytes);
        piece.split().freeze()
    };
    for row in &mut newest {
        row.key = copy(&row.key);
        if let ValueDeletable::Value(value) | ValueDeletable::Merge(value) = &mut row.value {
            *value = copy(value);
        }
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// Promise: returns the last row of each key in key order; a row that is kept keeps little memory beside its own.
    #[test]
    fn newest_row_of_each_key_in_key_order() {
        let row = |number: u64| RowEntry {
            key: Bytes::from(format!("key {}", number * 7919 % 1000)),
            value: match number % 5 {
                0 => ValueDeletable::Tombstone,
                _ => ValueDeletable::Value(vec![number as u8; number as usize % 300].into()),
            },
            seq: number,
            create_ts: None,
            expire_ts: Some(number as i64),
        };
        let rows: Vec<_> = (0..3000).map(row).collect();
        let last: BTreeMap<_, _> = rows.iter().map(|row| (row.key.clone(), row.clone())).collect();
        let newest = newest_of_each(rows);
        assert_eq!(newest, last.into_values().collect::<Vec<_>>());
        let bytes = |row: &RowEntry| row.key.len() + row.value.len();
        let is_apart =
            |pair: &&[RowEntry]| pair[0].key.as_ptr().addr() + bytes(&pair[0]) != pair[1].key.as_ptr().addr();
        let pieces = newest.windows(2).filter(is_apart).count() + 1;
        let least = newest.iter().map(bytes).sum::<usize>() / PIECE_BYTES;
        assert!(least > 1 && (least..=2 * least).contains(&pieces), "{pieces} pieces, of {least} at least");
    }
}
