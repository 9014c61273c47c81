//! All tables of a process at one moment.
//!
//! Every write holds the gate open while it goes on; who wants a snapshot closes it, waits for the writes under way and
//! until SlateDB has what is on its way there, and takes a snapshot of each table, a matter of milliseconds. An answer leaves only when what it rests on has
//! been written, so what the snapshots hold together is a state that the volume was in: what a crash at that moment would
//! have left.

use super::pending::Pending;
use super::{Cursor, SCAN_AHEAD_BYTES, TableError};
use bytes::Bytes;
use parking_lot::Mutex;
use slatedb::DbSnapshot;
use slatedb::config::ScanOptions;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{RwLock, RwLockReadGuard};
use tokio::time::Instant;
use varve_types::{Epoch, ShardId};

/// A store that hangs a write for longer would hang all others with it; the caller is told to ask again.
const GATE_WAIT: Duration = Duration::from_secs(2);
/// A snapshot that nobody has read for so long is forgotten: it keeps old rows from being compacted away.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// Snapshots held at once, each for one reader.
const SNAPSHOTS_MAX: usize = 4;

/// One of a process, shared by its tables.
#[derive(Default)]
pub struct ConsistentSnapshots {
    gate: RwLock<()>,
    tables: Mutex<BTreeMap<ShardId, (Epoch, Arc<Pending>)>>,
    held: Mutex<BTreeMap<u64, TakenSnapshot>>,
}

struct TakenSnapshot {
    snapshots: BTreeMap<ShardId, Arc<DbSnapshot>>,
    used: Instant,
}

impl ConsistentSnapshots {
    pub(super) async fn writing(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().await
    }

    /// No write goes on until what it returns is dropped, as on a store that hangs.
    #[cfg(test)]
    pub async fn hang(&self) -> tokio::sync::RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }

    pub(super) fn add(&self, shard: ShardId, epoch: Epoch, table: Arc<Pending>) {
        self.tables.lock().insert(shard, (epoch, table));
    }

    /// A table that was opened again since is another one, and stays.
    pub(super) fn remove(&self, shard: ShardId, epoch: Epoch) {
        let mut tables = self.tables.lock();
        if tables.get(&shard).is_some_and(|(of, _)| *of == epoch) {
            tables.remove(&shard);
        }
    }

    /// Holds this snapshot of all `shards` tables under the name `number`. `None`: not now; some are not open, a write
    /// takes long, or as many snapshots as may be are held.
    pub async fn take(&self, number: u64, shards: u16) -> Option<()> {
        self.forget_idle();
        if self.held.lock().len() >= SNAPSHOTS_MAX {
            return None;
        }
        let closed = tokio::time::timeout(GATE_WAIT, self.gate.write()).await.ok()?;
        let tables: Vec<_> = self.tables.lock().iter().map(|(shard, (_, table))| (*shard, table.clone())).collect();
        let settled = futures::future::try_join_all(tables.iter().map(|(_, table)| table.settle()));
        tokio::time::timeout(GATE_WAIT, settled).await.ok()?.ok()?;
        let taken: Result<BTreeMap<_, _>, _> =
            tables.iter().map(|(shard, table)| table.db().snapshot().map(|snapshot| (*shard, snapshot))).collect();
        drop(closed);
        let snapshots = taken.ok().filter(|snapshots| snapshots.len() == usize::from(shards))?;
        self.held.lock().insert(number, TakenSnapshot { snapshots, used: Instant::now() });
        Some(())
    }

    /// The rows of `shard` in `from..end` at the moment `number`; `None` if that is not held, or no more.
    pub async fn scan(
        &self,
        number: u64,
        shard: ShardId,
        from: Bytes,
        end: Bytes,
    ) -> Option<Result<Cursor, TableError>> {
        self.forget_idle();
        let snapshot = {
            let mut held = self.held.lock();
            let snapshot = held.get_mut(&number)?;
            snapshot.used = Instant::now();
            snapshot.snapshots.get(&shard)?.clone()
        };
        if from >= end {
            return Some(Ok(Cursor::empty(shard)));
        }
        let options = ScanOptions::default().with_read_ahead_bytes(SCAN_AHEAD_BYTES);
        let rows = snapshot.scan_with_options(from..end, &options).await;
        Some(rows.map(|rows| Cursor::new(shard, rows)).map_err(|error| TableError::new(shard, "scan", error, None)))
    }

    pub fn forget(&self, number: u64) {
        self.held.lock().remove(&number);
    }

    /// Also called by the server now and then, for readers that went away.
    pub fn forget_idle(&self) {
        self.held.lock().retain(|_, held| held.used.elapsed() < IDLE_MAX);
    }
}
