use super::directory::{begun_path, fence_path, file_path, seal_path};
use super::recovery::{Claim, take_over};
use super::scan::LogRecord;
use super::writer::LogWriter;
use super::*;
use bytes::Bytes;
use proptest::prelude::*;
use slatedb::wal::{WalError, WalIterator, WalReader, WalWriter};
use slatedb::{RowEntry, ValueDeletable};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use varve_env::disk::Exclusive;
use varve_env::store_path::StorePath;
use varve_types::ShardId;

mod failures;
mod forged;
mod missing_log;
mod models;
mod power;
mod truncated;

const NEVER: Duration = Duration::from_secs(300);

struct TestEnv {
    runtime: Runtime,
    _directory: tempfile::TempDir,
    path: StorePath,
    sync_interval: Duration,
    memtables: Arc<MemtableBudget>,
}

/// A log open in one epoch.
struct LogOwner {
    writer: LogWriter,
    log: Arc<Log>,
    /// The replayed batches: sequence numbers, with the watermark of each.
    replayed: Vec<(u64, u64)>,
}

impl TestEnv {
    fn new() -> TestEnv {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let directory = tempfile::tempdir().unwrap();
        TestEnv {
            runtime,
            path: directory.path().into(),
            _directory: directory,
            sync_interval: NEVER,
            memtables: Arc::new(MemtableBudget::new(150_000)),
        }
    }

    fn path(&self) -> &StorePath {
        &self.path
    }

    fn config(&self) -> LogConfig {
        LogConfig {
            shard: ShardId(9),
            directory: self.path.clone(),
            exclusive: Exclusive::RenameNoReplace,
            sync_interval: self.sync_interval,
            memtable_bytes_share: 10_000,
            memtable_bytes_max: 100_000,
            memtables: self.memtables.clone(),
            reserve: None,
            place: None,
            background: self.runtime.handle().clone(),
        }
    }

    /// Takes the log over, as SlateDB does, with a manifest according to which everything up to `replay_after` is in
    /// tables.
    fn open(&self, epoch: u64, replay_after: u64) -> Result<LogOwner, WalError> {
        let claim = Claim { epoch, replay_after, flushed: replay_after };
        let (mut replay, log) = take_over(&self.config(), claim)?;
        // Batch by batch, so that the test sees each one unchanged.
        replay.window_bytes = 0;
        let mut replayed = Vec::new();
        while let Some(rows) = self.runtime.block_on(replay.next())? {
            let sequence = rows.rows[0].seq;
            assert_eq!(rows.rows, batch(sequence), "batches are whole and as they were written");
            replayed.push((sequence, rows.last_consumed_wal_file_id));
        }
        let log = Arc::new(log);
        let _entered = self.runtime.enter();
        Ok(LogOwner { writer: LogWriter::start(log.clone()), log, replayed })
    }

    fn append(&self, owner: &mut LogOwner, sequences: std::ops::Range<u64>) {
        for sequence in sequences.clone() {
            write(&owner.log, &batch(sequence)).unwrap();
        }
        self.hand_over(owner, &batch(sequences.end - 1));
    }

    /// Passes the appended batches, of which `last` is the last, to the tables.
    fn hand_over(&self, owner: &mut LogOwner, last: &[RowEntry]) {
        owner.log.hand_over();
        self.runtime.block_on(owner.writer.append(last)).unwrap();
    }

    fn sync(&self, owner: &LogOwner) {
        self.runtime.block_on(owner.log.sync()).unwrap();
    }

    /// Changes the byte at `offset` of a file.
    fn damage(&self, file: &StorePath, offset: u64) {
        let mut bytes = std::fs::read(file).unwrap();
        bytes[offset as usize] ^= 1;
        std::fs::write(file, bytes).unwrap();
    }

    /// The log of a dead owner: epoch 1 in two files, three batches in the first and one in the second, all fsynced.
    fn two_files(&self) {
        let mut owner = self.open(1, 0).unwrap();
        self.append(&mut owner, 1..4);
        self.sync(&owner);
        owner.log.leave_file(0);
        self.append(&mut owner, 4..5);
        self.sync(&owner);
    }

