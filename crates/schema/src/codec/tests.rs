//! Guarantees of `formats/tables.md`: these bytes, this order, and no panic on any input.

use super::*;
use crate::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use varve_types::{Attributes, FileKind, LayoutGeneration, Mode, PartitionMap, SessionId, ShardCount, Timestamp};

fn name(bytes: &[u8]) -> Name {
    Name::new(bytes).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn time(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanoseconds: 5 }
}

fn attributes(kind: FileKind, size: u64) -> Attributes {
    Attributes {
        kind,
        mode: Mode(0o644),
        uid: 1000,
        gid: 100,
        nlink: 1,
        size,
        rdev: 0,
        atime: time(1),
        mtime: time(2),
        ctime: time(3),
        btime: time(-1),
    }
}

fn transaction() -> TransactionId {
    TransactionId { coordinator: ShardId(0x0102), epoch: Epoch(3), counter: 4 }
}

#[test]
fn golden_keys() {
    let inode = InodeId::new(ShardId(7), 0x0a);
    let golden = [
        (Key::Partition(inode, PartitionIndex(5)), "50000700000000000a0005"),
        (Key::Entry(inode, name(b"hello")), "45000700000000000a4aaaf42aae316e7e68656c6c6f"),
        (Key::Directory(inode), "44000700000000000a"),
        (Key::Inode(inode), "49000700000000000a"),
        (Key::Xattr(inode, Bytes::from_static(b"user.a")), "58000700000000000a757365722e61"),
        (Key::Orphan(inode), "4f000700000000000a"),
        (Key::Garbage(inode), "47000700000000000a"),
        (Key::Intent(transaction()), "54010200000000000000030000000000000004"),
        (Key::Decision(transaction()), "56010200000000000000030000000000000004"),
        (Key::Reply(SessionId(8), 7), "52000000000000000800000007"),
        (Key::Replies(9), "520000000000000009"),
        (Key::Counter, "43"),
        (Key::DirectoryMoves, "4d"),
    ];
    for (key, bytes) in golden {
        assert_eq!(hex(&encode_key(&key)), bytes, "{key:?}");
        assert_eq!(decode_key(&encode_key(&key)).as_ref(), Ok(&key));
    }
}

#[test]
fn golden_rows() {
    let map = PartitionMap::from_words(ShardCount::new(4).unwrap(), vec![0b11]).unwrap();
    let node = NodeRow {
        attributes: attributes(FileKind::Regular, 2),
        content: Content::Inline(Bytes::from_static(b"hi")),
        generation: LayoutGeneration(1),
        xattrs: vec![Bytes::from_static(b"user.a")],
    };
    let backing = NodeRow {
        attributes: attributes(FileKind::Regular, 300),
        content: Content::Backing(BackingSize::Truncating(300)),
        generation: LayoutGeneration(2),
        xattrs: Vec::new(),
    };
    let size_stale = |at_least| {
        let content = Content::Backing(BackingSize::Stale { at_least });
        Row::Inode(NodeRow { content, ..backing.clone() })
    };
    let partition = PartitionRow {
        index: PartitionIndex(1),
        depth: 1,
        state: PartitionState::Incoming,
        mode: Mode(0o755),
        uid: 0,
        gid: 1,
        entries: 3,
        subdirectories: 2,
        mtime: time(9),
        map: map.clone(),
    };
    let directory = DirectoryRow {
        parent: InodeId::ROOT,
        mode: Mode(0o755),
        uid: 0,
        gid: 1,
        atime: time(1),
        mtime: time(2),
        ctime: time(3),
        btime: time(4),
        map,
        xattrs: Vec::new(),
    };
    let record = ReplyRecord {
        session: SessionId(1),
        slot: 2,
        number: 3,
        about: Some((InodeId::ROOT, NameHash(16))),
        reply: Bytes::from_static(b"ok"),
    };
    let intent = IntentRow {
        participants: vec![ShardId(1), ShardId(2)],
        changes: vec![
            Change::put(Key::Counter, Row::Counter(CounterRow { inodes_end: 1 })),
            Change::Delete(Key::Counter),
            Change::Tally { directory: InodeId::ROOT, name: name(b"a"), entries: -1, subdirectories: 1, at: time(1) },
        ],
        reads: vec![ReadRecord { key: Key::Counter, digest: Some(7) }, ReadRecord { key: Key::Counter, digest: None }],
        reply: Some(record.clone()),
    };
    let entry = |body| Row::Entry(EntryRow { inode: InodeId(2), body });
    let golden = [
        (entry(EntryBody::Node(node.clone())), "01020000a403e80764010200020504050605010500026869010106757365722e61"),
        (entry(EntryBody::Directory(attributes(FileKind::Directory, 0))), "01020101a403e807640100000205040506050105"),
        (entry(EntryBody::Reference(FileKind::Fifo)), "01020203"),
        (Row::Inode(backing.clone()), "0100a403e8076401ac020002050405060501050102ac020200"),
        (size_stale(0), "0100a403e8076401ac0200020504050605010501010200"),
        (size_stale(300), "0100a403e8076401ac020002050405060501050103ac020200"),
        (Row::Partition(partition), "01010102ed03000103021205040103"),
        (Row::Directory(directory), "0101ed030001020504050605080504010300"),
        (Row::Xattr(Bytes::from_static(b"value")), "0176616c7565"),
        (Row::Orphan(OrphanRow { since: time(1) }), "010205"),
        (Row::Garbage, "01"),
        (Row::Intent(intent), "01020102030001430201010101430201016101020205020143010701430001010203010110026f6b"),
        (Row::Decision(DecisionRow { participants: vec![ShardId(300)] }), "0101ac02"),
        (Row::Replies(vec![record]), "0101010203010110026f6b"),
        (Row::Counter(CounterRow { inodes_end: 128 }), "018001"),
        (Row::DirectoryMoves(DirectoryMovesRow { count: 300 }), "01ac02"),
    ];
    for (row, bytes) in golden {
        assert_eq!(hex(&encode_row(&row)), bytes, "{row:?}");
        assert_eq!(decode_row(row.kind(), &encode_row(&row)).as_ref(), Ok(&row));
    }
}

