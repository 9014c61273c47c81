//! Repairs of single rows, counters, and transactions in progress.

use super::super::FsckError;
use super::session::{EditStep, RepairSession, make_private};
use crate::snapshot::Snapshot;
use crate::snapshot::offline::OfflineSnapshot;
use varve_env::disk;
use varve_schema::{CounterRow, Key, Kind, Row, codec};
use varve_types::{InodeId, ShardId};
use xxhash_rust::xxh3::xxh3_64;

impl RepairSession<'_> {
    /// In each shard, one batch applies the changes and removes their intents; the decisions are removed last.
    pub async fn resolve(&mut self) -> Result<(), FsckError> {
        let shards = self.settings.shards;
        let mut tables = OfflineSnapshot::open(self.config(), shards).await.map_err(|mut all| all.remove(0))?;
        let mut puts = Vec::new();
        {
            let snapshot = Snapshot::begin(&mut tables).await?;
            for shard in shards.all() {
                let decided = snapshot.decided(shard);
                puts.extend(decided.rows.iter().map(|(key, row)| (shard, key.clone(), row.clone(), None)));
                puts.extend(decided.tallies.iter().map(|(key, tally)| (shard, key.clone(), None, Some(*tally))));
            }
        }
        tables.close().await?;
        for (shard, bytes, row, tally) in puts {
            let Ok(key) = codec::decode_key(&bytes) else { continue };
            match (row, tally) {
                (Some(row), _) => self.put(EditStep::Rows, shard, &key, row),
                (None, None) => self.remove_in(EditStep::Rows, shard, bytes),
                (None, Some(tally)) => {
                    if let Some(Row::Partition(mut partition)) = self.row_in(shard, &key).await? {
                        tally.apply(&mut partition);
                        self.put(EditStep::Rows, shard, &key, Row::Partition(partition));
                    }
                }
            }
        }
        for shard in shards.all() {
            for (step, kind) in [(EditStep::Rows, Kind::Intent), (EditStep::Removals, Kind::Decision)] {
                for (key, _) in self.scan(shard, codec::keys_of(kind)).await? {
                    self.remove_in(step, shard, codec::encode_key(&key));
                    self.note(format!("shard {shard}: ended {key:?}"));
                }
            }
        }
        self.flush().await
    }

    /// Opening a table truncates the log of its last owner.
    pub async fn end_log(&mut self, shard: ShardId) -> Result<(), FsckError> {
        self.table(shard).await?;
        self.note(format!("shard {shard}: ended its log before the incomplete bytes"));
        Ok(())
    }

    pub fn make_volume_file(&mut self) -> Result<(), FsckError> {
        let failed = |source| FsckError::Io { doing: "cannot recreate the volume file".into(), source };
        self.volume.make_volume_file(self.settings).map_err(failed)?;
        self.note("recreated the volume file from its copy".to_owned());
        Ok(())
    }

    pub fn make_volume_copy(&mut self) -> Result<(), FsckError> {
        let failed = |source| FsckError::Io { doing: "cannot recreate the copy of the volume file".into(), source };
        self.volume.copy_volume_file(self.settings).map_err(failed)?;
        self.note("recreated the copy of the volume file".to_owned());
        Ok(())
    }

    /// Clients read the key again at each connection, so a new key works as well.
    pub fn make_key(&mut self) -> Result<(), FsckError> {
        let failed = |source| FsckError::Io { doing: "cannot create a new key for the volume".into(), source };
        self.volume.make_key().map_err(failed)?;
        self.note("created a new key for the volume".to_owned());
        Ok(())
    }

    /// Saves the bytes in a file of the store, for a later manual analysis.
    pub fn set_aside(&mut self, shard: ShardId, key: &[u8], row: &[u8]) -> Result<(), FsckError> {
        let directory = self.volume.damaged();
        make_private(&directory)?;
        let path = directory.join(format!("{:04}-{:016x}.row", shard.0, xxh3_64(key)));
        let length = (key.len() as u32).to_le_bytes();
        let kept = disk::replace(&path, &[&length, key, row].concat());
        kept.map_err(|source| self.io("write", &path, source))?;
        if codec::decode_key(key) == Ok(Key::Counter) {
            // A new counter replaces it: without one, ids would begin again from the start.
            let highest = self.census.ids.iter().rev().find(|inode| inode.shard() == shard);
            self.raise_counter(shard, highest.map_or(0, |inode| inode.0 & InodeId::COUNTER_MAX));
        } else {
            self.remove(shard, key.to_vec());
        }
        self.note(format!("shard {shard}: removed a row of {} bytes; they are in {}", row.len(), path.display()));
        Ok(())
    }

    pub async fn move_row(&mut self, from: ShardId, to: ShardId, key: Key) -> Result<(), FsckError> {
        let bytes = codec::encode_key(&key);
        let Some(row) = self.raw(from, &bytes).await? else { return Ok(()) };
        if !self.is_shard(to) || self.row_in(to, &key).await?.is_some() {
            return self.set_aside(from, &bytes, &row);
        }
        if let Ok(row) = codec::decode_row(key.kind(), &row) {
            self.put(EditStep::Rows, to, &key, row);
            self.remove(from, bytes);
            self.note(format!("moved {key:?} from shard {from} to shard {to}"));
        }
        Ok(())
    }

    pub fn drop_row(&mut self, shard: ShardId, key: Key) -> Result<(), FsckError> {
        self.remove(shard, codec::encode_key(&key));
        self.note(format!("shard {shard}: removed {key:?}"));
        Ok(())
    }

    pub fn raise_counter(&mut self, shard: ShardId, above: u64) {
        let counter = CounterRow::beyond(above + 1);
        self.put(EditStep::Rows, shard, &Key::Counter, Row::Counter(counter));
        self.note(format!("shard {shard}: new ids begin with counter {}", counter.inodes_end));
    }
}