    /// Ends epoch `of` as a crash does, and returns the sequence numbers that the next one finds.
    fn crash_and_replay(&self, owner: LogOwner, of: u64) -> Vec<u64> {
        drop(owner);
        self.open(of + 1, 0).unwrap().sequences()
    }
}

impl LogOwner {
    fn sequences(&self) -> Vec<u64> {
        self.replayed.iter().map(|(sequence, _)| *sequence).collect()
    }

    fn flushed_group(&self) -> u64 {
        self.writer.status().unwrap().last_flushed_wal_id
    }
}

fn write(log: &Log, rows: &[RowEntry]) -> Result<Bytes, WalError> {
    log.append(&BatchRows::of(rows), rows[0].seq)
}

/// The batch with this sequence number: one to three rows.
fn batch(sequence: u64) -> Vec<RowEntry> {
    (0..1 + sequence % 3)
        .map(|row| RowEntry {
            key: Bytes::from(format!("key{sequence}.{row}")),
            value: match row {
                2 => ValueDeletable::Tombstone,
                _ => ValueDeletable::Value(Bytes::from(vec![sequence as u8; 50 + (sequence % 7) as usize])),
            },
            seq: sequence,
            create_ts: Some(sequence as i64),
            expire_ts: None,
        })
        .collect()
}

fn range(range: std::ops::Range<u64>) -> Vec<u64> {
    range.collect()
}

/// "A batch is in the file before its append returns": without any sync, all of it is replayed, epoch after epoch.
#[test]
fn appended_batches_survive_the_process() {
    let env = TestEnv::new();
    for epoch in 1..5 {
        let mut owner = env.open(epoch, 0).unwrap();
        assert_eq!(owner.sequences(), range(1..(epoch - 1) * 10 + 1));
        env.append(&mut owner, (epoch - 1) * 10 + 1..epoch * 10 + 1);
    }
}

/// "Its id is one above the last one's, across epochs. A group is never empty, and never grows once it is closed."
#[test]
fn groups_count_up_and_never_grow() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    assert_eq!(owner.flushed_group(), 0);
    env.append(&mut owner, 1..3);
    let flush = env.runtime.block_on(owner.writer.flush()).unwrap();
    assert_eq!(flush.wal_id, 1);
    env.append(&mut owner, 3..4);
    env.runtime.block_on(flush.completion).unwrap();
    assert!(owner.flushed_group() >= 1);
    env.sync(&owner);
    assert_eq!((owner.flushed_group(), owner.writer.status().unwrap().last_flushed_seq), (2, Some(3)));
    let nothing = env.runtime.block_on(owner.writer.flush()).unwrap();
    assert_eq!(nothing.wal_id, 2, "nothing to flush");
    env.runtime.block_on(nothing.completion).unwrap();
    env.append(&mut owner, 4..6);
    drop(owner);

    let mut owner = env.open(2, 0).unwrap();
    assert_eq!(owner.replayed, [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3)]);
    assert_eq!(owner.flushed_group(), 3, "the group that the crash left open was closed by its successor");
    env.append(&mut owner, 6..7);
    env.sync(&owner);
    assert_eq!(owner.flushed_group(), 4);
    drop(owner);
    assert_eq!(env.open(3, 2).unwrap().replayed, [(4, 2), (5, 3), (6, 4)], "groups that are in tables are skipped");
}

