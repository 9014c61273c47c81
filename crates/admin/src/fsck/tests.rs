//! Each test damages one thing in an intact volume and checks the findings.

use super::*;
use bytes::Bytes;
use std::time::Duration;
use varve_env::posix_store::PosixStore;
use varve_env::volume_dir::FormatOver;
use varve_schema::samples::{attributes, regular};
use varve_schema::*;
use varve_store::{MEMTABLE_BYTES_DEFAULT, Merges, Table, TableBatch, TableCache, TableConfig};
use varve_types::{
    FileKind, InodeId, Mode, Name, NameHash, PartitionIndex, PartitionMap, ShardCount, Timestamp, VolumeId,
};

mod data;
mod ids;
mod missing_shards;
mod repairs;
mod salvage;

const SHARDS: u16 = 2;
const ROOT: InodeId = InodeId::ROOT;
const SHARD_0: ShardId = ShardId(0);
const SHARD_1: ShardId = ShardId(1);

/// `dir` in the root, a directory of shard 1.
const DIRECTORY: InodeId = InodeId((1 << 48) | 2);
/// `plain` in the root, with five inline bytes.
const PLAIN: InodeId = InodeId(2);
/// `large` in the root, with a backing file of three bytes and an authoritative size.
const LARGE: InodeId = InodeId(3);
/// `one` in the root and `two` in `dir`, with the xattr `user.x`.
const LINKED: InodeId = InodeId(4);

struct Site {
    _directory: tempfile::TempDir,
    volume: VolumeDir,
    settings: VolumeSettings,
}

impl Site {
    fn new() -> Site {
        let directory = tempfile::tempdir().unwrap();
        let volume = VolumeDir::new(directory.path().join("volume"));
        let settings = VolumeSettings {
            id: VolumeId([3; 16]),
            name: "test".into(),
            shards: ShardCount::new(SHARDS).unwrap(),
            split_threshold: 64,
            inline_limit: 1024,
            sync_interval: Duration::from_secs(5),
            owner_uid: 0,
        };
        crate::format::format(&volume, &settings, FormatOver::Nothing).unwrap();
        let site = Site { _directory: directory, volume, settings };
        site.fill();
        site
    }

    fn fill(&self) {
        let mut root = partition(4, 1);
        root.uid = self.settings.owner_uid;
        root.gid = rustix::process::getegid().as_raw();
        let mut linked = inline(b"twice");
        linked.attributes.nlink = 2;
        linked.xattrs = vec![Bytes::from_static(b"user.x")];
        let dir = entry(DIRECTORY, EntryBody::Directory(attributes(FileKind::Directory, 0)));
        let counter = || (Key::Counter, Row::Counter(CounterRow { inodes_end: 100 }));
        self.put_all(
            SHARD_0,
            vec![
                (Key::Partition(ROOT, PartitionIndex::FIRST), Row::Partition(root)),
                (entry_key(ROOT, "dir"), dir),
                (entry_key(ROOT, "plain"), entry(PLAIN, EntryBody::Node(inline(b"bytes")))),
                (entry_key(ROOT, "large"), entry(LARGE, EntryBody::Node(backing(3, BackingSize::Authoritative)))),
                (entry_key(ROOT, "one"), entry(LINKED, EntryBody::Reference(FileKind::Regular))),
                (Key::Inode(LINKED), Row::Inode(linked)),
                (xattr_key(LINKED, "user.x"), Row::Xattr(Bytes::from_static(b"value"))),
                counter(),
            ],
        );
        self.put_all(
            SHARD_1,
            vec![
                (Key::Directory(DIRECTORY), Row::Directory(directory(ROOT))),
                (Key::Partition(DIRECTORY, PartitionIndex::FIRST), Row::Partition(partition(1, 0))),
                (entry_key(DIRECTORY, "two"), entry(LINKED, EntryBody::Reference(FileKind::Regular))),
                counter(),
            ],
        );
        std::fs::write(self.volume.backing_file(LARGE), b"abc").unwrap();
    }

    fn put_all(&self, shard: ShardId, rows: Vec<(Key, Row)>) {
        self.edit(shard, |batch| {
            rows.iter().for_each(|(key, row)| batch.put(codec::encode_key(key), codec::encode_row(row)));
        });
    }

