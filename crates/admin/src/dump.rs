//! Exports the metadata of a volume as one stream of bytes, and imports it (`formats/dump.md`).
//!
//! [`dump`] writes the rows of a snapshot as it reads them; [`load`] creates a volume from them. In memory they keep
//! only the transactions that were in progress at the snapshot and the ids of each shard's orphans. The check at the
//! end of a load needs the memory of a check.

mod load;
mod privileges;
mod record;

pub use load::{Data, LoadError, Loaded, load};
pub use privileges::{Dropped, Privileges};
pub use record::{DumpError, VERSION};

use crate::maintenance::Maintenance;
use crate::snapshot::offline::{self, OfflineSnapshot};
use crate::snapshot::{RowSource, Snapshot, SnapshotRow};
use record::{DumpCounts, DumpRecord, RecordWriter};
use std::collections::HashSet;
use std::io::Write;
use varve_env::volume_dir::VolumeDir;
use varve_schema::{Key, Kind, Row, codec};
use varve_types::{AckLevel, InodeId, ShardId, VolumeSettings};

/// The kinds of rows that are dumped of each shard, in this order. Intents and decisions are resolved by the snapshot,
/// recorded replies are useless later, and orphans end with the server that has them open.
const KINDS: [Kind; 6] = [Kind::Counter, Kind::Partition, Kind::Directory, Kind::Inode, Kind::Xattr, Kind::Entry];

/// Result of a dump.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    pub rows: u64,
    pub entries: u64,
    pub bytes: u64,
}

/// Progress of a dump or load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DumpProgress {
    pub shard: ShardId,
    pub rows: u64,
}

/// Runs `work` for `command` over the tables of a volume that no server uses; writes nothing to it. Must not be called on a
/// thread of an asynchronous runtime.
pub(crate) fn read_offline<T>(
    volume: &VolumeDir,
    command: &str,
    work: impl AsyncFnOnce(&mut OfflineSnapshot, &VolumeSettings, AckLevel) -> Result<T, DumpError>,
) -> Result<T, DumpError> {
    let settings = volume.read_settings()?;
    let failed =
        |source| DumpError::Io { doing: format!("cannot open the volume {}", volume.root().display()), source };
    let volume = &volume.opened().map_err(failed)?;
    let alone = Maintenance::begin_to_read(volume, &settings, command)?;
    let _lock = alone.lock_for_reading(volume)?;
    let threads = |source| DumpError::Io { doing: "cannot start threads".into(), source };
    let runtime = offline::runtime().map_err(threads)?;
    let store = offline::store_for_reading(volume);
    let config = offline::table_config(volume, &settings, store, runtime.handle().clone());
    runtime.block_on(async {
        let mut tables = OfflineSnapshot::open(&config, settings.shards).await.map_err(|mut all| all.remove(0))?;
        let done = work(&mut tables, &settings, volume.ack_level()).await;
        tables.close().await?;
        alone.check()?;
        done
    })
}

/// Dumps a volume that no server uses, as [`dump`]. Must not be called on a thread of an asynchronous runtime.
pub fn dump_offline(
    volume: &VolumeDir,
    output: &mut dyn Write,
    progress: &mut dyn FnMut(DumpProgress),
) -> Result<Dumped, DumpError> {
    read_offline(volume, "varve dump", async |tables, settings, ack| {
        dump(tables, (settings, ack), output, progress).await
    })
}

/// Dumps the rows of `source`, for the volume with these settings and this acknowledgement level.
pub async fn dump(
    source: &mut dyn RowSource,
    (settings, ack): (&VolumeSettings, AckLevel),
    output: &mut dyn Write,
    progress: &mut dyn FnMut(DumpProgress),
) -> Result<Dumped, DumpError> {
    let mut writer = RecordWriter::begin(output)?;
    writer.write(&DumpRecord::Volume(settings.clone(), ack))?;
    let mut snapshot = Snapshot::begin(source).await?;
    let mut counts = DumpCounts::default();
    for shard in settings.shards.all() {
        progress(DumpProgress { shard, rows: counts.rows });
        dump_shard(&mut snapshot, shard, &mut writer, &mut counts).await?;
    }
    writer.write(&DumpRecord::End(counts))?;
    let bytes = writer.finish()?;
    Ok(Dumped { rows: counts.rows, entries: counts.entries, bytes })
}

async fn dump_shard(
    snapshot: &mut Snapshot<'_>,
    shard: ShardId,
    writer: &mut RecordWriter<'_>,
    counts: &mut DumpCounts,
) -> Result<(), DumpError> {
    let mut orphans: HashSet<InodeId> = HashSet::new();
    let mut rows = snapshot.rows(shard, Kind::Orphan).await?;
    while let Some(found) = rows.next().await? {
        if let SnapshotRow::Row(Key::Orphan(inode), _) = found {
            orphans.insert(inode);
        }
    }
    for kind in KINDS {
        let mut rows = snapshot.rows(shard, kind).await?;
        while let Some(found) = rows.next().await? {
            let (key, row) = match found {
                SnapshotRow::Row(key, row) => (key, row),
                SnapshotRow::Damaged { error, .. } => {
                    return Err(DumpError::Damaged { shard, reason: error.to_string() });
                }
            };
            if matches!(&key, Key::Inode(inode) | Key::Xattr(inode, _) if orphans.contains(inode)) {
                continue;
            }
            counts.rows += 1;
            counts.entries += u64::from(matches!(row, Row::Entry(_)));
            let (key, row) = (codec::encode_key(&key), codec::encode_row(&row));
            writer.write(&DumpRecord::Row { shard, key, row })?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
