use super::*;
use crate::fsck;
use bytes::Bytes;
use std::time::Duration;
use varve_env::posix_store::PosixStore;
use varve_env::volume_dir::FormatOver;
use varve_schema::samples::regular;
use varve_schema::{BackingSize, Content, EntryBody, EntryRow, NodeRow, OrphanRow};
use varve_store::{Table, TableBatch, TableConfig, TableReader};
use varve_types::{AckLevel, FileKind, Mode, Name, ShardCount, Timestamp, VolumeId};

fn settings() -> VolumeSettings {
    VolumeSettings {
        id: VolumeId([3; 16]),
        name: "test".into(),
        shards: ShardCount::new(2).unwrap(),
        split_threshold: 64,
        inline_limit: 1024,
        sync_interval: Duration::from_secs(5),
        owner_uid: 0,
    }
}

/// A volume with a small file, a large one, and one that was unlinked while open.
fn volume(directory: &std::path::Path) -> VolumeDir {
    let volume = VolumeDir::new(directory);
    crate::format::format(&volume, &settings(), FormatOver::Nothing).unwrap();
    let entry = |name: &str, inode, node| {
        let key = Key::Entry(InodeId::ROOT, Name::new(name.as_bytes()).unwrap());
        (key, Row::Entry(EntryRow { inode: InodeId(inode), body: EntryBody::Node(node) }))
    };
    let large = Content::Backing(BackingSize::Authoritative);
    let rows = [
        (Key::Counter, Row::Counter(varve_schema::CounterRow { inodes_end: 100 })),
        entry("small", 2, regular(5, Content::Inline(Bytes::from_static(b"bytes")))),
        entry("large", 3, regular(3, large.clone())),
        (Key::Inode(InodeId(4)), Row::Inode(regular(4, large))),
        (Key::Orphan(InodeId(4)), Row::Orphan(OrphanRow { since: Timestamp::default() })),
    ];
    let runtime = offline::runtime().unwrap();
    let store = PosixStore::open(volume.shards()).unwrap();
    let config = offline::table_config(&volume, &settings(), store, runtime.handle().clone());
    runtime.block_on(async {
        let table = Table::open(TableConfig { shard: ShardId(0), ..config }).await.unwrap();
        let mut batch = TableBatch::default();
        rows.iter().for_each(|(key, row)| batch.put(codec::encode_key(key), codec::encode_row(row)));
        table.write(&batch).await.unwrap();
    });
    drop(runtime);
    std::fs::write(volume.backing_file(InodeId(3)), b"abc").unwrap();
    std::fs::write(volume.backing_file(InodeId(4)), b"open").unwrap();
    volume
}

fn dumped(volume: &VolumeDir) -> Vec<u8> {
    let mut bytes = Vec::new();
    let dumped = dump_offline(volume, &mut bytes, &mut |_| {}).unwrap();
    assert_eq!((dumped.bytes, dumped.entries), (bytes.len() as u64, 2));
    bytes
}

#[test]
fn a_dump_is_loaded() {
    let directory = tempfile::tempdir().unwrap();
    let from = volume(&directory.path().join("from"));
    let bytes = dumped(&from);
    assert_eq!(bytes, dumped(&from), "a dump changes nothing");
    let to = VolumeDir::new(directory.path().join("to"));
    let data = from.data();
    let load =
        |over| load(&mut bytes.as_slice(), &to, over, (Data::CopiedFrom(data.as_ref()), Privileges::Keep), &mut |_| {});
    let loaded = load(FormatOver::Nothing).unwrap();
    assert_eq!((loaded.entries, loaded.files_copied, loaded.files_left_out), (2, 1, 0));
    assert_eq!(to.read_settings().unwrap(), settings());
    let report = fsck::check(&to, &mut |_| {}).unwrap();
    // The root's counts were wrong in the dumped volume; a load corrects them.
    assert_eq!((report.findings, report.counts.entries), (Vec::new(), 2));
    assert_eq!(std::fs::read(to.backing_file(InodeId(3))).unwrap(), b"abc");
    assert!(matches!(load(FormatOver::OtherFiles), Err(LoadError::Format(_))), "a volume is not loaded over");
}

