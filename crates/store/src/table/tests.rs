use super::*;
use bytes::Bytes;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use varve_env::disk::Exclusive;
use varve_env::posix_store::PosixStore;
use varve_env::volume_dir::{FormatOver, VolumeDir};
use varve_types::{Epoch, ShardCount, ShardId, VolumeId, VolumeSettings};

mod killed;
mod measured;
mod owners;
mod presence;
mod unmerged;

const LONG: Duration = Duration::from_secs(300);

struct TestEnv {
    background: tokio::runtime::Runtime,
    directory: tempfile::TempDir,
}

impl TestEnv {
    fn new() -> TestEnv {
        TestEnv::with_shards(2)
    }

    fn with_shards(shards: u16) -> TestEnv {
        let directory = tempfile::tempdir().unwrap();
        let settings = VolumeSettings {
            id: VolumeId([1; 16]),
            name: "test".into(),
            shards: ShardCount::new(shards).unwrap(),
            split_threshold: 8_000,
            inline_limit: 65_536,
            sync_interval: LONG,
            owner_uid: 0,
        };
        VolumeDir::new(directory.path()).format(&settings, FormatOver::Nothing).unwrap();
        TestEnv { background: background(), directory }
    }

    fn config(&self, sync_interval: Duration) -> TableConfig {
        config(self.directory.path(), &self.background, sync_interval)
    }

    /// Runs `work` on a fresh worker, which dies with it as in a crash: nothing is closed.
    fn worker<T>(&self, work: impl AsyncFnOnce() -> T) -> T {
        let worker = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        worker.block_on(work())
    }
}

fn background() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

fn config(root: &Path, background: &tokio::runtime::Runtime, sync_interval: Duration) -> TableConfig {
    let volume = VolumeDir::new(root);
    TableConfig {
        shard: ShardId(1),
        store: PosixStore::open(volume.shards()).unwrap(),
        volume,
        sync_interval,
        cache: TableCache::new(8 * 1024 * 1024),
        background: background.handle().clone(),
        merges: Merges::on(background.handle().clone()),
        memtable_bytes: MEMTABLE_BYTES_DEFAULT,
        sync_writes: Default::default(),
        may_claim: None,
    }
}

fn key(number: u32) -> Vec<u8> {
    format!("key{number:08}").into_bytes()
}

async fn put(table: &Table, numbers: std::ops::Range<u32>) {
    let mut batch = TableBatch::default();
    for number in numbers {
        batch.put(key(number), number.to_le_bytes());
    }
    table.write(&batch).await.unwrap();
}

async fn numbers(table: &Table) -> Vec<u32> {
    let mut cursor = table.scan(Bytes::from_static(b"k"), Bytes::from_static(b"l")).await.unwrap();
    let mut numbers = Vec::new();
    while let Some((found, row)) = cursor.next().await.unwrap() {
        let number = u32::from_le_bytes(row.as_ref().try_into().unwrap());
        assert_eq!(found, key(number));
        numbers.push(number);
    }
    numbers
}

/// Written rows are read by key and by range; batches are atomic; deletes hide rows.
#[test]
fn rows_are_written_and_read() {
    let env = TestEnv::new();
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        assert_eq!(table.epoch(), Epoch(1));
        put(&table, 0..10).await;
        let mut batch = TableBatch::default();
        batch.delete(key(3));
        batch.put(key(4), 40u32.to_le_bytes());
        table.write(&batch).await.unwrap();
        table.write(&TableBatch::default()).await.unwrap();
        assert_eq!(table.get(&key(3)).await.unwrap(), None);
        assert_eq!(table.get(&key(4)).await.unwrap().unwrap().as_ref(), 40u32.to_le_bytes());
        let mut cursor = table.scan(key(2).into(), key(6).into()).await.unwrap();
        put(&table, 3..4).await;
        let mut found = Vec::new();
        while let Some((key, _)) = cursor.next().await.unwrap() {
            found.push(key);
        }
        assert_eq!(found, [2, 4, 5].map(key), "a cursor shows the rows as they were");
        assert!(cursor.next().await.unwrap().is_none());
        assert!(table.scan(key(6).into(), key(2).into()).await.unwrap().next().await.unwrap().is_none());
        table.close().await.unwrap();
        assert!(matches!(table.get(&key(3)).await, Err(TableError::Closed { .. })));
    });
}

