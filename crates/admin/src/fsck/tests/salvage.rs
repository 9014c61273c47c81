//! Damaged tables and logs: the finding names the position, and the intact rows are saved.

use super::*;
use crate::snapshot::offline;
use varve_env::store_path::StorePath;

pub(super) fn files_that_end(directory: &StorePath, ending: &str) -> Vec<std::path::PathBuf> {
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.to_str().unwrap().ends_with(ending)).collect()
}

/// Changes one byte in the middle of the longest table or of the newest log: the rows of earlier logs are in tables.
fn spoil(site: &Site, in_table: bool) -> std::path::PathBuf {
    let path = match in_table {
        true => files_that_end(&site.volume.shard(SHARD_1).join("compacted"), ".sst")
            .into_iter()
            .max_by_key(|path| path.metadata().unwrap().len()),
        false => files_that_end(&site.volume.shard_log(SHARD_1), ".log").into_iter().max(),
    };
    let path = path.unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let place = bytes.len() / 2;
    bytes[place] ^= 0x40;
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Creates many files in `dir`, in the table of shard 1 or only in its log.
fn fill(site: &Site, in_table: bool) {
    let runtime = offline::runtime().unwrap();
    let store = PosixStore::open(site.volume.shards()).unwrap();
    let config = offline::table_config(&site.volume, &site.settings, store, runtime.handle().clone());
    runtime.block_on(async {
        let table = Table::open(TableConfig { shard: SHARD_1, ..config }).await.unwrap();
        for number in 10..1000 {
            let mut batch = TableBatch::default();
            let row = entry(InodeId((1 << 48) | number), EntryBody::Node(inline(b"some bytes")));
            batch.put(codec::encode_key(&entry_key(DIRECTORY, &format!("f{number}"))), codec::encode_row(&row));
            table.write(&batch).await.unwrap();
            if number % 100 == 0 {
                table.sync().await.unwrap();
            }
        }
        table.sync().await.unwrap();
        match in_table {
            true => table.close().await.unwrap(),
            // A later group confirms that everything before it was fsynced.
            false => {
                let mut batch = TableBatch::default();
                batch.put(
                    codec::encode_key(&Key::Counter),
                    codec::encode_row(&Row::Counter(CounterRow { inodes_end: 5000 })),
                );
                table.write(&batch).await.unwrap();
            }
        }
    });
}

fn spoiled(in_table: bool, kind: FindingKind) {
    let site = Site::new();
    fill(&site, in_table);
    repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    // The repair has moved all rows into tables.
    if !in_table {
        fill(&site, false);
    }
    let path = spoil(&site, in_table);
    let found = site.check();
    assert!(!found.is_sound());
    let finding = found.findings.iter().find(|finding| finding.kind == kind).expect("what is damaged is named");
    assert!(finding.place.contains(path.to_str().unwrap()) && finding.what.contains("at byte"), "{finding}");
    let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
    assert_eq!(site.check().findings, []);
    let saved = site.tree().keys().filter(|path| path.contains("/f")).count();
    assert!(saved > 100, "{saved} files were saved");
    assert!(site.volume.damaged().join("0001-0").is_dir(), "the damaged table is kept");
}

#[test]
fn intact_rows_of_a_damaged_table_are_salvaged() {
    spoiled(true, FindingKind::DamagedTable);
}

#[test]
fn intact_records_of_a_damaged_log_are_salvaged() {
    spoiled(false, FindingKind::DamagedLog);
}

/// Missing log files: the check reports them, and a repair continues with the rest.
#[test]
fn missing_log_is_reported_and_skipped() {
    for opened_since in [false, true] {
        let site = Site::flushed();
        let before = site.tree();
        site.put(SHARD_0, entry_key(ROOT, "later"), entry(InodeId(50), EntryBody::Node(inline(b"later"))));
        if opened_since {
            // The epoch with the row is sealed, but its file is still needed.
            site.edit(SHARD_0, |batch| batch.delete(codec::encode_key(&entry_key(ROOT, "nothing"))));
        }
        let logs = files_that_end(&site.volume.shard_log(SHARD_0), ".log");
        assert!(!logs.is_empty());
        logs.iter().for_each(|path| std::fs::remove_file(path).unwrap());
        let report = site.check();
        assert!(!report.is_sound(), "{:#?}", report.findings);
        let missing = report.findings.iter().find(|finding| finding.kind == FindingKind::MissingLog);
        assert!(missing.is_some_and(|finding| finding.place.contains(".log")), "{:#?}", report.findings);
        let unreadable = report.findings.iter().find(|finding| finding.kind == FindingKind::UnreadableShard);
        assert!(unreadable.is_some_and(|finding| finding.what.contains("--repair")), "{:#?}", report.findings);
        let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
        assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
        assert_eq!(site.check().findings, []);
        assert_eq!(site.tree(), before, "what the tables held is there");
    }
}

/// A log that is torn at a point that was not confirmed as fsynced: the check lists the changes that can be read after
/// it, and reports nothing else.
#[test]
fn loss_in_a_torn_log_is_reported() {
    let site = Site::flushed();
    let before = site.tree();
    let runtime = offline::runtime().unwrap();
    let store = PosixStore::open(site.volume.shards()).unwrap();
    let config = offline::table_config(&site.volume, &site.settings, store, runtime.handle().clone());
    runtime.block_on(async {
        let table = Table::open(TableConfig { shard: SHARD_0, ..config }).await.unwrap();
        for name in ["first", "second"] {
            let mut batch = TableBatch::default();
            let row = entry(InodeId(50), EntryBody::Node(inline(b"later")));
            batch.put(codec::encode_key(&entry_key(ROOT, name)), codec::encode_row(&row));
            table.write(&batch).await.unwrap();
        }
    });
    drop(runtime);
    let log = files_that_end(&site.volume.shard_log(SHARD_0), ".log").into_iter().max().unwrap();
    let mut bytes = std::fs::read(&log).unwrap();
    // A byte in the first batch: after the headers of the file, the group and the batch.
    bytes[64 + 48 + 40] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let report = site.check();
    let torn = report.findings.iter().find(|finding| finding.kind == FindingKind::TornLog).expect("it is named");
    assert!(torn.place.contains(log.to_str().unwrap()) && torn.what.contains("at byte 112"), "{torn}");
    assert!(torn.what.contains("second in directory") && !torn.what.contains("first"), "{torn}");
    let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
    assert_eq!(site.tree(), before);
}

impl Site {
    /// The file that holds most rows of the table of shard 0.
    fn table_file(&self) -> std::path::PathBuf {
        let tables = files_that_end(&self.volume.shard(SHARD_0).join("compacted"), ".sst");
        tables.into_iter().max_by_key(|path| path.metadata().unwrap().len()).unwrap()
    }

    /// Changes each byte of the file separately and expects that the damage is found.
    fn every_byte_counts(&self, path: &std::path::Path) {
        let whole = std::fs::read(path).unwrap();
        assert_eq!(self.found(), []);
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 1 << (place % 8);
            std::fs::write(path, bytes).unwrap();
            self.expect_damage(format_args!("byte {place} of {}", whole.len()));
        }
    }

    fn expect_damage(&self, what: std::fmt::Arguments<'_>) {
        let report = self.check();
        assert!(!report.is_sound(), "{what}");
        assert!(report.totals.contains_key(&FindingKind::DamagedTable), "{what}: {:?}", report.findings);
    }

    /// A volume with all rows in tables.
    pub(super) fn flushed() -> Site {
        let site = Site::new();
        let runtime = offline::runtime().unwrap();
        let store = PosixStore::open(site.volume.shards()).unwrap();
        let config = offline::table_config(&site.volume, &site.settings, store, runtime.handle().clone());
        runtime.block_on(async {
            let table = Table::open(TableConfig { shard: SHARD_0, ..config }).await.unwrap();
            table.flush().await.unwrap();
            table.close().await.unwrap();
        });
        site
    }
}

