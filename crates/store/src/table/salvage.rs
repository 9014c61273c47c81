//! Reads the intact part of a damaged shard and makes a new table from it.

use super::{Table, TableBatch, TableConfig, TableError, damaged_ends, presence};
use crate::log::{DamagedPlace, is_begun, read_intact};
use bytes::Bytes;
use slatedb::admin::Admin;
use slatedb::wal::WalError;
use slatedb::{RowEntry, SstFile, SstReader, ValueDeletable, VersionedManifest};
use std::collections::BTreeMap;
use std::io;
use std::ops::RangeBounds;
use varve_env::store_path::StorePath;
use varve_schema::{CounterRow, Key, Kind, Row, codec};

/// Bytes of rows written per batch.
const BATCH_BYTES: usize = 1024 * 1024;

/// The intact part of a shard.
#[derive(Default)]
pub struct Salvage {
    /// The newest intact version of each row, with its sequence number; `None`: deleted.
    rows: BTreeMap<Bytes, (u64, Option<Bytes>)>,
    /// Damage that may have lost rows.
    pub damaged: Vec<DamagedPlace>,
    /// Damage that lost no rows.
    pub ends: Vec<DamagedPlace>,
}

impl Salvage {
    /// Reads all of a shard without an owner, block by block and record by record. Writes nothing. Keeps the shard's
    /// rows in memory.
    pub async fn read(config: &TableConfig) -> Result<Salvage, TableError> {
        let failed = |error| TableError::new(config.shard, "salvage", error, None);
        // SlateDB retries on a missing store until it is there.
        presence::ask(config).await?;
        let mut salvage = Salvage::default();
        let reader = SstReader::new(config.path(), config.object_store(), None, None);
        let newest = NewestManifest::find(config).await?;
        if let Some(manifest) = &newest.manifest {
            for view in manifest.all_sst_views() {
                let file = reader.open_with_handle(view.sst.clone()).map_err(failed)?;
                let visible =
                    |row: &RowEntry| view.visible_range().is_none_or(|range| RangeBounds::contains(&range, &row.key));
                salvage.read_table(config, &file, visible).await;
            }
        }
        let later = newest.later_tables(config);
        for name in later.map_err(|error| TableError::internal(config.shard, error.to_string()))? {
            let Ok(id) = name.parse() else { continue };
            match reader.open(id).await {
                Ok(file) => salvage.read_table(config, &file, |_| true).await,
                Err(error) => salvage.damaged.push(damaged_table(config, &name, 0, &error)),
            }
        }
        match newest.damaged.is_empty() {
            true => salvage.ends = damaged_ends(config).await?,
            false => salvage.damaged.extend(newest.damaged),
        }
        // A damaged manifest does not say which part of the log is in tables.
        let known = newest.manifest.as_ref().filter(|_| salvage.damaged.is_empty());
        let replay_after = known.map(VersionedManifest::replay_after_wal_id);
        let directory = config.volume.shard_log(config.shard);
        let failed = |error| TableError::from_log(config.shard, WalError::from(error));
        match presence::lost_log(config).map_err(failed)? {
            Some(lost) => salvage.damaged.push(lost),
            None => {
                let damaged = read_intact(config.shard, &directory, replay_after, &mut |row| salvage.note(row));
                salvage.damaged.extend(damaged.map_err(failed)?);
            }
        }
        Ok(salvage)
    }

    /// Reads a table's file, block by block.
    async fn read_table(&mut self, config: &TableConfig, file: &SstFile, visible: impl Fn(&RowEntry) -> bool) {
        let name = file.id().to_string();
        let index = match file.index().await {
            Ok(index) => index,
            Err(error) => return self.damaged.push(damaged_table(config, &name, 0, &error)),
        };
        for block in 0..index.len() {
            match file.read_block(block).await {
                Ok(rows) => rows.into_iter().filter(&visible).for_each(|row| self.note(row)),
                Err(error) => {
                    let offset = index.get(block).map_or(0, |(offset, _)| offset);
                    self.damaged.push(damaged_table(config, &name, offset, &error));
                }
            }
        }
    }

    fn note(&mut self, row: RowEntry) {
        let value = match row.value {
            ValueDeletable::Value(value) => Some(Bytes::copy_from_slice(&value)),
            ValueDeletable::Tombstone => None,
            // Varve writes no merge operands.
            ValueDeletable::Merge(_) => return,
        };
        let newest = self.rows.entry(Bytes::copy_from_slice(&row.key)).or_insert((row.seq, value.clone()));
        if newest.0 <= row.seq {
            *newest = (row.seq, value);
        }
    }

