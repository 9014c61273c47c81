//! What is intact in a damaged shard, and a new table of it.

use super::{Table, TableBatch, TableConfig, TableError};
use crate::shards::log::{DamagedPlace, read_intact};
use bytes::Bytes;
use slatedb::admin::Admin;
use slatedb::wal::WalError;
use slatedb::{RowEntry, SstReader, ValueDeletable};
use std::collections::BTreeMap;
use std::ops::RangeBounds;

/// Rows written at once.
const BATCH_BYTES: usize = 1024 * 1024;

/// What is left of a shard.
#[derive(Default)]
pub struct Salvage {
    /// The newest intact version of each row, with its sequence number; `None`: deleted.
    rows: BTreeMap<Bytes, (u64, Option<Bytes>)>,
    /// Where rows may be lost.
    pub damaged: Vec<DamagedPlace>,
    /// Where none is.
    pub ends: Vec<DamagedPlace>,
}

impl Salvage {
    /// Reads all of a shard that nobody owns, block by block and record by record; writes nothing. Holds the shard's rows
    /// in memory.
    pub async fn read(config: &TableConfig) -> Result<Salvage, TableError> {
        let failed = |error| TableError::new(config.shard, "salvage", error, None);
        let mut salvage = Salvage::default();
        let admin = Admin::builder(config.path(), config.object_store()).build();
        if let Some(manifest) = admin.read_manifest(None).await.map_err(failed)? {
            let reader = SstReader::new(config.path(), config.object_store(), None, None);
            for view in manifest.all_sst_views() {
                let path = config.volume.shard(config.shard).join("compacted");
                let path = path.join(format!("{}.sst", view.sst.id.value()));
                let damaged = |offset, reason: slatedb::Error| DamagedPlace {
                    path: path.clone(),
                    offset,
                    reason: reason.to_string(),
                };
                let file = reader.open_with_handle(view.sst.clone()).map_err(failed)?;
                let index = match file.index().await {
                    Ok(index) => index,
                    Err(error) => {
                        salvage.damaged.push(damaged(0, error));
                        continue;
                    }
                };
                for block in 0..index.len() {
                    let offset = index.get(block).map_or(0, |(offset, _)| offset);
                    match file.read_block(block).await {
                        Ok(rows) => {
                            let seen = |row: &RowEntry| {
                                view.visible_range().is_none_or(|range| RangeBounds::contains(&range, &row.key))
                            };
                            rows.into_iter().filter(seen).for_each(|row| salvage.note(row));
                        }
                        Err(error) => salvage.damaged.push(damaged(offset, error)),
                    }
                }
            }
        }
        salvage.ends = super::damaged_ends(config).await?;
        let directory = config.volume.shard_log(config.shard);
        let damaged = read_intact(&directory, &mut |row| salvage.note(row));
        let damaged = damaged.map_err(|error| TableError::from_log(config.shard, WalError::from(error)))?;
        salvage.damaged.extend(damaged);
        Ok(salvage)
    }

    fn note(&mut self, row: RowEntry) {
        let value = match row.value {
            ValueDeletable::Value(value) => Some(Bytes::copy_from_slice(&value)),
            ValueDeletable::Tombstone => None,
            // Varve writes no operands.
            ValueDeletable::Merge(_) => return,
        };
        let newest = self.rows.entry(Bytes::copy_from_slice(&row.key)).or_insert((row.seq, value.clone()));
        if newest.0 <= row.seq {
            *newest = (row.seq, value);
        }
    }

    /// Writes what was read to a new shard, and closes it. Returns how many rows that are.
    pub async fn write(self, config: TableConfig) -> Result<u64, TableError> {
        let table = Table::open(config).await?;
        let (mut batch, mut bytes, mut count) = (TableBatch::default(), 0, 0);
        for (key, (_, value)) in self.rows {
            let Some(value) = value else { continue };
            bytes += key.len() + value.len();
            count += 1;
            batch.put(key, value);
            if bytes >= BATCH_BYTES {
                table.write(std::mem::take(&mut batch)).await?;
                bytes = 0;
            }
        }
        table.write(batch).await?;
        table.sync().await?;
        table.close().await?;
        Ok(count)
    }
}