/// "Only then may its group count as flushed": an fsynced group waits for the tables, and a group begun after a
/// hand-over is not counted with it.
#[test]
fn groups_wait_for_the_tables() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    write(&owner.log, &batch(1)).unwrap();
    write(&owner.log, &batch(2)).unwrap();
    owner.log.hand_over();
    write(&owner.log, &batch(3)).unwrap();
    env.sync(&owner);
    assert_eq!((owner.flushed_group(), owner.log.unsynced_bytes()), (0, 0));
    let flush = env.runtime.block_on(owner.writer.flush()).unwrap();
    assert_eq!(flush.wal_id, 0, "the tables have nothing yet");
    env.runtime.block_on(owner.writer.append(&batch(2))).unwrap();
    assert_eq!(owner.flushed_group(), 1);
    assert_eq!(env.runtime.block_on(owner.writer.flush()).unwrap().wal_id, 1);
    assert!(env.runtime.block_on(owner.writer.append(&batch(3))).is_err(), "it was not handed over");
    env.hand_over(&mut owner, &batch(3));
    assert_eq!((owner.flushed_group(), owner.log.applied()), (2, owner.log.appended()));
    drop(owner);
    assert_eq!(env.open(2, 1).unwrap().sequences(), [3], "what the tables may not have is replayed");
}

/// Replayed rows are no older than rows in tables, and if a batch has a key twice, the last row counts.
#[test]
fn replay_yields_each_key_once() {
    let env = TestEnv::new();
    let owner = env.open(1, 0).unwrap();
    let row = |key: &'static str, value: &'static str, create_ts| RowEntry {
        key: Bytes::from_static(key.as_bytes()),
        value: ValueDeletable::Value(Bytes::from_static(value.as_bytes())),
        seq: 1,
        create_ts,
        expire_ts: None,
    };
    write(&owner.log, &[row("a", "1", None), row("b", "2", Some(9)), row("a", "3", None)]).unwrap();
    drop(owner);
    let (replay, _log) = take_over(&env.config(), Claim { epoch: 2, replay_after: 0, flushed: 0 }).unwrap();
    let rows = env.runtime.block_on(replay.not_before(7).next()).unwrap().unwrap().rows;
    assert_eq!(rows, [row("a", "3", Some(7)), row("b", "2", Some(9))]);
}

/// A torn end, at any byte of it, is cut off, and everything before it is kept.
#[test]
fn a_torn_tail_is_cut() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..4);
    env.sync(&owner);
    let file = file_path(env.path(), 1, 0);
    let whole = file.metadata().unwrap().len();
    env.append(&mut owner, 4..5);
    drop(owner);
    let bytes = std::fs::read(&file).unwrap();
    for length in whole..bytes.len() as u64 {
        std::fs::write(&file, &bytes[..length as usize]).unwrap();
        let _ = std::fs::remove_file(seal_path(env.path(), 1));
        let _ = std::fs::remove_file(file_path(env.path(), 2, 0));
        let mut owner = env.open(2, 0).unwrap();
        assert_eq!(owner.sequences(), range(1..4), "cut to {length} bytes");
        assert_eq!(owner.flushed_group(), 1, "the torn group is no group");
        env.append(&mut owner, 4..5);
        drop(owner);
        let third = env.open(3, 0).unwrap();
        assert_eq!(third.sequences(), range(1..5));
        drop(third);
        for name in ["2.seal", "2.fence", "2.begun", "3.begun", "3.00000000.log"] {
            std::fs::remove_file(env.path().join(format!("000000000000000{name}"))).unwrap();
        }
    }
}

/// Bytes that were never fsynced may be anything after a power failure: the log ends where they begin.
#[test]
fn damage_above_the_synced_mark_ends_the_log() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..4);
    env.sync(&owner);
    let synced = owner.log.appended();
    env.append(&mut owner, 4..9);
    drop(owner);
    env.damage(&file_path(env.path(), 1, 0), 64 + synced + 100);
    assert_eq!(env.open(2, 0).unwrap().sequences(), range(1..4));
}