    fn put(&self, shard: ShardId, key: Key, row: Row) {
        self.put_all(shard, vec![(key, row)]);
    }

    fn delete(&self, shard: ShardId, key: Key) {
        self.edit(shard, |batch| batch.delete(codec::encode_key(&key)));
    }

    fn edit(&self, shard: ShardId, edit: impl FnOnce(&mut TableBatch)) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let config = TableConfig {
            shard,
            volume: self.volume.clone(),
            store: PosixStore::open(self.volume.shards()).unwrap(),
            sync_interval: self.settings.sync_interval,
            cache: TableCache::new(1024 * 1024),
            background: runtime.handle().clone(),
            merges: Merges::on(runtime.handle().clone()),
            memtable_bytes: MEMTABLE_BYTES_DEFAULT,
            sync_writes: Default::default(),
            may_claim: None,
        };
        runtime.block_on(async {
            let table = Table::open(config).await.unwrap();
            let mut batch = TableBatch::default();
            edit(&mut batch);
            // The table is not closed: the check finds the row in the log, as after a crash.
            table.write(&batch).await.unwrap();
        });
    }

    fn check(&self) -> FsckReport {
        check(&self.volume, &mut |_| {}).unwrap()
    }

    /// The kinds of findings, with the number of each.
    fn found(&self) -> Vec<(FindingKind, u64)> {
        self.check().totals.into_iter().collect()
    }
}

fn inline(bytes: &'static [u8]) -> NodeRow {
    regular(bytes.len() as u64, Content::Inline(Bytes::from_static(bytes)))
}

fn size_stale(at_least: u64) -> NodeRow {
    backing(0, BackingSize::Stale { at_least })
}

fn backing(size: u64, state: BackingSize) -> NodeRow {
    regular(size, Content::Backing(state))
}

fn entry_key(parent: InodeId, name: &str) -> Key {
    Key::Entry(parent, Name::new(name.as_bytes()).unwrap())
}

fn xattr_key(inode: InodeId, name: &'static str) -> Key {
    Key::Xattr(inode, Bytes::from_static(name.as_bytes()))
}

fn entry(inode: InodeId, body: EntryBody) -> Row {
    Row::Entry(EntryRow { inode, body })
}

fn map() -> PartitionMap {
    PartitionMap::whole(ShardCount::new(SHARDS).unwrap())
}

fn directory(parent: InodeId) -> DirectoryRow {
    let a = attributes(FileKind::Directory, 0);
    DirectoryRow {
        parent,
        mode: a.mode,
        uid: a.uid,
        gid: a.gid,
        atime: a.atime,
        mtime: a.mtime,
        ctime: a.ctime,
        btime: a.btime,
        map: map(),
        xattrs: Vec::new(),
    }
}

fn partition(entries: u64, subdirectories: u64) -> PartitionRow {
    PartitionRow {
        index: PartitionIndex::FIRST,
        depth: 0,
        state: PartitionState::Live,
        mode: Mode(0o755),
        uid: 0,
        gid: 0,
        entries,
        subdirectories,
        mtime: Timestamp { seconds: 1, nanoseconds: 0 },
        map: map(),
    }
}

/// An intact volume has no findings, and everything is counted.
#[test]
fn intact_volume_has_no_findings() {
    let site = Site::new();
    let mut steps = Vec::new();
    let report = check(&site.volume, &mut |step| steps.push(step)).unwrap();
    assert_eq!(report.findings, []);
    assert!(report.is_sound());
    let counts = CheckCounts {
        shards: 2,
        rows: 12,
        directories: 2,
        partitions: 2,
        entries: 5,
        inodes: 1,
        xattrs: 1,
        orphans: 0,
        removed: 0,
        intents: 0,
        files_inline: 2,
        bytes_inline: 10,
        files_backing: 1,
        bytes_backing: 3,
    };
    assert_eq!(report.counts, CheckCounts { rows: report.counts.rows, ..counts });
    assert_eq!(steps.first(), Some(&CheckProgress::Opening));
    assert_eq!(steps.last(), Some(&CheckProgress::Data { directories: 256 }));
}