/// Promise: a loaded volume acknowledges changes at the level of the dumped one.
#[test]
fn loaded_volume_keeps_the_level() {
    let directory = tempfile::tempdir().unwrap();
    let from = volume(&directory.path().join("from"));
    for (name, level) in [("synced", AckLevel::Synced), ("appended", AckLevel::Appended)] {
        from.set_ack_level(&settings(), level).unwrap();
        let to = VolumeDir::new(directory.path().join(name));
        let source = (Data::InPlace, Privileges::Keep);
        load(&mut dumped(&from).as_slice(), &to, FormatOver::Nothing, source, &mut |_| {}).unwrap();
        assert_eq!(to.ack_level(), level);
    }
}

#[test]
fn content_may_precede_or_follow_rows() {
    let directory = tempfile::tempdir().unwrap();
    let from = volume(&directory.path().join("from"));
    let bytes = dumped(&from);
    let to = VolumeDir::new(directory.path().join("to"));
    let loaded =
        load(&mut bytes.as_slice(), &to, FormatOver::Nothing, (Data::InPlace, Privileges::Keep), &mut |_| {}).unwrap();
    assert_eq!(loaded.repaired.after.totals[&fsck::FindingKind::MissingBackingFile], 1);
    std::fs::copy(from.backing_file(InodeId(3)), to.backing_file(InodeId(3))).unwrap();
    assert_eq!(fsck::check(&to, &mut |_| {}).unwrap().findings, []);

    let gone = VolumeDir::new(directory.path().join("gone"));
    std::fs::remove_file(from.backing_file(InodeId(3))).unwrap();
    let data = Data::CopiedFrom(&std::path::PathBuf::from(from.data()));
    let loaded =
        load(&mut bytes.as_slice(), &gone, FormatOver::Nothing, (data, Privileges::Keep), &mut |_| {}).unwrap();
    assert_eq!(loaded.files_left_out, 1);
    assert_eq!(fsck::check(&gone, &mut |_| {}).unwrap().findings, []);
}

/// The content of a large file is loaded with its holes. If a file's size was not recorded when it was dumped, the
/// backing file has the mtime and size: the load takes those, as a stat would report them.
#[test]
fn holes_and_times_of_large_files_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let from = volume(&directory.path().join("from"));
    let key = Key::Entry(InodeId::ROOT, Name::new(b"large").unwrap());
    let size_stale = regular(3, Content::Backing(BackingSize::Stale { at_least: 0 }));
    let row = Row::Entry(EntryRow { inode: InodeId(3), body: EntryBody::Node(size_stale) });
    let runtime = offline::runtime().unwrap();
    let store = PosixStore::open(from.shards()).unwrap();
    let config = offline::table_config(&from, &settings(), store, runtime.handle().clone());
    runtime.block_on(async {
        let table = Table::open(config).await.unwrap();
        let mut batch = TableBatch::default();
        batch.put(codec::encode_key(&key), codec::encode_row(&row));
        table.write(&batch).await.unwrap();
    });
    let file = std::fs::File::options().write(true).open(from.backing_file(InodeId(3))).unwrap();
    file.set_len(64 << 20).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 500)).unwrap();
    let (bytes, data) = (dumped(&from), from.data());
    let to = VolumeDir::new(directory.path().join("to"));
    load(
        &mut bytes.as_slice(),
        &to,
        FormatOver::Nothing,
        (Data::CopiedFrom(data.as_ref()), Privileges::Keep),
        &mut |_| {},
    )
    .unwrap();
    let copied = to.backing_file(InodeId(3)).metadata().unwrap();
    assert_eq!(copied.len(), 64 << 20);
    assert!(std::os::unix::fs::MetadataExt::blocks(&copied) < 1000, "its hole is filled");
    let config = offline::table_config(&to, &settings(), offline::store_for_reading(&to), runtime.handle().clone());
    let loaded = runtime.block_on(async {
        let table = TableReader::open(&config).await.unwrap();
        let row = table.get(&codec::encode_key(&key)).await.unwrap().unwrap();
        table.close().await.unwrap();
        codec::decode_row(key.kind(), &row).unwrap()
    });
    let Row::Entry(EntryRow { body: EntryBody::Node(node), .. }) = loaded else { panic!("{loaded:?}") };
    assert_eq!(node.attributes.mtime, Timestamp { seconds: 1_000_000_000, nanoseconds: 500 });
    assert_eq!((node.attributes.size, node.content), (64 << 20, Content::Backing(BackingSize::Authoritative)));
}