/// "Damage below it would lose acknowledged work, so the log is refused", with the file and the offset.
#[test]
fn a_damaged_middle_is_refused() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    let mut starts = Vec::new();
    for group in 0..3 {
        starts.push(owner.log.appended());
        env.append(&mut owner, group * 3 + 1..group * 3 + 4);
        env.sync(&owner);
    }
    drop(owner);
    let file = file_path(env.path(), 1, 0);
    let mark = std::fs::read(begun_path(env.path(), 1)).unwrap();
    // The last group comes last: only the mark shows that it was synced, and there may be no mark.
    for (group, marked) in [(0, true), (0, false), (1, true), (1, false), (2, true), (2, false)] {
        let offset = 64 + starts[group] + 60;
        if !marked {
            std::fs::write(begun_path(env.path(), 1), []).unwrap();
        }
        env.damage(&file, offset);
        let opened = env.open(2, 0);
        if marked || group < 2 {
            let message = opened.err().unwrap().to_string();
            assert!(message.contains(&file.to_string()), "{message}");
            assert!(message.contains(&format!("byte {}", 64 + starts[group] + 48)), "{message}");
            env.damage(&file, offset);
        } else {
            assert_eq!(opened.unwrap().sequences(), range(1..7));
        }
        std::fs::write(begun_path(env.path(), 1), &mark).unwrap();
    }
}

/// Once an epoch is sealed, every byte below the seal was fsynced: any damage there is refused.
#[test]
fn damage_below_a_seal_is_refused() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..4);
    drop(owner);
    drop(env.open(2, 0).unwrap());
    let file = file_path(env.path(), 1, 0);
    env.damage(&file, file.metadata().unwrap().len() - 1);
    assert!(matches!(env.open(3, 0), Err(WalError::DataError(_))));
    env.damage(&file, file.metadata().unwrap().len() - 1);
    std::fs::remove_file(&file).unwrap();
    let message = env.open(4, 0).err().unwrap().to_string();
    assert!(message.contains("lacks its files"), "{message}");
}

/// "No owner replays past a seal": a fenced owner that wakes up appends in vain, and reports nothing as synced.
#[test]
fn fenced_owner_cannot_append() {
    let env = TestEnv::new();
    let mut sleeper = env.open(1, 0).unwrap();
    env.append(&mut sleeper, 1..3);
    let mut owner = env.open(2, 0).unwrap();
    env.append(&mut sleeper, 3..5);
    assert!(matches!(env.runtime.block_on(sleeper.log.sync()), Err(WalError::Fenced)));
    assert!(matches!(write(&sleeper.log, &batch(5)), Err(WalError::Fenced)));
    env.append(&mut owner, 3..4);
    assert_eq!(owner.sequences(), range(1..3));
    drop((sleeper, owner));
    assert_eq!(env.open(3, 0).unwrap().sequences(), range(1..4));
    assert!(matches!(env.open(3, 0), Err(WalError::Fenced)), "an epoch is claimed once");
    assert!(matches!(env.open(2, 0), Err(WalError::Fenced)));
}

/// An owner that was stopped learns of its successor even if that has removed everything of the ended epoch.
#[test]
fn owner_of_a_reclaimed_epoch_cannot_sync() {
    let env = TestEnv::new();
    let mut sleeper = env.open(1, 0).unwrap();
    env.append(&mut sleeper, 1..3);
    assert!(env.runtime.block_on(is_owner(&sleeper.log)));
    let mut owner = env.open(2, 0).unwrap();
    env.append(&mut owner, 3..5);
    env.sync(&owner);
    for path in reclaim::reclaimable(&env.config(), 1).unwrap() {
        reclaim::remove(&path).unwrap();
    }
    assert!(!begun_path(env.path(), 1).exists() && !fence_path(env.path(), 1).exists());
    env.append(&mut sleeper, 3..5);
    assert!(matches!(env.runtime.block_on(sleeper.log.sync()), Err(WalError::Fenced)));
    assert!(!env.runtime.block_on(is_owner(&sleeper.log)) && env.runtime.block_on(is_owner(&owner.log)));
}