#[test]
fn entries_of_one_directory_are_one_range_ordered_by_hash() {
    let directory = InodeId(5);
    let mut keys: Vec<Vec<u8>> =
        (0..1000).map(|i| encode_key(&Key::Entry(directory, name(format!("file-{i}").as_bytes())))).collect();
    keys.sort();
    let hashes: Vec<NameHash> = keys
        .iter()
        .map(|key| match decode_key(key).unwrap() {
            Key::Entry(_, name) => name.hash(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(hashes.is_sorted());
    let all = entries_of(directory, HashRange::ALL);
    assert!(keys.iter().all(|key| all.contains(key)));
    let upper = PartitionIndex(1).range(1);
    let range = entries_of(directory, upper);
    for (key, hash) in keys.iter().zip(&hashes) {
        assert_eq!(range.contains(key), upper.contains(*hash));
    }
    for other in [InodeId(4), InodeId(6)] {
        assert!(!all.contains(&encode_key(&Key::Entry(other, name(b"file-1")))));
    }
}

#[test]
fn xattrs_of_one_inode_are_one_range() {
    for inode in [InodeId(0), InodeId(9), InodeId(u64::MAX)] {
        let range = xattrs_of(inode);
        assert!(range.contains(&encode_key(&Key::Xattr(inode, Bytes::from_static(&[1])))));
        assert!(range.contains(&encode_key(&Key::Xattr(inode, Bytes::from(vec![0xff; XATTR_NAME_BYTES_MAX])))));
        assert!(!range.contains(&encode_key(&Key::Xattr(InodeId(8), Bytes::from_static(b"a")))));
    }
}

#[test]
fn row_of_another_version_is_named() {
    let mut bytes = encode_row(&Row::Counter(CounterRow { inodes_end: 1 }));
    bytes[0] = 9;
    assert_eq!(decode_row(Kind::Counter, &bytes), Err(DecodeError::Version { found: 9 }));
}

#[test]
fn an_entry_key_whose_hash_is_not_its_names_is_refused() {
    let mut bytes = encode_key(&Key::Entry(InodeId(5), name(b"a")));
    bytes[10] ^= 1;
    assert_eq!(decode_key(&bytes), Err(DecodeError::Key(bytes.len())));
}

fn any_bytes(max: usize) -> impl Strategy<Value = Bytes> {
    vec(any::<u8>(), 0..max).prop_map(Bytes::from)
}

fn any_name() -> impl Strategy<Value = Name> {
    vec(any::<u8>(), 1..=255).prop_filter_map("no name", |bytes| Name::new(&bytes).ok())
}

fn any_inode() -> impl Strategy<Value = InodeId> {
    any::<u64>().prop_map(InodeId)
}

fn any_transaction() -> impl Strategy<Value = TransactionId> {
    (any::<u16>(), any::<u64>(), any::<u64>()).prop_map(|(coordinator, epoch, counter)| TransactionId {
        coordinator: ShardId(coordinator),
        epoch: Epoch(epoch),
        counter,
    })
}

fn any_xattr_name() -> impl Strategy<Value = Bytes> {
    vec(1..=255u8, 1..=XATTR_NAME_BYTES_MAX).prop_map(Bytes::from)
}

fn any_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        (any_inode(), any::<u16>()).prop_map(|(inode, index)| Key::Partition(inode, PartitionIndex(index))),
        (any_inode(), any_name()).prop_map(|(inode, name)| Key::Entry(inode, name)),
        any_inode().prop_map(Key::Directory),
        any_inode().prop_map(Key::Inode),
        (any_inode(), any_xattr_name()).prop_map(|(inode, name)| Key::Xattr(inode, name)),
        any_inode().prop_map(Key::Orphan),
        any_inode().prop_map(Key::Garbage),
        any_transaction().prop_map(Key::Intent),
        any_transaction().prop_map(Key::Decision),
        (any::<u64>(), any::<u32>()).prop_map(|(session, slot)| Key::Reply(SessionId(session), slot)),
        any::<u64>().prop_map(Key::Replies),
        Just(Key::Counter),
        Just(Key::DirectoryMoves),
    ]
}

fn any_time() -> impl Strategy<Value = Timestamp> {
    (any::<i64>(), 0..1_000_000_000u32).prop_map(|(seconds, nanoseconds)| Timestamp { seconds, nanoseconds })
}

fn any_file_kind() -> impl Strategy<Value = FileKind> {
    prop_oneof![
        Just(FileKind::Regular),
        Just(FileKind::Directory),
        Just(FileKind::Symlink),
        Just(FileKind::Fifo),
        Just(FileKind::Socket),
        Just(FileKind::CharDevice),
        Just(FileKind::BlockDevice),
    ]
}

fn any_mode() -> impl Strategy<Value = Mode> {
    (0..=Mode::MASK).prop_map(Mode)
}

fn any_map() -> impl Strategy<Value = PartitionMap> {
    (0u32..=12, vec(any::<u64>(), 0..40)).prop_map(|(count_log2, splits)| {
        let shards = ShardCount::new(1 << count_log2).unwrap();
        let mut map = PartitionMap::whole(shards);
        for at in splits {
            let index = map.partition_of(NameHash(at >> 1));
            let depth = map.depth(index);
            if depth < shards.depth_max() {
                map.add(index.upper_half(depth));
            }
        }
        map
    })
}

prop_compose! {
    fn any_attributes()(
        kind in any_file_kind(),
        mode in any_mode(),
        (uid, gid, nlink, rdev) in any::<(u32, u32, u32, u32)>(),
        size in any::<u64>(),
        (atime, mtime, ctime, btime) in (any_time(), any_time(), any_time(), any_time()),
    ) -> Attributes {
        Attributes { kind, mode, uid, gid, nlink, size, rdev, atime, mtime, ctime, btime }
    }
}

prop_compose! {
    fn any_node()(
        attributes in any_attributes(),
        content in prop_oneof![
            any_bytes(300).prop_map(Content::Inline),
            Just(Content::Backing(BackingSize::Authoritative)),
            any::<u64>().prop_map(|at_least| Content::Backing(BackingSize::Stale { at_least })),
            Just(Content::Backing(BackingSize::Stale { at_least: 0 })),
            any::<u64>().prop_map(|size| Content::Backing(BackingSize::Truncating(size))),
            any_bytes(300).prop_map(Content::Symlink),
            Just(Content::None),
        ],
        generation in any::<u32>(),
        xattrs in vec(any_xattr_name(), 0..4),
    ) -> NodeRow {
        NodeRow { attributes, content, generation: LayoutGeneration(generation), xattrs }
    }
}

prop_compose! {
    fn any_partition()(
        map in any_map(),
        at in any::<u64>(),
        state in prop_oneof![Just(PartitionState::Live), Just(PartitionState::Incoming)],
        mode in any_mode(),
        (uid, gid, entries, subdirectories) in any::<(u32, u32, u64, u64)>(),
        mtime in any_time(),
    ) -> PartitionRow {
        let index = map.partition_of(NameHash(at >> 1));
        let depth = map.depth(index);
        PartitionRow { index, depth, state, mode, uid, gid, entries, subdirectories, mtime, map }
    }
}

prop_compose! {
    fn any_directory()(
        parent in any_inode(),
        mode in any_mode(),
        (uid, gid) in any::<(u32, u32)>(),
        (atime, mtime, ctime, btime) in (any_time(), any_time(), any_time(), any_time()),
        map in any_map(),
        xattrs in vec(any_xattr_name(), 0..4),
    ) -> DirectoryRow {
        DirectoryRow { parent, mode, uid, gid, atime, mtime, ctime, btime, map, xattrs }
    }
}

prop_compose! {
    fn any_reply()(
        (session, slot, number) in any::<(u64, u32, u64)>(),
        about in option::of((any_inode(), any::<u64>().prop_map(NameHash))),
        reply in any_bytes(100),
    ) -> ReplyRecord {
        ReplyRecord { session: SessionId(session), slot, number, about, reply }
    }
}

fn any_plain_row() -> impl Strategy<Value = Row> {
    let body = prop_oneof![
        any_node().prop_map(EntryBody::Node),
        any_attributes().prop_map(EntryBody::Directory),
        any_file_kind().prop_map(EntryBody::Reference),
    ];
    prop_oneof![
        any_partition().prop_map(Row::Partition),
        (any_inode(), body).prop_map(|(inode, body)| Row::Entry(EntryRow { inode, body })),
        any_directory().prop_map(Row::Directory),
        any_node().prop_map(Row::Inode),
        any_bytes(500).prop_map(Row::Xattr),
        any_time().prop_map(|since| Row::Orphan(OrphanRow { since })),
        Just(Row::Garbage),
        vec(any::<u16>().prop_map(ShardId), 0..9).prop_map(|participants| Row::Decision(DecisionRow { participants })),
        vec(any_reply(), 0..5).prop_map(Row::Replies),
        any::<u64>().prop_map(|inodes_end| Row::Counter(CounterRow { inodes_end })),
        any::<u64>().prop_map(|count| Row::DirectoryMoves(DirectoryMovesRow { count })),
    ]
}

fn any_change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (any_inode(), any_node()).prop_map(|(inode, node)| Change::put(Key::Inode(inode), Row::Inode(node))),
        (any_inode(), any_directory()).prop_map(|(inode, row)| Change::put(Key::Directory(inode), Row::Directory(row))),
        any_key().prop_map(Change::Delete),
        (any_inode(), any_name(), any::<i64>(), any::<i64>(), any_time()).prop_map(
            |(directory, name, entries, subdirectories, at)| Change::Tally {
                directory,
                name,
                entries,
                subdirectories,
                at
            }
        ),
    ]
}