/// Acknowledged rows survive the death of the server process, even if they were never synced.
#[test]
fn table_dropped_without_close_is_replayed() {
    let env = TestEnv::new();
    for round in 0..4u32 {
        env.worker(async || {
            let table = Table::open(env.config(LONG)).await.unwrap();
            assert_eq!(table.epoch(), Epoch(u64::from(round) + 1));
            assert_eq!(numbers(&table).await, (0..round * 300).collect::<Vec<_>>());
            for batch in 0..3 {
                let first = round * 300 + batch * 100;
                put(&table, first..first + 100).await;
                if batch == 1 {
                    table.sync().await.unwrap();
                    assert_eq!(table.unsynced_bytes(), 0);
                }
            }
            assert!(table.unsynced_bytes() > 0);
        });
    }
}

/// Pending rows are read like any others, and rows that never arrived are replayed: for a key, the last row in a batch
/// counts, and the last batch.
#[test]
fn pending_rows_are_read_and_replayed() {
    let env = TestEnv::new();
    let rows = |table: &Table| {
        let (pending, keys) = (Arc::clone(&table.pending), (0..4).map(key));
        keys.map(|key| pending.find(&key)).collect::<Vec<_>>()
    };
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        put(&table, 0..3).await;
        let mut batch = TableBatch::default();
        batch.put(key(1), vec![7]);
        batch.delete(key(1));
        batch.delete(key(2));
        batch.put(key(2), vec![8]);
        table.write(&batch).await.unwrap();
        let on_their_way = rows(&table);
        assert!(on_their_way[3].is_none());
        for (number, row) in [(0, Some(vec![0, 0, 0, 0])), (1, None), (2, Some(vec![8]))] {
            assert_eq!(table.get(&key(number)).await.unwrap().map(|row| row.to_vec()), row);
        }
        table.pending.settle().await.unwrap();
        assert!(rows(&table).iter().all(Option::is_none), "nothing is on its way any more");
        assert_eq!(table.get(&key(1)).await.unwrap(), None);
        assert_eq!(table.get(&key(2)).await.unwrap().unwrap().as_ref(), [8]);
        put(&table, 1..2).await;
    });
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        assert_eq!(table.get(&key(1)).await.unwrap().unwrap().as_ref(), 1u32.to_le_bytes());
        assert_eq!(table.get(&key(2)).await.unwrap().unwrap().as_ref(), [8]);
        table.close().await.unwrap();
    });
}

/// A closed table has everything in tables: the next open replays nothing.
#[test]
fn a_closed_table_needs_no_log() {
    let env = TestEnv::new();
    let log = env.config(LONG).volume.shard_log(ShardId(1));
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        put(&table, 0..100).await;
        table.close().await.unwrap();
        // Even without its log, except for the file that records how far groups were counted.
        let again = Table::open(env.config(LONG)).await.unwrap();
        assert!(!again.log.is_replayable());
        assert_eq!(numbers(&again).await, (0..100).collect::<Vec<_>>());
        again.close().await.unwrap();
    });
    assert!(std::fs::read_dir(log).unwrap().count() > 0);
}

/// Log files whose content is in tables are removed soon after the next open, however briefly their owner lived: this
/// needs no change by the new owner, and does not take ten seconds.
#[test]
fn log_of_a_killed_owner_is_reclaimed() {
    let env = TestEnv::new();
    let log = env.config(LONG).volume.shard_log(ShardId(1));
    let of_first = || {
        let names = std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with("0000000000000001")).collect::<Vec<_>>()
    };
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        put(&table, 0..100).await;
        table.flush().await.unwrap();
    });
    assert!(!of_first().is_empty());
    env.worker(async || {
        let _table = Table::open(env.config(LONG)).await.unwrap();
        let given_back = async {
            while !of_first().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(8), given_back).await.expect("before the next collection");
    });
}