/// Batches that a late owner writes after its epoch was sealed, and even reclaimed, are never replayed.
#[test]
fn files_of_a_dead_epoch_are_ignored() {
    let env = TestEnv::new();
    let mut sleeper = env.open(1, 0).unwrap();
    env.append(&mut sleeper, 1..3);
    let stray = std::fs::read(file_path(env.path(), 1, 0)).unwrap();
    let mut owner = env.open(2, 0).unwrap();
    env.append(&mut owner, 3..5);
    env.sync(&owner);
    for path in reclaim::reclaimable(&env.config(), 1).unwrap() {
        reclaim::remove(&path).unwrap();
    }
    assert!(!seal_path(env.path(), 1).exists() && !fence_path(env.path(), 1).exists());
    std::fs::write(file_path(env.path(), 1, 0), stray).unwrap();
    drop((sleeper, owner));
    assert_eq!(env.open(3, 1).unwrap().sequences(), range(3..5));
    let removed = reclaim::reclaimable(&env.config(), 1).unwrap();
    assert!(removed.contains(&file_path(env.path(), 1, 0)));
}

/// The log switches files at a length. A file is reclaimed when all its content is in tables, and never before.
#[test]
fn files_are_reclaimed_behind_the_tables() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    let large = |sequence| {
        vec![RowEntry { value: ValueDeletable::Value(vec![1; 1 << 20].into()), ..batch(sequence)[0].clone() }]
    };
    let files = || {
        std::fs::read_dir(env.path())
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().ends_with(".log"))
            .count()
    };
    for sequence in 1..41 {
        write(&owner.log, &large(sequence)).unwrap();
        env.hand_over(&mut owner, &large(sequence));
        env.sync(&owner);
    }
    assert_eq!((owner.flushed_group(), files()), (40, 3));
    let reclaim = |replay_after| {
        for path in reclaim::reclaimable(&env.config(), replay_after).unwrap() {
            reclaim::remove(&path).unwrap();
        }
        files()
    };
    assert_eq!(reclaim(10), 3, "the first file holds groups after the tenth");
    assert_eq!(reclaim(16), 2);
    assert_eq!(reclaim(40), 1, "the file that is written to stays");
    owner.log.leave_file(1 << 20);
    assert_eq!(reclaim(40), 1, "and is reclaimed when it is left");
    env.append(&mut owner, 41..43);
    drop(owner);
    let owner = env.open(2, 40).unwrap();
    assert_eq!(owner.sequences(), range(41..43));
    assert_eq!(reclaim(40), 2);
    assert_eq!(reclaim(41), 1);
    drop(owner);
    assert_eq!(env.open(3, 41).unwrap().sequences(), [0; 0]);
}

/// The log requests a table by bytes, once each time, and earlier if all memtables together exceed their budget.
#[test]
fn the_memtable_is_flushed_by_bytes() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    let mut asked = vec![0];
    for sequence in 1..3000 {
        env.append(&mut owner, sequence..sequence + 1);
        if owner.writer.should_flush_memtable(0) {
            asked.push(owner.log.appended());
        }
    }
    let sizes: Vec<_> = asked.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!((100_000..110_000).contains(&sizes[0]), "{sizes:?}");
    // None of it is in tables yet: the second memtable reaches the common limit.
    assert!((50_000..51_000).contains(&sizes[1]), "{sizes:?}");
    assert!(sizes[2..].iter().all(|size| (10_000..11_000).contains(size)), "{sizes:?}");
    assert_eq!(env.memtables.held(), owner.log.appended());
    env.sync(&owner);
    assert!(!owner.writer.should_flush_memtable(owner.flushed_group()));
    assert_eq!(env.memtables.held(), 0);
    env.append(&mut owner, 3000..3010);
    let held = owner.log.appended();
    assert!(env.memtables.held() > 0 && env.memtables.held() < held);
    env.runtime.block_on(owner.writer.close()).unwrap();
    drop(owner);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while env.memtables.held() > 0 {
        assert!(std::time::Instant::now() < deadline, "a log that is gone holds nothing");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// "Fsynced every sync interval", without a request.
#[test]
fn log_syncs_periodically() {
    let env = TestEnv { sync_interval: Duration::from_millis(20), ..TestEnv::new() };
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..3);
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while owner.log.unsynced_bytes() > 0 {
        assert!(std::time::Instant::now() < deadline, "not synced");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(owner.flushed_group(), 1);
}

/// A second close, or a close after a sync, succeeds and leaves nothing unsynced.
#[test]
fn a_closed_log_is_synced() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..3);
    env.runtime.block_on(owner.writer.close()).unwrap();
    env.runtime.block_on(owner.writer.close()).unwrap();
    assert_eq!(owner.log.unsynced_bytes(), 0);
    assert!(matches!(write(&owner.log, &batch(3)), Err(WalError::Closed)));
    assert_eq!(env.crash_and_replay(owner, 1), range(1..3));
}