/// A served volume is refused, and so is a directory without a volume.
#[test]
fn only_an_unserved_volume_is_checked() {
    let site = Site::new();
    let lock = site.volume.lock().unwrap();
    assert!(matches!(check(&site.volume, &mut |_| {}), Err(FsckError::Locked(_))));
    drop(lock);
    let nothing = VolumeDir::new(site.volume.root().join("nothing"));
    assert!(matches!(check(&nothing, &mut |_| {}), Err(FsckError::Volume(_))));
}

/// Every file below the store, with its size and mtime, to detect writes.
fn files(site: &Site) -> Vec<(std::path::PathBuf, u64, std::time::SystemTime)> {
    let (mut files, mut open) = (Vec::new(), vec![site.volume.root().to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let found = entry.metadata().unwrap();
            files.push((entry.path(), found.len(), found.modified().unwrap()));
            if found.is_dir() {
                open.push(entry.path());
            }
        }
    }
    files.sort();
    files
}

/// A check also reads the log that a crash has left, and changes no file.
#[test]
fn a_check_writes_nothing() {
    let site = Site::new();
    site.volume.lock().unwrap();
    let before = files(&site);
    assert_eq!(site.check().findings, []);
    assert_eq!(files(&site), before);
}

/// Leftovers of crashes are distinguished from damage.
#[test]
fn leftovers_are_not_damage() {
    let site = Site::new();
    // A mkdir whose entry was lost, and one whose rows were lost; an interrupted rmdir also leaves the former.
    site.put(SHARD_1, Key::Directory(InodeId(DIRECTORY.0 + 1)), Row::Directory(directory(ROOT)));
    site.put(SHARD_1, Key::Partition(InodeId(DIRECTORY.0 + 1), PartitionIndex::FIRST), Row::Partition(partition(0, 0)));
    let lost = entry(InodeId(DIRECTORY.0 + 2), EntryBody::Directory(attributes(FileKind::Directory, 0)));
    site.put(SHARD_1, entry_key(DIRECTORY, "lost"), lost);
    site.put(SHARD_1, Key::Partition(DIRECTORY, PartitionIndex::FIRST), Row::Partition(partition(2, 1)));
    // An aborted import: a partition whose split the source has not committed, and its rows.
    let incoming =
        PartitionRow { index: PartitionIndex(1), depth: 1, state: PartitionState::Incoming, ..partition(1, 0) };
    site.put(SHARD_0, Key::Partition(DIRECTORY, PartitionIndex(1)), Row::Partition(incoming));
    site.put(SHARD_0, entry_key(DIRECTORY, "copied"), entry(InodeId(9), EntryBody::Node(inline(b""))));
    // A file that was open when the server died.
    site.put(SHARD_0, Key::Orphan(InodeId(10)), Row::Orphan(OrphanRow { since: Timestamp::default() }));
    site.put(SHARD_0, Key::Inode(InodeId(10)), Row::Inode(NodeRow { ..inline(b"gone") }));
    // A large file whose last name was removed in the other shard, before its backing file was removed.
    site.put(SHARD_1, Key::Garbage(InodeId(13)), Row::Garbage);
    std::fs::write(site.volume.backing_file(InodeId(13)), b"removed").unwrap();
    site.put(SHARD_0, xattr_key(InodeId(11), "user.gone"), Row::Xattr(Bytes::new()));
    site.put(SHARD_0, entry_key(ROOT, "large"), entry(LARGE, EntryBody::Node(size_stale(0))));
    std::fs::write(site.volume.backing_file(InodeId(12)), b"stray").unwrap();
    let report = site.check();
    assert!(report.is_sound(), "{:#?}", report.findings);
    let found: Vec<_> = report.totals.into_iter().collect();
    assert_eq!(
        found,
        [
            (FindingKind::AbortedSplit, 1),
            (FindingKind::StrayEntries, 1),
            (FindingKind::DirectoryWithoutName, 1),
            (FindingKind::DirectoryWithoutRow, 1),
            (FindingKind::Orphan, 1),
            (FindingKind::RemovedContent, 1),
            (FindingKind::StrayXattr, 1),
            (FindingKind::StaleSize, 1),
            (FindingKind::StrayBackingFile, 1),
        ]
    );
}

