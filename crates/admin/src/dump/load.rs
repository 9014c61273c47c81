//! Creates a volume from a dump.

use super::privileges::{Changed, Dropped, Privileges};
use super::record::{DumpCounts, DumpError, DumpRecord, RecordReader};
use super::{DumpProgress, KINDS};
use crate::fsck::{self, FsckError, MissingContent, Repaired};
use crate::maintenance::Maintenance;
use crate::snapshot::offline;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use varve_env::disk;
use varve_env::posix_store::PosixStore;
use varve_env::volume_dir::{FormatOver, VolumeDir, VolumeFormatError};
use varve_schema::{Content, EntryBody, Key, Kind, NodeRow, Row, codec};
use varve_store::{Table, TableBatch, TableConfig, TableError};
use varve_types::{InodeId, ShardId, VolumeSettings};

/// Size of a batch of rows.
const BATCH_BYTES: usize = 1024 * 1024;

/// Source of the content of large files.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// It is already in the store's `data`, or will be added later.
    InPlace,
    /// Copied from a `data` directory. A file whose content is missing there was removed after the dump, and is
    /// skipped.
    CopiedFrom(&'a Path),
}

/// Result of a load.
#[derive(Clone, Debug, Default)]
pub struct Loaded {
    pub rows: u64,
    pub entries: u64,
    pub files_copied: u64,
    /// Files that were skipped because their content is missing.
    pub files_left_out: u64,
    /// Privileges removed from rows with [`Privileges::Drop`].
    pub dropped: Dropped,
    /// Result of the repair at the end.
    pub repaired: Repaired,
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Dump(#[from] DumpError),
    #[error(transparent)]
    Format(#[from] VolumeFormatError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error("the loaded volume cannot be checked: {0}")]
    Check(#[from] FsckError),
    #[error("cannot copy the content {}: {source}", path.display())]
    Copy { path: PathBuf, source: io::Error },
}

/// Creates `volume` from the dump `input`. The volume exists once it is complete and checked: an interrupted load
/// leaves none. Must not be called on a thread of an asynchronous runtime.
pub fn load(
    input: &mut dyn Read,
    volume: &VolumeDir,
    over: FormatOver,
    source: (Data<'_>, Privileges),
    progress: &mut dyn FnMut(DumpProgress),
) -> Result<Loaded, LoadError> {
    let mut reader = RecordReader::begin(input)?;
    let DumpRecord::Volume(settings, ack) = reader.read()? else {
        return Err(reader.broken("it does not begin with the volume's settings").into());
    };
    let mut loaded = Loaded::default();
    let mut failure = None;
    let filled = volume.format_with((&settings, ack), over, || {
        let filled = fill(&mut reader, volume, &settings, source, &mut loaded, progress);
        // The caller returns the original error in place of this one.
        filled.map_err(|error| {
            failure = Some(error);
            io::Error::other("the dump could not be loaded")
        })
    });
    match (filled, failure) {
        (_, Some(error)) => Err(error),
        (filled, None) => Ok(filled.map(|()| loaded)?),
    }
}

fn fill(
    reader: &mut RecordReader<'_>,
    volume: &VolumeDir,
    settings: &VolumeSettings,
    (data, privileges): (Data<'_>, Privileges),
    loaded: &mut Loaded,
    progress: &mut dyn FnMut(DumpProgress),
) -> Result<(), LoadError> {
    let threads = |source| DumpError::Io { doing: "cannot start threads".into(), source };
    let runtime = offline::runtime().map_err(threads)?;
    let store = PosixStore::of_volume(volume)
        .map_err(|source| DumpError::Io { doing: format!("cannot use {}", volume.shards()), source })?;
    let config = offline::table_config(volume, settings, store, runtime.handle().clone());
    runtime.block_on(async {
        let mut writer = RowWriter { config: &config, open: None, batch: TableBatch::default(), bytes: 0 };
        let counts = loop {
            match reader.read()? {
                DumpRecord::Row { shard, key, row } => {
                    if writer.is_new(shard) {
                        progress(DumpProgress { shard, rows: loaded.rows });
                    }
                    if shard.0 >= settings.shards.get() {
                        return Err(reader.broken(format!("a row of shard {shard}, which does not exist")).into());
                    }
                    loaded.rows += 1;
                    let decoded = codec::decode(&key, &row).map_err(|error| reader.broken(error.to_string()))?;
                    // Other kinds would be forged transactions and replies.
                    if !KINDS.contains(&decoded.0.kind()) {
                        let what = format!("a row of kind {:?}, which dumps do not contain", decoded.0.kind());
                        return Err(reader.broken(what).into());
                    }
                    loaded.entries += u64::from(decoded.0.kind() == Kind::Entry);
                    let Some((decoded, row)) = allowed(decoded, row, privileges, &mut loaded.dropped) else { continue };
                    if bring_data(volume, &decoded.1, &decoded.0, data, loaded)? {
                        writer.put(shard, key, row).await?;
                    }
                }
                DumpRecord::End(counts) => break counts,
                DumpRecord::Volume(..) => return Err(reader.broken("volume settings after the first record").into()),
            }
        };
        if counts != (DumpCounts { rows: loaded.rows, entries: loaded.entries }) {
            return Err(reader.broken(format!("it should have {} rows, and has {}", counts.rows, loaded.rows)).into());
        }
        reader.end()?;
        writer.close().await?;
        Ok::<(), LoadError>(())
    })?;
    drop(runtime);
    let missing = match data {
        Data::InPlace => MissingContent::Leave,
        Data::CopiedFrom(_) => MissingContent::SetApart,
    };
    loaded.repaired = fsck::repair_locked(volume, settings, missing, &Maintenance::of_new_volume(), &mut |_| {})?;
    Ok(())
}

/// The row and its bytes as they are to be loaded; `None` if the row is skipped.
fn allowed(
    (key, mut decoded): (Key, Row),
    bytes: Vec<u8>,
    privileges: Privileges,
    dropped: &mut Dropped,
) -> Option<((Key, Row), Vec<u8>)> {
    if privileges == Privileges::Keep {
        return Some(((key, decoded), bytes));
    }
    let Changed(changed) = dropped.drop_from(&key, &mut decoded)?;
    let bytes = if changed { codec::encode_row(&decoded) } else { bytes };
    Some(((key, decoded), bytes))
}

/// Copies the content of a large file. `false`: the content is missing, and the file is skipped.
fn bring_data(
    volume: &VolumeDir,
    row: &Row,
    key: &Key,
    data: Data<'_>,
    loaded: &mut Loaded,
) -> Result<bool, LoadError> {
    let Data::CopiedFrom(directory) = data else { return Ok(true) };
    let Some(inode) = with_backing(key, row) else { return Ok(true) };
    let to = volume.backing_file(inode);
    let Some(from) = to.path().strip_prefix(volume.data()).ok().map(|path| directory.join(path)) else {
        return Ok(true);
    };
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| LoadError::Copy { path, source }
    };
    // With its mtime, which is the mtime of a file whose size is stale.
    match disk::copy_whole(&from, &to) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound && !from.exists() => {
            loaded.files_left_out += 1;
            return Ok(false);
        }
        Err(error) => return Err(failed(&from)(error)),
    }
    disk::sync_directory(&to.parent()).map_err(failed(to.path()))?;
    loaded.files_copied += 1;
    Ok(true)
}

fn with_backing(key: &Key, row: &Row) -> Option<InodeId> {
    let backing = |node: &NodeRow| matches!(node.content, Content::Backing(_));
    match (key, row) {
        (Key::Inode(inode), Row::Inode(node)) if backing(node) => Some(*inode),
        (_, Row::Entry(entry)) => match &entry.body {
            EntryBody::Node(node) if backing(node) => Some(entry.inode),
            _ => None,
        },
        _ => None,
    }
}

/// Writes rows, which arrive shard by shard.
struct RowWriter<'a> {
    config: &'a TableConfig,
    open: Option<(ShardId, Table)>,
    batch: TableBatch,
    bytes: usize,
}

impl RowWriter<'_> {
    fn is_new(&self, shard: ShardId) -> bool {
        self.open.as_ref().is_none_or(|(open, _)| *open != shard)
    }

    async fn put(&mut self, shard: ShardId, key: Vec<u8>, row: Vec<u8>) -> Result<(), TableError> {
        if self.is_new(shard) {
            self.close().await?;
            let table = Table::open(TableConfig { shard, ..self.config.clone() }).await?;
            self.open = Some((shard, table));
        }
        self.bytes += key.len() + row.len();
        self.batch.put(key, row);
        if self.bytes >= BATCH_BYTES { self.flush().await } else { Ok(()) }
    }

    async fn flush(&mut self) -> Result<(), TableError> {
        self.bytes = 0;
        match &self.open {
            Some((_, table)) => table.write(&std::mem::take(&mut self.batch)).await,
            None => Ok(()),
        }
    }

    async fn close(&mut self) -> Result<(), TableError> {
        self.flush().await?;
        match self.open.take() {
            Some((_, table)) => table.close().await,
            None => Ok(()),
        }
    }
}
