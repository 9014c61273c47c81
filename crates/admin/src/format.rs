//! Creates a volume: its directory, its key and the rows of its root directory.

use crate::maintenance::{Maintenance, MaintenanceError};
use std::io;
use varve_env::clock::{Clock, RealClock};
use varve_env::posix_store::PosixStore;
use varve_env::volume_dir::{FormatOver, VolumeDir, VolumeFormatError};
use varve_schema::{DirectoryRow, Key, PartitionRow, PartitionState, Row, codec};
use varve_store::{MEMTABLE_BYTES_DEFAULT, Merges, Table, TableBatch, TableCache, TableConfig, TableError};
use varve_types::{AckLevel, InodeId, Mode, PartitionIndex, PartitionMap, VolumeSettings};

/// Mode of a new volume's root directory.
const ROOT_MODE: Mode = Mode(0o755);

/// The table has two rows, so a small block cache is enough.
const CACHE_BYTES: u64 = 1024 * 1024;

/// Formats `volume` durably. The volume exists once its volume file exists, and `format` writes that file last: after a
/// crash there is either a complete volume or none. Must not be called on a thread of an asynchronous runtime.
pub fn format(volume: &VolumeDir, settings: &VolumeSettings, over: FormatOver) -> Result<(), FormatError> {
    format_with_level(volume, settings, AckLevel::default(), over)
}

/// [`format`], with an acknowledgement level.
pub fn format_with_level(
    volume: &VolumeDir,
    settings: &VolumeSettings,
    ack: AckLevel,
    over: FormatOver,
) -> Result<(), FormatError> {
    let mut alone = match over {
        FormatOver::Volume => keep_servers_away(volume)?,
        FormatOver::Nothing | FormatOver::OtherFiles => Maintenance::of_new_volume(),
    };
    // A registry in the store goes with the old volume, and the new one must not have renewals of this claim in it. The claim
    // is renewed until the lock is there, which may take long.
    let formatted = volume.format_over((settings, ack), over, || alone.stop_renewing(), || make_root(volume, settings));
    formatted.map_err(|error| {
        alone.release();
        error.into()
    })
}

/// Claims the volume that is to be destroyed. One whose files are damaged is claimed as far as they say where.
fn keep_servers_away(volume: &VolumeDir) -> Result<Maintenance, MaintenanceError> {
    match volume.read_settings_or_copy() {
        Ok((settings, _)) => Maintenance::begin(volume, &settings, "varve format"),
        Err(_) => Ok(Maintenance::of_new_volume()),
    }
}

#[derive(Debug, thiserror::Error)]
pub enum FormatError {
    #[error(transparent)]
    Format(#[from] VolumeFormatError),
    #[error(transparent)]
    Maintenance(#[from] MaintenanceError),
}

fn make_root(volume: &VolumeDir, settings: &VolumeSettings) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("varve-format")
        .enable_all()
        .build()?;
    let config = TableConfig {
        shard: InodeId::ROOT.shard(),
        volume: volume.clone(),
        store: PosixStore::of_volume(volume)?,
        sync_interval: settings.sync_interval,
        cache: TableCache::new(CACHE_BYTES),
        background: runtime.handle().clone(),
        merges: Merges::on(runtime.handle().clone()),
        memtable_bytes: MEMTABLE_BYTES_DEFAULT,
        sync_writes: Default::default(),
        may_claim: None,
    };
    runtime.block_on(write_root(config, root_rows(settings))).map_err(io::Error::other)
}

async fn write_root(config: TableConfig, rows: [(Key, Row); 2]) -> Result<(), TableError> {
    let table = Table::open(config).await?;
    let mut batch = TableBatch::default();
    for (key, row) in &rows {
        batch.put(codec::encode_key(key), codec::encode_row(row));
    }
    table.write(&batch).await?;
    table.sync().await?;
    table.close().await
}

fn root_rows(settings: &VolumeSettings) -> [(Key, Row); 2] {
    let now = RealClock::new().now();
    let (uid, gid) = (settings.owner_uid, rustix::process::getegid().as_raw());
    let map = PartitionMap::whole(settings.shards);
    let directory = DirectoryRow {
        parent: InodeId::ROOT,
        mode: ROOT_MODE,
        uid,
        gid,
        atime: now,
        mtime: now,
        ctime: now,
        btime: now,
        map: map.clone(),
        xattrs: Vec::new(),
    };
    let partition = PartitionRow {
        index: PartitionIndex::FIRST,
        depth: 0,
        state: PartitionState::Live,
        mode: ROOT_MODE,
        uid,
        gid,
        entries: 0,
        subdirectories: 0,
        mtime: now,
        map,
    };
    [
        (Key::Directory(InodeId::ROOT), Row::Directory(directory)),
        (Key::Partition(InodeId::ROOT, PartitionIndex::FIRST), Row::Partition(partition)),
    ]
}