/// Any changed byte of a table is found, by reading the rows or by checking the rest of the file.
#[test]
fn any_changed_table_byte_is_detected() {
    let site = Site::flushed();
    site.every_byte_counts(&site.table_file());
}

/// Damage outside of the rows loses no row.
#[test]
fn table_with_a_damaged_end_is_rewritten() {
    let site = Site::flushed();
    let path = site.table_file();
    let before = site.tree();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
    assert!(repaired.repairs[0].contains("there are no rows"), "{:#?}", repaired.repairs);
    assert_eq!(site.tree(), before);
}

/// If a table is truncated or missing, everything else is kept, and the report lists the possible loss.
#[test]
fn truncated_or_missing_table_is_rebuilt() {
    for kept in [Some(1.0), Some(0.5), Some(0.0), None] {
        let site = Site::flushed();
        // Written after the table, so that only the log contains it.
        site.put(SHARD_0, entry_key(ROOT, "later"), entry(InodeId(50), EntryBody::Node(inline(b"later"))));
        let path = site.table_file();
        let bytes = std::fs::read(&path).unwrap();
        match kept {
            Some(part) => {
                let end = ((bytes.len() - 1) as f64 * part) as usize;
                std::fs::write(&path, &bytes[..end]).unwrap();
            }
            None => std::fs::remove_file(&path).unwrap(),
        }
        site.expect_damage(format_args!("{kept:?}"));
        let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
        assert_eq!(repaired.after.findings, [], "{kept:?}: {:#?}", repaired.repairs);
        assert!(repaired.repairs.iter().any(|what| what.contains("damaged places")), "{:#?}", repaired.repairs);
        let tree = site.tree();
        assert!(tree.values().any(|what| what.ends_with("later")), "{kept:?}: {tree:#?}");
        assert!(tree.values().any(|what| what.ends_with("abc")), "its content is no row: {kept:?}: {tree:#?}");
    }
}