/// Each owner claims exactly the next epoch; a fenced owner learns of it at its next sync.
#[test]
fn a_second_owner_fences_the_first() {
    let env = TestEnv::new();
    env.worker(async || {
        let first = Table::open(env.config(LONG)).await.unwrap();
        put(&first, 0..10).await;
        let second = Table::open(env.config(LONG)).await.unwrap();
        assert_eq!((first.epoch(), second.epoch()), (Epoch(1), Epoch(2)));
        assert_eq!(numbers(&second).await, (0..10).collect::<Vec<_>>());
        put(&second, 10..11).await;
        let mut batch = TableBatch::default();
        batch.put(key(99), 99u32.to_le_bytes());
        let late = first.write(&batch).await;
        let synced = first.sync().await;
        assert!(matches!(late.and(synced), Err(TableError::Fenced { .. })));
        assert!(matches!(first.get(&key(1)).await, Err(TableError::Fenced { .. })));
        second.close().await.unwrap();
        let third = Table::open(env.config(LONG)).await.unwrap();
        assert_eq!(numbers(&third).await, (0..11).collect::<Vec<_>>());
    });
}

/// The log is reclaimed as tables are flushed, even in a shard that has become idle.
#[test]
fn the_log_is_reclaimed_when_tables_are_flushed() {
    let env = TestEnv::new();
    let log = env.config(LONG).volume.shard_log(ShardId(1));
    let log_bytes =
        || -> u64 { std::fs::read_dir(&log).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum() };
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        for round in 0..40 {
            let mut batch = TableBatch::default();
            batch.put(key(round), vec![round as u8; 1 << 19]);
            table.write(&batch).await.unwrap();
        }
        assert!(log_bytes() > 20 << 20);
        table.flush().await.unwrap();
        env.config(LONG).log_collector().build().run_gc_once().await;
        assert!(log_bytes() < 1024, "{} bytes", log_bytes());
        put(&table, 100..101).await;
    });
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        assert_eq!(table.get(&key(7)).await.unwrap().unwrap().len(), 1 << 19);
        assert!(table.get(&key(100)).await.unwrap().is_some());
    });
}

/// With a sync interval of zero a write is fsynced when it returns, and concurrent writes share an fsync.
#[test]
fn a_zero_interval_syncs_every_write() {
    let env = TestEnv::new();
    env.worker(async || {
        let table = Table::open(env.config(Duration::ZERO)).await.unwrap();
        put(&table, 0..10).await;
        assert_eq!(table.unsynced_bytes(), 0);
        futures::future::join_all((10..50).map(|number| put(&table, number..number + 1))).await;
        assert_eq!(table.unsynced_bytes(), 0);
        let groups = table.log.synced_groups();
        assert!(groups < 40, "{groups} fsyncs for 41 writes");
    });
}

/// A table larger than its memtable and its cache reads back from its files, while it is written to and compacted.
#[test]
fn rows_are_read_back_from_files() {
    let env = TestEnv::new();
    env.worker(async || {
        let config = TableConfig { cache: TableCache::new(256 * 1024), ..env.config(LONG) };
        let table = Table::open(config).await.unwrap();
        for round in 0..6u32 {
            put(&table, round * 2000..(round + 1) * 2000).await;
            table.flush().await.unwrap();
        }
        let mut batch = TableBatch::default();
        (0..12_000).step_by(2).for_each(|number| batch.delete(key(number)));
        table.write(&batch).await.unwrap();
        for number in (0..12_000).step_by(37) {
            assert_eq!(table.get(&key(number)).await.unwrap().is_some(), number % 2 == 1);
        }
        assert_eq!(numbers(&table).await, (1..12_000).step_by(2).collect::<Vec<_>>());
        table.close().await.unwrap();
        let again = Table::open(env.config(LONG)).await.unwrap();
        assert_eq!(numbers(&again).await, (1..12_000).step_by(2).collect::<Vec<_>>());
    });
}

