//! Reading all tables of a volume.

use super::census::{Census, InodeSummary, PartitionRecord};
use super::fix::Fix;
use super::{CheckProgress, FindingKind, FsckError, FsckReport, directories, files};
use crate::snapshot::offline::{self, OfflineSnapshot};
use crate::snapshot::{Snapshot, SnapshotRow, Unreadable, Unresolved, UnresolvedKind};
use varve_env::volume_dir::VolumeDir;
use varve_schema::{Key, Kind, Row};
use varve_types::{PartitionIndex, ShardId, VolumeSettings};

/// Rows between two progress reports.
const PROGRESS_ROWS: u64 = 10_000;

const STRUCTURE: [Kind; 9] = [
    Kind::Counter,
    Kind::Partition,
    Kind::Directory,
    Kind::Inode,
    Kind::Orphan,
    Kind::Garbage,
    Kind::Intent,
    Kind::Decision,
    Kind::Replies,
];

/// Reads every row of the volume; writes nothing. Returns the shards that cannot be read, which are also in the report.
/// If there are any, the census is unusable.
pub fn read(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    census: &mut Census,
    report: &mut FsckReport,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<Vec<Unreadable>, FsckError> {
    progress(CheckProgress::Opening);
    let threads = |source| FsckError::Io { doing: "cannot start threads".into(), source };
    let runtime = offline::runtime().map_err(threads)?;
    let store = offline::store_for_reading(volume);
    let config = offline::table_config(volume, settings, store, runtime.handle().clone());
    let unreadable = runtime.block_on(async {
        let mut tables = match OfflineSnapshot::open(&config, settings.shards).await {
            Ok(tables) => tables,
            Err(unreadable) => return unreadable,
        };
        let read = read_all(&mut tables, census, report, progress).await;
        let closed = tables.close().await;
        read.and(closed).err().into_iter().collect::<Vec<_>>()
    });
    for error in &unreadable {
        report.add(FindingKind::UnreadableShard, format_args!("shard {}", error.shard), &error.reason);
    }
    Ok(unreadable)
}

async fn read_all(
    tables: &mut OfflineSnapshot,
    census: &mut Census,
    report: &mut FsckReport,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<(), Unreadable> {
    let mut snapshot = Snapshot::begin(tables).await?;
    note_unresolved(snapshot.unresolved(), report);
    let shards = snapshot.shards();
    for shard in shards.all() {
        progress(CheckProgress::Reading { pass: 1, shard, shards: shards.get(), rows: report.counts.rows });
        for kind in STRUCTURE {
            let mut rows = snapshot.rows(shard, kind).await?;
            while let Some(found) = rows.next().await? {
                if let Some((key, row)) = sound(shard, found, report) {
                    note(shard, key, row, census, report);
                }
            }
        }
    }
    directories::find_partitions(census, report);
    for shard in shards.all() {
        read_names(&mut snapshot, shard, census, report, progress).await?;
    }
    Ok(())
}

/// Reads entries and extended attributes.
async fn read_names(
    snapshot: &mut Snapshot<'_>,
    shard: ShardId,
    census: &mut Census,
    report: &mut FsckReport,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<(), Unreadable> {
    let shards = snapshot.shards().get();
    progress(CheckProgress::Reading { pass: 2, shard, shards, rows: report.counts.rows });
    let mut reader = files::EntryReader::new(shard);
    let mut rows = snapshot.rows(shard, Kind::Entry).await?;
    while let Some(found) = rows.next().await? {
        if let Some((Key::Entry(directory, name), Row::Entry(entry))) = sound(shard, found, report) {
            reader.entry(directory, &name, &entry, census, report);
        }
        if report.counts.rows.is_multiple_of(PROGRESS_ROWS) {
            progress(CheckProgress::Reading { pass: 2, shard, shards, rows: report.counts.rows });
        }
    }
    reader.end(report);
    let mut rows = snapshot.rows(shard, Kind::Xattr).await?;
    while let Some(found) = rows.next().await? {
        if let Some((Key::Xattr(inode, name), _)) = sound(shard, found, report) {
            files::note_xattr(shard, inode, &name, census, report);
        }
    }
    Ok(())
}

/// Decodes a row; rows that cannot be decoded become findings.
fn sound(shard: ShardId, found: SnapshotRow, report: &mut FsckReport) -> Option<(Key, Row)> {
    report.counts.rows += 1;
    match found {
        SnapshotRow::Row(key, row) => Some((key, row)),
        SnapshotRow::Damaged { key, row, error } => {
            let hex: String = key.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
            report.add(FindingKind::DamagedRow, format_args!("shard {shard} key {hex}"), error);
            report.fix(Fix::SetAside { shard, key, row });
            None
        }
    }
}

fn note_unresolved(unresolved: &[Unresolved], report: &mut FsckReport) {
    for Unresolved { shard, transaction, what } in unresolved {
        report.counts.intents += 1;
        let coordinator = transaction.coordinator;
        let what = match what {
            UnresolvedKind::Decision { participants } => {
                format!("committed; up to {participants} shards have to apply it")
            }
            UnresolvedKind::Intent { changes: 0, .. } => {
                format!("applied; shard {coordinator} has not settled it")
            }
            UnresolvedKind::Intent { committed: true, changes } => {
                format!(
                    "{changes} changes are to be applied, as shard {coordinator} or all shards together have decided"
                )
            }
            UnresolvedKind::Intent { committed: false, changes } => {
                format!("{changes} changes are to be dropped: there is no decision")
            }
        };
        report.add(FindingKind::Intent, format_args!("shard {shard} {transaction:?}"), what);
    }
    if !unresolved.is_empty() {
        report.fix(Fix::Resolve);
    }
}

fn note(shard: ShardId, key: Key, row: Row, census: &mut Census, report: &mut FsckReport) {
    let home = match &key {
        Key::Directory(inode) | Key::Inode(inode) | Key::Orphan(inode) => Some(inode.shard()),
        Key::Partition(directory, index) if index.0 < census.shards.get() => Some(census.shard_of(*directory, *index)),
        Key::Partition(directory, _) => Some(directory.shard()),
        _ => None,
    };
    if let Some(home) = home.filter(|home| *home != shard) {
        let what = format_args!("it belongs to shard {home}");
        report.add(FindingKind::MisplacedRow, format_args!("shard {shard} {key:?}"), what);
        return report.fix(Fix::MoveRow { from: shard, to: home, key });
    }
    match (key, row) {
        (Key::Counter, Row::Counter(counter)) => census.inodes_end[usize::from(shard.0)] = counter.inodes_end,
        (Key::Partition(directory, index), Row::Partition(row)) => {
            report.counts.partitions += 1;
            if row.index != index || row.depth > census.shards.depth_max() || cut_before(index) > row.depth {
                let place = format_args!("shard {shard} directory {directory} partition {}", index.0);
                let what = format_args!("the row says partition {} of depth {}", row.index.0, row.depth);
                report.add(FindingKind::WrongPartition, place, what);
                // It is created again from its directory's row.
                return report.fix(Fix::DropRow { shard, key: Key::Partition(directory, index) });
            }
            let partition = PartitionRecord { row, live: false, entries: 0, subdirectories: 0 };
            census.partitions.insert((directory, index), partition);
        }
        (Key::Directory(inode), Row::Directory(row)) => {
            report.counts.directories += 1;
            census.list_xattrs(inode, &row.xattrs);
            census.directory(inode).row = Some(row);
        }
        (Key::Inode(inode), Row::Inode(row)) => {
            report.counts.inodes += 1;
            census.list_xattrs(inode, &row.xattrs);
            let (kind, nlink) = (row.attributes.kind, row.attributes.nlink);
            census.inode(inode).row = Some(InodeSummary { kind, nlink });
            files::check_node(inode, &row, &format_args!("inode {inode}"), None, census, report);
        }
        (Key::Orphan(inode), Row::Orphan(_)) => {
            report.counts.orphans += 1;
            census.orphans.insert(inode);
        }
        (Key::Garbage(inode), Row::Garbage) => {
            report.counts.removed += 1;
            census.garbage.insert(inode, shard);
        }
        _ => {}
    }
}

/// The least possible depth of partition `index`.
fn cut_before(index: PartitionIndex) -> u8 {
    (16 - index.0.leading_zeros()) as u8
}