impl Site {
    fn newest_manifest(&self) -> std::path::PathBuf {
        files_that_end(&self.volume.shard(SHARD_0).join("manifest"), ".manifest").into_iter().max().unwrap()
    }
}

/// Any changed byte of the newest manifest is found, and the manifest is never taken for one with fewer rows.
#[test]
fn any_changed_manifest_byte_is_detected() {
    let site = Site::flushed();
    let path = site.newest_manifest();
    let whole = std::fs::read(&path).unwrap();
    site.every_byte_counts(&path);
    for end in [0, 1, 5, whole.len() / 2, whole.len() - 1] {
        std::fs::write(&path, &whole[..end]).unwrap();
        site.expect_damage(format_args!("cut at {end}"));
    }
}

/// The tables of a damaged manifest are found through the previous manifest, through newer tables, and in the log.
#[test]
fn damaged_manifest_loses_no_row() {
    for cut in [false, true] {
        let site = Site::flushed();
        site.put(SHARD_0, entry_key(ROOT, "later"), entry(InodeId(50), EntryBody::Node(inline(b"later"))));
        let before = site.tree();
        let path = site.newest_manifest();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        bytes.truncate(if cut { middle } else { bytes.len() });
        std::fs::write(&path, bytes).unwrap();
        let finding = site.check().findings.into_iter().find(|finding| finding.kind == FindingKind::DamagedTable);
        assert!(finding.is_some_and(|finding| finding.place.contains(path.to_str().unwrap())));
        let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
        assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
        assert_eq!(site.tree(), before);
    }
}

/// A shard without manifests is not taken for one that was never opened: the check reports them missing, and the
/// shard's tables and log provide the rows.
#[test]
fn missing_manifests_lose_no_row() {
    let site = Site::flushed();
    site.put(SHARD_0, entry_key(ROOT, "later"), entry(InodeId(50), EntryBody::Node(inline(b"later"))));
    let before = site.tree();
    let manifests = site.volume.shard(SHARD_0).join("manifest");
    std::fs::remove_dir_all(&manifests).unwrap();
    let report = site.check();
    assert!(!report.is_sound());
    let finding = report.findings.iter().find(|finding| finding.kind == FindingKind::DamagedTable);
    assert!(finding.is_some_and(|finding| finding.place.contains(&manifests.to_string())), "{:#?}", report.findings);
    assert!(!manifests.exists(), "a check writes nothing");
    let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
    assert_eq!(site.tree(), before);
}

/// Manifests of earlier builds have no checksum and can still be read.
#[test]
fn a_manifest_without_a_checksum_is_read() {
    let site = Site::flushed();
    let before = site.tree();
    for path in files_that_end(&site.volume.shard(SHARD_0).join("manifest"), ".manifest") {
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes[..8], *b"VARVECK1");
        std::fs::write(&path, &bytes[12..]).unwrap();
    }
    assert_eq!(site.found(), []);
    assert_eq!(site.tree(), before);
}
