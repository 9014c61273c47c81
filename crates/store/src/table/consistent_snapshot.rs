//! Consistent snapshots over all tables of a process.
//!
//! Every write holds the gate open while it runs. A snapshot closes the gate, waits for the writes in progress and
//! until SlateDB has all pending rows, and takes a snapshot of each table, which takes milliseconds. A reply is sent
//! only after the changes it depends on are written. The snapshots together are therefore a state that the volume was
//! in: the state that a crash at that time would have left.

use super::TableError;
use super::cursor::{Cursor, SCAN_AHEAD_BYTES};
use super::pending::Pending;
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

/// If the store hangs a write for longer, a closed gate would hang all others with it; the caller must retry.
const GATE_WAIT: Duration = Duration::from_secs(2);
/// A snapshot not read for this long is released: it keeps old rows from being compacted away.
const IDLE_MAX: Duration = Duration::from_secs(120);
/// Limit on concurrent snapshots, each for one reader.
const SNAPSHOTS_MAX: usize = 4;

/// One per process, shared by its tables.
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

    /// Blocks all writes until the returned guard is dropped, as on a hung store.
    #[cfg(feature = "testing")]
    pub async fn hang(&self) -> tokio::sync::RwLockWriteGuard<'_, ()> {
        self.gate.write().await
    }

    pub(super) fn add(&self, shard: ShardId, epoch: Epoch, table: Arc<Pending>) {
        self.tables.lock().insert(shard, (epoch, table));
    }

    /// Removes the table of this epoch. If the shard was opened again since, its new table stays.
    pub(super) fn remove(&self, shard: ShardId, epoch: Epoch) {
        let mut tables = self.tables.lock();
        if tables.get(&shard).is_some_and(|(of, _)| *of == epoch) {
            tables.remove(&shard);
        }
    }

    /// Takes a snapshot of all `shards` tables and keeps it as `number`. `None`: not possible now, because some are not
    /// open, a write takes long, or the limit on snapshots is reached.
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

    /// The rows of `shard` in `from..end` in snapshot `number`; `None` if there is no such snapshot, or no longer.
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

    /// Whether a reader has a snapshot.
    pub fn are_held(&self) -> bool {
        self.forget_idle();
        !self.held.lock().is_empty()
    }

    pub fn forget(&self, number: u64) {
        self.held.lock().remove(&number);
    }

    /// Releases idle snapshots. The server calls this periodically, for readers that went away.
    pub fn forget_idle(&self) {
        self.held.lock().retain(|_, held| held.used.elapsed() < IDLE_MAX);
    }
}
