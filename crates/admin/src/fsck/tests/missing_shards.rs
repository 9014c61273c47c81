//! Missing directories of shards and of content.

use super::*;

/// Runs the check on a separate thread: it must end, and not retry a missing directory forever.
fn checked(site: &Site) -> FsckReport {
    let (volume, (reported, tells)) = (site.volume.clone(), std::sync::mpsc::channel());
    std::thread::spawn(move || drop(reported.send(check(&volume, &mut |_| {}))));
    tells.recv_timeout(Duration::from_secs(120)).expect("the check ends").unwrap()
}

fn kinds(report: &FsckReport) -> Vec<FindingKind> {
    report.totals.keys().copied().collect()
}

fn repaired(site: &Site) {
    let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert!(kinds(&repaired.before).contains(&FindingKind::MissingShard), "{:#?}", repaired.before.findings);
    assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
    assert_eq!(site.check().findings, []);
}

/// All tables are missing at once: the finding says so, and a repair continues with the content of large files.
#[test]
fn missing_tables_are_named_and_replaced() {
    let site = Site::new();
    std::fs::remove_dir_all(site.volume.shards()).unwrap();
    let report = checked(&site);
    assert_eq!(kinds(&report), [FindingKind::MissingShard]);
    assert!(!report.is_sound() && report.findings[0].place.ends_with("/shards"), "{:#?}", report.findings);
    repaired(&site);
    assert!(site.tree().keys().any(|path| path.contains("lost+found/")), "{:#?}", site.tree());
    assert!(site.volume.volume_file_copy().is_file());
}

/// One shard directory is missing, with and without the mark next to it.
#[test]
fn missing_shard_directory_is_recreated() {
    for (shard, marked) in [(SHARD_0, false), (SHARD_0, true), (SHARD_1, true)] {
        let site = Site::new();
        let [_, mark] = site.volume.shard_marks(shard);
        std::fs::remove_dir_all(site.volume.shard(shard)).unwrap();
        if !marked {
            std::fs::remove_file(mark).unwrap();
        }
        let report = checked(&site);
        assert!(kinds(&report).contains(&FindingKind::MissingShard), "{:#?}", report.findings);
        repaired(&site);
    }
}

/// A repair does not create shards without a trace, unless the user confirms that they existed.
#[test]
fn shards_without_trace_are_not_invented() {
    let site = Site::new();
    let settings = VolumeSettings { shards: ShardCount::new(2 * SHARDS).unwrap(), ..site.settings.clone() };
    site.volume.make_volume_file(&settings).unwrap();
    site.volume.copy_volume_file(&settings).unwrap();
    let report = checked(&site);
    let missing = report.findings.iter().filter(|finding| finding.kind == FindingKind::MissingShard);
    assert!(missing.clone().count() == 2 && missing.clone().all(|finding| finding.what.contains("varve.toml")));
    let refused = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap_err();
    assert!(matches!(refused, FsckError::OtherShards { value: 4, found: 2, .. }), "{refused}");
    assert!(refused.to_string().contains("shards = 4") && !site.volume.shard(ShardId(2)).exists(), "{refused}");
    std::fs::create_dir(site.volume.shard(ShardId(3))).unwrap();
    repaired(&site);
    assert!(site.volume.shard(ShardId(2)).is_dir());
}

/// Promise: if the content of all large files is missing at once, their names stay, and the files are complete when the
/// content is restored; they go to lost+found only on request.
#[test]
fn repair_waits_for_an_unreachable_data_directory() {
    let site = Site::new();
    let (data, unreachable) = (site.volume.data(), site.volume.root().join("../away"));
    std::fs::rename(&data, &unreachable).unwrap();
    for empty in [false, true] {
        if empty {
            std::fs::create_dir(&data).unwrap();
        }
        let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
        assert_eq!(repaired.after.totals.get(&FindingKind::MissingData), Some(&1), "{:?}", repaired.after.findings);
        assert_eq!(repaired.repairs_total, 0, "{:?}", repaired.repairs);
    }
    std::fs::remove_dir(&data).unwrap();
    std::fs::rename(&unreachable, &data).unwrap();
    assert!(site.check().is_sound());
    std::fs::rename(&data, &unreachable).unwrap();
    let repaired = repair(&site.volume, MissingContent::SetApart, &mut |_| {}).unwrap();
    assert!(repaired.after.is_sound(), "{:?}", repaired.after.findings);
    assert!(repaired.repairs.iter().any(|repair| repair.contains("lost+found")), "{:?}", repaired.repairs);
}
