use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use slatedb::{RowEntry, ValueDeletable};

fn row(key: &'static [u8], value: ValueDeletable, create_ts: Option<i64>) -> RowEntry {
    RowEntry { key: Bytes::from_static(key), value, seq: 7, create_ts, expire_ts: None }
}

fn hex(bytes: &[u8]) -> String {
    let groups: Vec<_> =
        bytes.chunks(8).map(|group| group.iter().map(|byte| format!("{byte:02x}")).collect::<String>()).collect();
    groups.join(" ")
}

/// formats/log.md: these bytes never change within a version.
#[test]
fn golden_bytes() {
    let header = FileHeader { shard: 3, epoch: 5, number: 1, base: 1000, synced: 900, last_group: 42 };
    assert_eq!(
        hex(&header.encode()),
        "56415256454c4f47 0100000003000000 0500000000000000 0100000000000000 \
         e803000000000000 8403000000000000 2a00000000000000 c6a20c4ae4bdb119"
    );
    let seal = Seal { shard: 3, epoch: 5, length: 1234, last_group: 43 };
    assert_eq!(
        hex(&seal.encode()),
        "564152565345414c 0100000003000000 0500000000000000 d204000000000000 2b00000000000000 557b560b6c582ca0"
    );
    let mark = SyncedMark { shard: 3, epoch: 5, synced: 1234 };
    assert_eq!(
        hex(&mark.encode()),
        "5641525653594e43 0100000003000000 0500000000000000 d204000000000000 f27bfd3187b0760e"
    );
    let mut records = BytesMut::new();
    GroupHeader { id: 43, synced: 900 }.encode(5, 1000, &mut records);
    let rows = [
        row(b"E1", ValueDeletable::Value(Bytes::from_static(b"row")), Some(-2)),
        row(b"E2", ValueDeletable::Tombstone, None),
    ];
    let body = encode_batch(&BatchRows::of(&rows), 7, 5, 1048, &mut records).unwrap();
    assert_eq!(
        hex(&records),
        "5647525010000000 e803000000000000 0500000000000000 c484ea25953d0ea2 2b00000000000000 8403000000000000 \
         564241542d000000 1804000000000000 0500000000000000 9c37b50b0207089d 0700000000000000 0200000004020000 \
         0003000000feffff ffffffffff453172 6f77010200000000 0000004532"
    );
    assert_eq!(decode_batch(&records.freeze().slice(body..)).unwrap(), rows);
}

fn rows() -> impl Strategy<Value = Vec<RowEntry>> {
    let value = prop_oneof![
        any::<Vec<u8>>().prop_map(|value| ValueDeletable::Value(value.into())),
        any::<Vec<u8>>().prop_map(|value| ValueDeletable::Merge(value.into())),
        Just(ValueDeletable::Tombstone),
    ];
    let row = (any::<Vec<u8>>(), value, any::<Option<i64>>(), any::<Option<i64>>());
    proptest::collection::vec(row, 1..20).prop_map(|rows| {
        let row = |(key, value, create_ts, expire_ts): (Vec<u8>, _, _, _)| RowEntry {
            key: key.into(),
            value,
            seq: 99,
            create_ts,
            expire_ts,
        };
        rows.into_iter().map(row).collect()
    })
}

proptest! {
    /// Decoding returns the encoded rows; any changed bit is detected.
    #[test]
    fn batches_round_trip(rows in rows(), flipped in any::<prop::sample::Index>()) {
        let mut record = BytesMut::new();
        let encoded = BatchRows::of(&rows);
        encode_batch(&encoded, 99, 8, 64, &mut record).unwrap();
        prop_assert_eq!(record.len(), record_bytes(false, &encoded));
        let mut bytes = record.to_vec();
        let intact = |bytes: &[u8]| {
            let (header, body) = bytes.split_at(RECORD_HEADER_BYTES);
            let header = RecordHeader::decode(header.try_into().unwrap()).ok()?;
            let whole = header.body_bytes as usize == body.len() && header.matches(body);
            (whole && header.position == 64 && header.epoch == 8).then(|| decode_batch(&Bytes::copy_from_slice(body)))
        };
        prop_assert_eq!(intact(&bytes).unwrap().unwrap(), rows);
        let bit = flipped.index(bytes.len() * 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(intact(&bytes).is_none());
    }

    /// No bytes make a decoder panic.
    #[test]
    fn any_bytes_decode_or_are_refused(bytes in any::<Vec<u8>>()) {
        let _ = FileHeader::decode(&bytes);
        let _ = Seal::decode(&bytes);
        let _ = SyncedMark::decode(&bytes);
        let _ = GroupHeader::decode(&bytes);
        let _ = decode_batch(&Bytes::from(bytes));
    }
}

/// A later version is distinguished from damage, and damage from a later version.
#[test]
fn newer_version_is_not_damage() {
    let mut bytes = Seal { shard: 0, epoch: 1, length: 0, last_group: 0 }.encode();
    bytes[8] = 2;
    assert_eq!(Seal::decode(&bytes), Err(LogFormatError::Checksum));
    let checksum = xxh3_64(&bytes[..SEAL_BYTES - 8]);
    bytes[SEAL_BYTES - 8..].copy_from_slice(&checksum.to_le_bytes());
    assert_eq!(Seal::decode(&bytes), Err(LogFormatError::Version(2)));
    assert_eq!(Seal::decode(&bytes[..SEAL_BYTES - 1]), Err(LogFormatError::Length));
    assert_eq!(FileHeader::decode(&[0; FILE_HEADER_BYTES]), Err(LogFormatError::Magic));
}

/// Puts and deletes become rows; a batch without rows is an error.
#[test]
fn rows_are_put_and_deleted() {
    let mut rows = BatchRows::default();
    assert_eq!(encode_batch(&rows, 7, 1, 0, &mut BytesMut::new()), Err(LogFormatError::Empty));
    rows.put(|out| out.extend(b"E1"), |out| out.extend(b"row"));
    let broken =
        std::panic::AssertUnwindSafe(|| rows.put(|out| out.extend(b"half"), |_| panic!("no more of it comes")));
    assert!(std::panic::catch_unwind(broken).is_err());
    rows.delete(|out| out.extend(b"E2"));
    let mut record = BytesMut::new();
    let body = encode_batch(&rows, 7, 1, 0, &mut record).unwrap();
    let found = decode_batch(&record.freeze().slice(body..)).unwrap();
    let value = ValueDeletable::Value(Bytes::from_static(b"row"));
    assert_eq!(found, [row(b"E1", value, None), row(b"E2", ValueDeletable::Tombstone, None)]);
    let again = rows.cleared(1 << 20);
    assert!(again.count() == 0 && again.bytes().is_empty());
}