/// The kernel's error for an unreachable store reaches the caller: the log's directory is gone.
#[test]
fn store_error_reason_is_kept() {
    let env = TestEnv::new();
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        put(&table, 0..10).await;
        std::fs::remove_dir_all(env.config(LONG).volume.shard(ShardId(1))).unwrap();
        let error = table.sync().await.unwrap_err();
        assert!(matches!(error, TableError::Unavailable { .. }), "{error:?}");
        assert_eq!(error.io_error().and_then(std::io::Error::raw_os_error), Some(libc::ENOENT));
        assert!(error.to_string().contains("shard 1") && error.to_string().contains("log"), "{error}");
        let mut batch = TableBatch::default();
        batch.put(key(1), vec![1]);
        assert!(table.write(&batch).await.is_err());
    });
}

/// Many tables are merged without a request, the replaced log files are removed, and rows stay unchanged.
#[test]
fn tables_are_merged_in_the_background() {
    let env = TestEnv::new();
    env.worker(async || {
        let table = Table::open(env.config(LONG)).await.unwrap();
        for round in 0..6u32 {
            put(&table, round * 100..(round + 2) * 100).await;
            table.flush().await.unwrap();
        }
        assert!(table.db.manifest().l0().len() >= 4);
        let deadline = std::time::Instant::now() + Duration::from_secs(60);
        while table.db.manifest().compacted().is_empty() {
            assert!(std::time::Instant::now() < deadline, "nothing was merged");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(numbers(&table).await, (0..700).collect::<Vec<_>>());
        put(&table, 700..701).await;
        table.close().await.unwrap();
        let again = Table::open(env.config(LONG)).await.unwrap();
        assert_eq!(numbers(&again).await, (0..701).collect::<Vec<_>>());
    });
}

/// More tables than permits for merges: all are merged, a few at a time.
#[test]
fn tables_take_turns_to_be_merged() {
    const TABLES: u16 = 16;
    let env = TestEnv::with_shards(TABLES);
    let merges = Merges::on(env.background.handle().clone());
    env.worker(async || {
        let mut tables = Vec::new();
        for shard in 0..TABLES {
            let config = TableConfig { shard: ShardId(shard), merges: merges.clone(), ..env.config(LONG) };
            let table = Table::open(config).await.unwrap();
            for round in 0..4u32 {
                put(&table, round * 10..(round + 2) * 10).await;
                table.flush().await.unwrap();
            }
            tables.push(table);
        }
        let deadline = std::time::Instant::now() + Duration::from_secs(120);
        let mut waited = false;
        while !tables.iter().all(|table| !table.db.manifest().compacted().is_empty()) {
            assert!(std::time::Instant::now() < deadline, "some were not merged");
            waited |= merges.are_waited_for();
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(waited, "all were merged at once");
        for table in tables {
            assert_eq!(numbers(&table).await, (0..50).collect::<Vec<_>>());
            // Even one that waits for its permit, or is merging.
            table.close().await.unwrap();
        }
    });
}

/// Tables and log need no particular way to create a file exclusively: renames without replacing work too.
#[test]
fn stores_without_hard_links_work() {
    let env = TestEnv::new();
    let config = || {
        let root = env.config(LONG).volume.shards();
        TableConfig { store: PosixStore::with_exclusive(root, Exclusive::RenameNoReplace), ..env.config(LONG) }
    };
    for round in 0..3u32 {
        env.worker(async || {
            let table = Table::open(config()).await.unwrap();
            assert_eq!(numbers(&table).await, (0..round * 200).collect::<Vec<_>>());
            put(&table, round * 200..round * 200 + 100).await;
            table.flush().await.unwrap();
            config().log_collector().build().run_gc_once().await;
            put(&table, round * 200 + 100..(round + 1) * 200).await;
            if round == 2 {
                table.close().await.unwrap();
            }
        });
    }
    // Leftovers of crashes are removed, published files stay. (A table that was only dropped, as by a crash, may still
    // publish in the background here, unlike a dead process: so the last one was closed.)
    config().store.remove_leftovers(&[]).unwrap();
    env.worker(async || {
        let table = Table::open(config()).await.unwrap();
        assert_eq!(numbers(&table).await, (0..600).collect::<Vec<_>>());
        table.close().await.unwrap();
    });
}