prop_compose! {
    fn any_intent()(
        participants in vec(any::<u16>().prop_map(ShardId), 0..9),
        changes in vec(any_change(), 0..6),
        reads in vec((any_key(), any::<Option<u64>>()).prop_map(|(key, digest)| ReadRecord { key, digest }), 0..6),
        reply in option::of(any_reply()),
    ) -> IntentRow {
        IntentRow { participants, changes, reads, reply }
    }
}

fn any_row() -> impl Strategy<Value = Row> {
    prop_oneof![9 => any_plain_row(), 1 => any_intent().prop_map(Row::Intent)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn keys_round_trip(key in any_key()) {
        let bytes = encode_key(&key);
        prop_assert!(keys_of(key.kind()).contains(&bytes));
        prop_assert_eq!(decode_key(&bytes), Ok(key));
    }

    /// Different keys have different bytes.
    #[test]
    fn keys_are_unique(a in any_key(), b in any_key()) {
        prop_assert_eq!(encode_key(&a) == encode_key(&b), a == b);
    }

    #[test]
    fn rows_round_trip(row in any_row()) {
        prop_assert_eq!(decode_row(row.kind(), &encode_row(&row)), Ok(row));
    }

    #[test]
    fn a_row_cut_short_is_refused(row in any_row(), at in any::<prop::sample::Index>()) {
        // An xattr's value may have any length.
        prop_assume!(row.kind() != Kind::Xattr);
        let bytes = encode_row(&row);
        let cut = &bytes[..at.index(bytes.len())];
        prop_assert!(decode_row(row.kind(), cut).is_err());
    }

    #[test]
    fn garbage_never_panics(bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode_key(&bytes);
        let mut versioned = bytes.clone();
        versioned.insert(0, ROW_VERSION);
        for kind in Kind::ALL {
            let _ = decode_row(kind, &bytes);
            let _ = decode_row(kind, &versioned);
        }
    }

    /// A damaged row is either refused or decoded to a row that survives encoding again.
    #[test]
    fn a_flipped_byte_never_panics(row in any_row(), at in any::<prop::sample::Index>(), flip in 1..=255u8) {
        let mut bytes = encode_row(&row);
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        if let Ok(other) = decode_row(row.kind(), &bytes) {
            prop_assert_eq!(decode_row(row.kind(), &encode_row(&other)), Ok(other));
        }
    }
}