/// A committed split is taken as complete, though its target has not asked the source since.
#[test]
fn committed_split_has_no_findings() {
    let site = Site::new();
    let upper = PartitionIndex(1);
    let moves = NameHash::of(b"two") >= upper.range(1).first;
    let here = PartitionRow { depth: 1, ..partition(u64::from(!moves), 0) };
    let there =
        PartitionRow { index: upper, depth: 1, state: PartitionState::Incoming, ..partition(u64::from(moves), 0) };
    let mut map = map();
    map.add(upper);
    site.put(SHARD_1, Key::Directory(DIRECTORY), Row::Directory(DirectoryRow { map, ..directory(ROOT) }));
    site.put(SHARD_1, Key::Partition(DIRECTORY, PartitionIndex::FIRST), Row::Partition(here));
    assert_eq!(site.found()[0], (FindingKind::MissingPartition, 1));
    site.put(SHARD_0, Key::Partition(DIRECTORY, upper), Row::Partition(there));
    if moves {
        site.put(SHARD_0, entry_key(DIRECTORY, "two"), entry(LINKED, EntryBody::Reference(FileKind::Regular)));
    }
    let report = site.check();
    assert!(report.is_sound(), "{:#?}", report.findings);
    assert_eq!(report.counts.entries, 5);
}

/// An rmdir that was interrupted when some of the directory's rows were removed, and others not.
#[test]
fn half_removed_directory_is_a_leftover() {
    let site = Site::new();
    let upper = PartitionIndex(1);
    let gone = InodeId(DIRECTORY.0 + 1);
    let mut map = map();
    map.add(upper);
    let lower = PartitionRow { depth: 1, map: map.clone(), ..partition(0, 0) };
    let half_removed = || {
        let row = DirectoryRow { map: map.clone(), ..directory(DIRECTORY) };
        site.put(SHARD_1, Key::Directory(gone), Row::Directory(row));
        site.put(SHARD_1, Key::Partition(gone, PartitionIndex::FIRST), Row::Partition(lower.clone()));
    };
    half_removed();
    assert_eq!(site.found(), [(FindingKind::DirectoryWithoutName, 1)]);
    let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
    // A directory that a name refers to must be complete.
    half_removed();
    site.put(
        SHARD_1,
        entry_key(DIRECTORY, "named"),
        entry(gone, EntryBody::Directory(attributes(FileKind::Directory, 0))),
    );
    site.put(SHARD_1, Key::Partition(DIRECTORY, PartitionIndex::FIRST), Row::Partition(partition(2, 1)));
    assert_eq!(site.found(), [(FindingKind::MissingPartition, 1)]);
    let repaired = repair(&site.volume, MissingContent::SetApartUnlessAll, &mut |_| {}).unwrap();
    assert_eq!(repaired.after.findings, [], "{:#?}", repaired.repairs);
}

/// Directory rows that contradict each other are found.
#[test]
fn damaged_directories_are_found() {
    let wrong = |damage: &dyn Fn(&Site), expected: FindingKind| {
        let site = Site::new();
        damage(&site);
        let report = site.check();
        assert_eq!(report.totals.get(&expected), Some(&1), "{expected:?}: {:#?}", report.findings);
        assert!(!report.is_sound());
    };
    let key = Key::Partition(DIRECTORY, PartitionIndex::FIRST);
    wrong(&|site| site.put(SHARD_1, key.clone(), Row::Partition(partition(7, 0))), FindingKind::WrongCount);
    let other = PartitionRow { mode: Mode(0o700), ..partition(1, 0) };
    wrong(&|site| site.put(SHARD_1, key.clone(), Row::Partition(other.clone())), FindingKind::WrongPartition);
    wrong(&|site| site.delete(SHARD_1, key.clone()), FindingKind::MissingPartition);
    let stray = PartitionRow { index: PartitionIndex(1), depth: 1, ..partition(0, 0) };
    let stray_key = Key::Partition(DIRECTORY, PartitionIndex(1));
    wrong(&|site| site.put(SHARD_0, stray_key.clone(), Row::Partition(stray.clone())), FindingKind::StrayPartition);
    wrong(&|site| site.put(SHARD_1, stray_key.clone(), Row::Partition(stray.clone())), FindingKind::MisplacedRow);
    let again = entry(DIRECTORY, EntryBody::Directory(attributes(FileKind::Directory, 0)));
    wrong(&|site| site.put(SHARD_0, entry_key(ROOT, "again"), again.clone()), FindingKind::SeveralNames);
    let inner = Row::Directory(directory(InodeId(DIRECTORY.0 + 50)));
    wrong(&|site| site.put(SHARD_1, Key::Directory(DIRECTORY), inner.clone()), FindingKind::WrongParent);
    let circle = |site: &Site| {
        site.delete(SHARD_0, entry_key(ROOT, "dir"));
        let own = entry(DIRECTORY, EntryBody::Directory(attributes(FileKind::Directory, 0)));
        site.put(SHARD_1, entry_key(DIRECTORY, "own"), own);
    };
    wrong(&circle, FindingKind::Unreachable);
    wrong(&|site| site.delete(SHARD_0, Key::Directory(ROOT)), FindingKind::NoRoot);
}