/// If versions of a row are in many batches, only the newest is replayed, with all other rows.
#[test]
fn the_newest_version_of_a_row_is_replayed() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    let row = |key: String, value: ValueDeletable, seq: u64| RowEntry {
        key: key.into(),
        value,
        seq,
        create_ts: None,
        expire_ts: None,
    };
    for seq in 1..=100 {
        let value = || ValueDeletable::Value(Bytes::from(format!("value {seq}")));
        let removed = row(format!("own {}", seq - 1), ValueDeletable::Tombstone, seq);
        let batch = [row("shared".into(), value(), seq), row(format!("own {seq}"), value(), seq), removed];
        write(&owner.log, &batch).unwrap();
        if seq % 10 == 0 {
            env.hand_over(&mut owner, &batch);
            env.sync(&owner);
        }
    }
    drop(owner);
    let (mut replay, _log) = take_over(&env.config(), Claim { epoch: 2, replay_after: 0, flushed: 0 }).unwrap();
    let found = env.runtime.block_on(replay.next()).unwrap().unwrap();
    assert_eq!(found.last_consumed_wal_file_id, 10);
    assert!(env.runtime.block_on(replay.next()).unwrap().is_none());
    let found: BTreeMap<_, _> = found.rows.into_iter().map(|row| (row.key, (row.seq, row.value))).collect();
    assert_eq!(found.len(), 102);
    assert_eq!(found[&Bytes::from("shared")], (100, ValueDeletable::Value("value 100".into())));
    assert_eq!(found[&Bytes::from("own 100")], (100, ValueDeletable::Value("value 100".into())));
    assert!((0..100).all(|own| found[&Bytes::from(format!("own {own}"))] == (own + 1, ValueDeletable::Tombstone)));
}

/// A reader returns the groups of a range.
#[test]
fn a_reader_gives_a_range_of_groups() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    for sequence in 1..6 {
        env.append(&mut owner, sequence..sequence + 1);
        env.sync(&owner);
    }
    drop(owner);
    drop(env.open(2, 0).unwrap());
    let reader = LogReader::new(env.config());
    env.runtime.block_on(async {
        assert_eq!(reader.last_wal_file_id(0).await.unwrap(), 5);
        assert_eq!(reader.last_wal_file_id(8).await.unwrap(), 8);
        let mut rows = reader.iterator((2..5).into()).await.unwrap();
        let rows = rows.next().await.unwrap().unwrap();
        assert_eq!(rows.rows.iter().map(|row| row.seq).collect::<BTreeSet<_>>(), BTreeSet::from([2, 3, 4]));
    });
}

/// The records of one file are the appended ones, each at its recorded position.
#[test]
fn records_carry_their_position() {
    let env = TestEnv::new();
    let mut owner = env.open(1, 0).unwrap();
    env.append(&mut owner, 1..4);
    let end = owner.log.appended();
    let files = &directory::list(env.path()).unwrap()[&1];
    let mut stream = scan::StreamReader::open(9, 1, files, u64::MAX).unwrap();
    let mut kinds = Vec::new();
    while let Some(record) = stream.next().unwrap().unwrap() {
        kinds.push(matches!(record, LogRecord::Group(_)));
    }
    assert_eq!(kinds, [true, false, false, false]);
    assert_eq!(stream.position(), end);
    let wrong_shard = scan::StreamReader::open(8, 1, files, u64::MAX).unwrap().next().unwrap();
    assert!(wrong_shard.is_err());
}
