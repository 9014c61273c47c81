//! Reading all tables of a volume.

use super::census::{Census, InodeSummary, Partition};
use super::{FindingKind, FsckError, Progress, Report, files};
use crate::shards::table::{MEMTABLE_BYTES_DEFAULT, TableCache};
use crate::shards::{Table, TableConfig, TableError};
use crate::tables::{Key, Kind, PartitionState, Row, codec};
use futures::stream::{self, StreamExt, TryStreamExt};
use varve_types::{PartitionIndex, ShardId, VolumeSettings};
use varve_world::posix_store::PosixStore;
use varve_world::volume_dir::VolumeDir;

/// Tables opened or closed at a time: mostly waiting for the store.
const OPENING_MAX: usize = 8;

/// Rows are read once and in order, so little is worth keeping.
const CACHE_BYTES: u64 = 32 * 1024 * 1024;

/// Rows between two signs of progress.
const PROGRESS_ROWS: u64 = 10_000;

/// Every table of the volume, open, by shard.
pub struct Tables(Vec<Table>);

/// Opens all tables, does `work`, and closes them, whatever came of it.
pub fn with_tables(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    progress: &mut dyn FnMut(Progress),
    work: impl AsyncFnOnce(&Tables, &mut dyn FnMut(Progress)) -> Result<(), FsckError>,
) -> Result<(), FsckError> {
    progress(Progress::Opening);
    let io = |doing: &str| {
        let doing = doing.to_owned();
        move |source| FsckError::Io { doing, source }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("varve-fsck")
        .enable_all()
        .build()
        .map_err(io("cannot start threads"))?;
    let config = TableConfig {
        shard: ShardId(0),
        volume: volume.clone(),
        store: PosixStore::open(volume.shards()).map_err(io("cannot use the directory of tables"))?,
        sync_interval: settings.sync_interval,
        cache: TableCache::new(CACHE_BYTES),
        background: runtime.handle().clone(),
        memtable_bytes: MEMTABLE_BYTES_DEFAULT,
    };
    runtime.block_on(async {
        let open = |shard| {
            let config = TableConfig { shard, ..config.clone() };
            async move { Table::open(config).await.map_err(|error| unreadable(shard, &error)) }
        };
        let tables = stream::iter(settings.shards.all()).map(open).buffered(OPENING_MAX).try_collect().await?;
        let tables = Tables(tables);
        let worked = work(&tables, progress).await;
        let close = |(shard, table): (usize, Table)| async move {
            table.close().await.map_err(|error| unreadable(ShardId(shard as u16), &error))
        };
        let closing = stream::iter(tables.0.into_iter().enumerate()).map(close).buffer_unordered(OPENING_MAX);
        let closed: Vec<Result<(), FsckError>> = closing.collect().await;
        worked?;
        closed.into_iter().collect()
    })
}

fn unreadable(shard: ShardId, error: &TableError) -> FsckError {
    FsckError::Unreadable { shard, reason: error.to_string() }
}

impl Tables {
    fn iter(&self) -> impl Iterator<Item = (ShardId, &Table)> {
        self.0.iter().enumerate().map(|(shard, table)| (ShardId(shard as u16), table))
    }

    /// Everything but entries and extended attributes.
    pub async fn read_structure(
        &self,
        census: &mut Census,
        report: &mut Report,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), FsckError> {
        let kinds = [
            Kind::Counter,
            Kind::Partition,
            Kind::Directory,
            Kind::Inode,
            Kind::Orphan,
            Kind::Intent,
            Kind::Decision,
            Kind::Replies,
        ];
        for (shard, table) in self.iter() {
            progress(Progress::Reading { pass: 1, shard, shards: self.0.len() as u16, rows: report.counts.rows });
            for kind in kinds {
                each(shard, table, kind, report, &mut |key, row, report| note(shard, key, row, census, report)).await?;
            }
        }
        Ok(())
    }

    /// Entries and extended attributes.
    pub async fn read_names(
        &self,
        census: &mut Census,
        report: &mut Report,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(), FsckError> {
        let shards = self.0.len() as u16;
        for (shard, table) in self.iter() {
            progress(Progress::Reading { pass: 2, shard, shards, rows: report.counts.rows });
            let mut reader = files::Reader::new(shard);
            each(shard, table, Kind::Entry, report, &mut |key, row, report| {
                if let (Key::Entry(directory, name), Row::Entry(entry)) = (key, row) {
                    reader.entry(directory, &name, &entry, census, report);
                }
                if report.counts.rows % PROGRESS_ROWS == 0 {
                    progress(Progress::Reading { pass: 2, shard, shards, rows: report.counts.rows });
                }
            })
            .await?;
            reader.end(report);
            each(shard, table, Kind::Xattr, report, &mut |key, _, report| {
                if let Key::Xattr(inode, name) = key {
                    files::note_xattr(shard, inode, &name, census, report);
                }
            })
            .await?;
        }
        Ok(())
    }
}

/// Calls `note` with every row of `kind` that can be decoded; the others are findings.
async fn each(
    shard: ShardId,
    table: &Table,
    kind: Kind,
    report: &mut Report,
    note: &mut dyn FnMut(Key, Row, &mut Report),
) -> Result<(), FsckError> {
    let range = codec::keys_of(kind);
    let scan = table.scan(range.start.into(), range.end.into()).await;
    let mut cursor = scan.map_err(|error| unreadable(shard, &error))?;
    while let Some((key, row)) = cursor.next().await.map_err(|error| unreadable(shard, &error))? {
        report.counts.rows += 1;
        match codec::decode(&key, &row) {
            Ok((key, row)) => note(key, row, report),
            Err(error) => {
                let hex: String = key.iter().take(64).map(|byte| format!("{byte:02x}")).collect();
                report.add(FindingKind::DamagedRow, format_args!("shard {shard} key {hex}"), error);
            }
        }
    }
    Ok(())
}

fn note(shard: ShardId, key: Key, row: Row, census: &mut Census, report: &mut Report) {
    let home = match &key {
        Key::Directory(inode) | Key::Inode(inode) | Key::Orphan(inode) => Some(inode.shard()),
        Key::Partition(directory, index) if index.0 < census.shards.get() => Some(census.shard_of(*directory, *index)),
        Key::Partition(directory, _) => Some(directory.shard()),
        _ => None,
    };
    if let Some(home) = home.filter(|home| *home != shard) {
        let what = format_args!("it belongs to shard {home}");
        return report.add(FindingKind::MisplacedRow, format_args!("shard {shard} {key:?}"), what);
    }
    match (key, row) {
        (Key::Counter, Row::Counter(counter)) => census.inodes_end[usize::from(shard.0)] = counter.inodes_end,
        (Key::Partition(directory, index), Row::Partition(row)) => {
            report.counts.partitions += 1;
            if row.index != index || row.depth > census.shards.depth_max() || cut_before(index) > row.depth {
                let place = format_args!("shard {shard} directory {directory} partition {}", index.0);
                let what = format_args!("the row says partition {} of depth {}", row.index.0, row.depth);
                return report.add(FindingKind::WrongPartition, place, what);
            }
            if row.state == PartitionState::Sealed {
                let place = format_args!("directory {directory} partition {}", index.0);
                report.add(FindingKind::SealedPartition, place, "it takes no new names");
            }
            let partition = Partition { row, live: false, entries: 0, subdirectories: 0 };
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
            files::check_node(inode, &row, &format_args!("inode {inode}"), census, report);
        }
        (Key::Orphan(inode), Row::Orphan(_)) => {
            report.counts.orphans += 1;
            census.orphans.insert(inode);
        }
        (Key::Intent(id), Row::Intent(intent)) => {
            report.counts.intents += 1;
            let what = format_args!("{} changes wait for shard {}'s decision", intent.changes.len(), id.coordinator);
            report.add(FindingKind::Intent, format_args!("shard {shard} {id:?}"), what);
        }
        (Key::Decision(id), Row::Decision(decision)) => {
            report.counts.intents += 1;
            let what = format_args!("committed; up to {} shards have to apply it", decision.participants.len());
            report.add(FindingKind::Intent, format_args!("shard {shard} {id:?}"), what);
        }
        _ => {}
    }
}

/// The least depth that partition `index` can have.
fn cut_before(index: PartitionIndex) -> u8 {
    (16 - index.0.leading_zeros()) as u8
}