/// File rows that contradict each other, and bytes that are not rows, are found.
#[test]
fn damaged_files_are_found() {
    let wrong = |damage: &dyn Fn(&Site), expected: FindingKind| {
        let site = Site::new();
        damage(&site);
        let report = site.check();
        assert_eq!(report.totals.get(&expected), Some(&1), "{expected:?}: {:#?}", report.findings);
        assert!(!report.is_sound());
    };
    wrong(&|site| site.delete(SHARD_0, Key::Inode(LINKED)), FindingKind::MissingInode);
    wrong(&|site| site.delete(SHARD_1, entry_key(DIRECTORY, "two")), FindingKind::WrongLinkCount);
    wrong(&|site| site.put(SHARD_0, Key::Inode(InodeId(8)), Row::Inode(inline(b""))), FindingKind::InodeWithoutName);
    let twin = entry(PLAIN, EntryBody::Node(inline(b"twin")));
    wrong(&|site| site.put(SHARD_1, entry_key(DIRECTORY, "twin"), twin.clone()), FindingKind::DuplicateInode);
    let counter = Row::Counter(CounterRow { inodes_end: 4 });
    wrong(&|site| site.put(SHARD_0, Key::Counter, counter.clone()), FindingKind::CounterTooLow);
    wrong(&|site| site.delete(SHARD_0, xattr_key(LINKED, "user.x")), FindingKind::MissingXattr);
    let short = entry(PLAIN, EntryBody::Node(NodeRow { attributes: attributes(FileKind::Regular, 9), ..inline(b"x") }));
    wrong(&|site| site.put(SHARD_0, entry_key(ROOT, "plain"), short.clone()), FindingKind::WrongAttributes);
    let garbage = |site: &Site| {
        site.edit(SHARD_0, |batch| batch.put(codec::encode_key(&entry_key(ROOT, "plain")), b"\x01garbage"));
    };
    wrong(&garbage, FindingKind::DamagedRow);
    wrong(&|site| std::fs::remove_file(site.volume.backing_file(LARGE)).unwrap(), FindingKind::MissingBackingFile);
    wrong(&|site| std::fs::write(site.volume.backing_file(LARGE), b"longer").unwrap(), FindingKind::WrongSize);
    let cut = |site: &Site| site.put(SHARD_0, entry_key(ROOT, "large"), entry(LARGE, EntryBody::Node(size_stale(4))));
    wrong(&cut, FindingKind::WrongSize);
}

/// Findings above the limit are only counted.
#[test]
fn findings_are_bounded() {
    let mut report = FsckReport::default();
    for _ in 0..FINDINGS_MAX + 5 {
        report.add(FindingKind::Orphan, "here", "there");
    }
    assert_eq!(report.findings.len(), FINDINGS_MAX);
    assert_eq!(report.totals[&FindingKind::Orphan], FINDINGS_MAX as u64 + 5);
    assert_eq!(report.findings[0].to_string(), "orphan here: there");
}

/// A volume whose `inline_limit_bytes` was lowered may have rows above it.
#[test]
fn lowered_inline_limit_is_not_damage() {
    let site = Site::new();
    for path in [site.volume.volume_file(), site.volume.volume_file_copy()] {
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, text.replace("inline_limit_bytes = 1024", "inline_limit_bytes = 2")).unwrap();
    }
    let report = site.check();
    assert_eq!(report.findings, [], "{:#?}", report.findings);
}