/// A dump with these rows in shard 0, as no real volume has them.
fn forged(rows: &[(Key, Row)]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = RecordWriter::begin(&mut bytes).unwrap();
    writer.write(&DumpRecord::Volume(settings(), AckLevel::Appended)).unwrap();
    let mut counts = DumpCounts::default();
    for (key, row) in rows {
        counts.rows += 1;
        counts.entries += u64::from(key.kind() == Kind::Entry);
        let (key, row) = (codec::encode_key(key), codec::encode_row(row));
        writer.write(&DumpRecord::Row { shard: ShardId(0), key, row }).unwrap();
    }
    writer.write(&DumpRecord::End(counts)).unwrap();
    writer.finish().unwrap();
    bytes
}

fn node(kind: FileKind, mode: u16, uid: u32, xattrs: &[&'static [u8]]) -> NodeRow {
    let content = if kind == FileKind::Regular { Content::Inline(Bytes::new()) } else { Content::None };
    let mut node = regular(0, content);
    (node.attributes.kind, node.attributes.mode, node.attributes.uid) = (kind, Mode(mode), uid);
    node.xattrs = xattrs.iter().map(|name| Bytes::from_static(name)).collect();
    node
}

#[test]
fn privileges_are_dropped_unless_they_are_kept() {
    let capability: &'static [u8] = b"security.capability";
    let key = |number: u64| Key::Entry(InodeId::ROOT, Name::new(format!("file-{number}").as_bytes()).unwrap());
    let entry = |number: u64, node: NodeRow| {
        (key(number), Row::Entry(EntryRow { inode: InodeId(number), body: EntryBody::Node(node) }))
    };
    let rows = [
        (Key::Counter, Row::Counter(varve_schema::CounterRow { inodes_end: 100 })),
        (Key::Inode(InodeId(9)), Row::Inode(node(FileKind::Regular, 0o2755, 0, &[capability, b"user.kept"]))),
        (Key::Xattr(InodeId(9), Bytes::from_static(capability)), Row::Xattr(Bytes::from_static(b"all"))),
        (Key::Xattr(InodeId(9), Bytes::from_static(b"user.kept")), Row::Xattr(Bytes::from_static(b"value"))),
        entry(2, node(FileKind::Regular, 0o4755, 0, &[])),
        entry(3, node(FileKind::Regular, 0o755, 1000, &[])),
        entry(4, node(FileKind::BlockDevice, 0o666, 1000, &[])),
    ];
    for privileges in [Privileges::Keep, Privileges::Drop] {
        let mut dropped = Dropped::default();
        let kept: Vec<(Key, Row)> = rows
            .iter()
            .filter_map(|(key, row)| {
                let mut row = row.clone();
                let stays = privileges == Privileges::Keep || dropped.drop_from(key, &mut row).is_some();
                stays.then(|| (key.clone(), row))
            })
            .collect();
        if privileges == Privileges::Keep {
            assert_eq!(kept, rows);
            continue;
        }
        assert_eq!(dropped, Dropped { set_ids: 2, capabilities: 1, devices: 1 });
        let expected = [
            rows[0].clone(),
            (Key::Inode(InodeId(9)), Row::Inode(node(FileKind::Regular, 0o755, 0, &[b"user.kept"]))),
            rows[3].clone(),
            entry(2, node(FileKind::Regular, 0o755, 0, &[])),
            rows[5].clone(),
            entry(4, NodeRow { attributes: restricted(rows[6].1.clone()), ..node(FileKind::BlockDevice, 0, 0, &[]) }),
        ];
        assert_eq!(kept, expected);
    }
    let directory = tempfile::tempdir().unwrap();
    let to = VolumeDir::new(directory.path().join("to"));
    let data = (Data::InPlace, Privileges::Drop);
    let loaded = load(&mut forged(&rows).as_slice(), &to, FormatOver::Nothing, data, &mut |_| {}).unwrap();
    assert_eq!(loaded.dropped, Dropped { set_ids: 2, capabilities: 1, devices: 1 });
}

fn restricted(row: Row) -> varve_types::Attributes {
    let Row::Entry(EntryRow { body: EntryBody::Node(node), .. }) = row else { panic!("{row:?}") };
    varve_types::Attributes { uid: 0, gid: 0, mode: Mode(0o600), ..node.attributes }
}

#[test]
fn prepared_changes_in_a_dump_are_refused() {
    let rows = [(Key::Orphan(InodeId(4)), Row::Orphan(OrphanRow { since: Timestamp::default() }))];
    let directory = tempfile::tempdir().unwrap();
    let to = VolumeDir::new(directory.path().join("to"));
    let data = (Data::InPlace, Privileges::Keep);
    let refused =
        load(&mut forged(&rows).as_slice(), &to, FormatOver::Nothing, data, &mut |_| {}).expect_err("refused");
    assert!(refused.to_string().contains("which dumps do not contain"), "{refused}");
}

/// A dump that is truncated anywhere, or has one byte changed, is refused, and no volume is left.
#[test]
fn damaged_dumps_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let bytes = dumped(&volume(&directory.path().join("from")));
    let to = VolumeDir::new(directory.path().join("to"));
    let refused = |bytes: &[u8]| {
        let loaded = load(&mut &bytes[..], &to, FormatOver::OtherFiles, (Data::InPlace, Privileges::Keep), &mut |_| {});
        assert!(to.read_settings().is_err());
        loaded.expect_err("a damaged dump")
    };
    for cut in [0, 5, 11, 12, 40, bytes.len() / 2, bytes.len() - 1] {
        assert!(matches!(refused(&bytes[..cut]), LoadError::Dump(_)), "cut at {cut}");
    }
    for place in [13, 20, bytes.len() / 2, bytes.len() - 1] {
        let mut changed = bytes.clone();
        changed[place] ^= 0x10;
        assert!(matches!(refused(&changed), LoadError::Dump(DumpError::Broken { .. })), "changed at {place}");
    }
    let mut newer = bytes;
    newer[8] = 3;
    assert!(refused(&newer).to_string().contains("use a newer varve"));
}

/// The bytes that `formats/dump.md` describes.
#[test]
fn golden_bytes() {
    let mut bytes = Vec::new();
    let mut writer = RecordWriter::begin(&mut bytes).unwrap();
    writer.write(&DumpRecord::Volume(settings(), AckLevel::Appended)).unwrap();
    let row = DumpRecord::Row { shard: ShardId(1), key: b"C".to_vec(), row: b"\x01\x64".to_vec() };
    writer.write(&row).unwrap();
    writer.write(&DumpRecord::End(DumpCounts { rows: 1, entries: 0 })).unwrap();
    writer.finish().unwrap();
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, include_str!("golden.hex").trim());
    // Version 1, which is also read, differs in its version number.
    bytes[8] = 1;
    let mut input = bytes.as_slice();
    let mut reader = record::RecordReader::begin(&mut input).unwrap();
    assert_eq!(reader.read().unwrap(), DumpRecord::Volume(settings(), AckLevel::Appended));
}