    /// Where rows may be lost, the shard's counter may be one of them, and with it the record of ids allocated since.
    /// So ids begin anew beyond all that can have been allocated.
    fn leave_lost_ids(&mut self) {
        if self.damaged.is_empty() {
            return;
        }
        let key = Bytes::from(codec::encode_key(&Key::Counter));
        let (sequence, row) = self.rows.get(&key).cloned().unwrap_or_default();
        let known = match row.map(|row| codec::decode_row(Kind::Counter, &row)) {
            Some(Ok(Row::Counter(counter))) => counter.inodes_end,
            _ => 0,
        };
        let row = Row::Counter(CounterRow::beyond(known));
        self.rows.insert(key, (sequence, Some(Bytes::from(codec::encode_row(&row)))));
    }

    /// Writes the rows to a new shard and closes it. Returns the number of rows.
    pub async fn write(mut self, config: TableConfig) -> Result<u64, TableError> {
        self.leave_lost_ids();
        let table = Table::open(config).await?;
        let (mut batch, mut bytes, mut count) = (TableBatch::default(), 0, 0);
        for (key, (_, value)) in self.rows {
            let Some(value) = value else { continue };
            bytes += key.len() + value.len();
            count += 1;
            batch.put(key, value);
            if bytes >= BATCH_BYTES {
                table.write(&std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
        }
        table.write(&batch).await?;
        table.sync().await?;
        table.close().await?;
        Ok(count)
    }
}

fn damaged_table(config: &TableConfig, name: &str, offset: u64, error: &slatedb::Error) -> DamagedPlace {
    let path = config.volume.shard(config.shard).join("compacted").join(format!("{name}.sst"));
    DamagedPlace { path: path.into(), offset: Some(offset), reason: error.to_string() }
}

/// The newest readable manifest of a shard.
struct NewestManifest {
    manifest: Option<VersionedManifest>,
    /// Damaged manifests that came after it.
    damaged: Vec<DamagedPlace>,
}

impl NewestManifest {
    async fn find(config: &TableConfig) -> Result<NewestManifest, TableError> {
        let admin = Admin::builder(config.path(), config.object_store()).build();
        let directory = config.volume.shard(config.shard).join("manifest");
        let failed = |error: io::Error| TableError::internal(config.shard, format!("{}: {error}", directory.display()));
        let mut numbers: Vec<u64> =
            names(&directory, "manifest").map_err(failed)?.iter().filter_map(|name| name.parse().ok()).collect();
        numbers.sort_unstable();
        let mut damaged = Vec::new();
        for number in numbers.iter().copied().rev() {
            match admin.read_manifest(Some(number)).await {
                Ok(Some(manifest)) => return Ok(NewestManifest { manifest: Some(manifest), damaged }),
                Ok(None) => {}
                Err(error) => {
                    let error = TableError::new(config.shard, "salvage", error, None);
                    if !error.is_damage() {
                        return Err(error);
                    }
                    let path = directory.join(format!("{number:020}.manifest"));
                    damaged.push(DamagedPlace { path: path.into(), offset: Some(0), reason: error.to_string() });
                }
            }
        }
        // A shard that was never opened has lost nothing.
        if numbers.is_empty() && is_begun(&config.volume.shard_log(config.shard)).is_ok_and(|begun| begun) {
            let reason = "there is no manifest, but the shard has a log".to_owned();
            damaged.push(DamagedPlace { path: directory.into(), offset: None, reason });
        }
        Ok(NewestManifest { manifest: None, damaged })
    }

    /// Tables that only a damaged manifest may refer to: those made after all tables of this manifest, because their
    /// rows may be in no log any more. Older tables outside this manifest were replaced.
    fn later_tables(&self, config: &TableConfig) -> io::Result<Vec<String>> {
        if self.damaged.is_empty() {
            return Ok(Vec::new());
        }
        let views = self.manifest.iter().flat_map(VersionedManifest::all_sst_views);
        // Names of tables are ULIDs, which rise with time, also when compared as text.
        let last = views.map(|view| view.sst.id.value().to_string()).max();
        let mut names = names(&config.volume.shard(config.shard).join("compacted"), "sst")?;
        names.retain(|name| last.as_ref().is_none_or(|last| name > last));
        Ok(names)
    }
}

/// Names of the files in `directory` with this extension, without the extension.
fn names(directory: &StorePath, extension: &str) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    let entries = match directory.read_dir() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(names),
        entries => entries?,
    };
    for entry in entries {
        let path = entry.path();
        if path.extension().is_some_and(|found| found == extension)
            && let Some(name) = path.file_stem().and_then(|name| name.to_str())
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}
