//! Fails the power at every point of a log's life. Batches that were synced and are not in tables are recovered, and a
//! log that lost nothing is not taken for one whose files were removed.

use super::super::format::FileHeader;
use super::super::state::{LogState, SyncWork};
use super::*;
use tokio::time::Instant;
use varve_env::disk::File;
use varve_env::power_loss::{CrashOrder, Fate, History, Recording};

// Marks: what is durable from then on, by itself or in the manifest, which is not recorded here.
const CLAIMED: u64 = 10_000;
const SYNCED: u64 = 20_000;
const IN_TABLES: u64 = 30_000;
const APPENDED: u64 = 40_000;

/// Three epochs, with files left and reclaimed in each, that end like the death of the process.
fn lived(env: &TestEnv) -> History {
    let recording = Recording::begin(env.path().path()).unwrap();
    let (mut sequence, mut group) = (0, 0);
    for epoch in 1..4 {
        recording.mark(CLAIMED + epoch);
        let mut owner = env.open(epoch, group).unwrap();
        for _ in 0..3 {
            recording.mark(APPENDED + sequence + 2);
            env.append(&mut owner, sequence + 1..sequence + 3);
            sequence += 2;
            env.sync(&owner);
            recording.mark(SYNCED + sequence);
            owner.log.leave_file(0);
            group = owner.flushed_group();
            recording.mark(IN_TABLES + 100 * group + sequence);
            reclaim::reclaim(&env.config(), group).unwrap();
        }
        recording.mark(APPENDED + sequence + 1);
        env.append(&mut owner, sequence + 1..sequence + 2);
        sequence += 1;
    }
    assert!(recording.check().unwrap().is_empty());
    recording.history()
}

/// Two epochs. In each, a file that was begun and never fsynced fails, and another one takes over from it. Both it and
/// the file before are reclaimed at the end, or not.
fn failed(env: &TestEnv, reclaims: bool) -> History {
    let recording = Recording::begin(env.path().path()).unwrap();
    let (mut sequence, mut group) = (0, 0);
    for epoch in 1..3 {
        recording.mark(CLAIMED + epoch);
        let mut owner = env.open(epoch, group).unwrap();
        for fails in [false, true, false] {
            if fails {
                owner.log.leave_file(0);
                owner.log.state.lock().break_file();
            }
            recording.mark(APPENDED + sequence + 2);
            env.append(&mut owner, sequence + 1..sequence + 3);
            sequence += 2;
            env.sync(&owner);
            recording.mark(SYNCED + sequence);
        }
        if reclaims {
            group = owner.flushed_group();
            recording.mark(IN_TABLES + 100 * group + sequence);
            reclaim::reclaim(&env.config(), group).unwrap();
        }
    }
    assert!(recording.check().unwrap().is_empty());
    recording.history()
}

#[test]
fn power_loss_at_any_point_keeps_synced_records() {
    keeps_what_was_synced(&lived(&TestEnv::new()), [CrashOrder::Anyhow, CrashOrder::Journaled]);
}

/// Promise: the same holds for a log that continued in a new file, whatever is left of the file before, which was never
/// fsynced.
#[test]
fn unsynced_file_hides_no_later_file() {
    keeps_what_was_synced(&failed(&TestEnv::new(), false), [CrashOrder::Anyhow, CrashOrder::Journaled]);
    // It is removed together with the file before it, which must go first.
    keeps_what_was_synced(&failed(&TestEnv::new(), true), [CrashOrder::Journaled; 2]);
}

fn keeps_what_was_synced(history: &History, orders: [CrashOrder; 2]) {
    for point in (0..=history.points()).filter(|point| history.is_change(*point)) {
        let (mut claimed, mut synced, mut in_tables, mut appended) = (0, 0, (0, 0), 0);
        for mark in history.marks(point) {
            match (mark / 10_000, mark % 10_000) {
                (1, epoch) => claimed = epoch,
                (2, sequence) => synced = sequence,
                (3, both) => in_tables = (both / 100, both % 100),
                (_, sequence) => appended = sequence,
            }
        }
        let chances = (0..16).map(|seed| {
            let order = orders[seed as usize % 2];
            Fate::Chance { order, seed: seed + 1000 * point as u64 }
        });
        for fate in [Fate::Kept, Fate::Lost].into_iter().chain(chances) {
            let env = TestEnv::new();
            history.lose_power(point, fate).write_to(env.path().path()).unwrap();
            let (after, covered) = in_tables;
            let reported = || format!("point {point}, {fate:?}\n{}", history.describe(point, 20));
            let found = match env.open(claimed + 1, after) {
                Ok(owner) => owner.sequences(),
                Err(error) => panic!("{error}: {}", reported()),
            };
            let last = found.last().copied().unwrap_or(covered);
            assert_eq!(found, range(covered + 1..last + 1), "{}", reported());
            assert!((synced..=appended).contains(&last), "{last} of {synced} synced: {}", reported());
        }
    }
}

/// Promise: bytes added to a file during its fsync are fsynced with the next one, even if another file has begun by
/// then.
#[test]
fn append_during_fsync_is_synced_by_the_next() {
    let env = TestEnv::new();
    let config = env.config();
    let header = FileHeader { shard: 9, epoch: 1, number: 0, base: 0, synced: 0, last_group: 0 };
    let first = file_path(&config.directory, 1, 0);
    let file = File::options().write(true).create_new().open(&first).unwrap();
    let mut state = LogState::begin(header, file, first.clone(), None);
    let mut sequence = 0;
    let mut append = |state: &mut LogState| {
        sequence += 1;
        let rows =
            [RowEntry { value: ValueDeletable::Value(Bytes::from(vec![1; 1 << 20])), ..batch(sequence)[0].clone() }];
        state.append(&config, &BatchRows::of(&rows), sequence).unwrap();
        state.hand_over();
    };
    for _ in 0..15 {
        append(&mut state);
    }
    let under_way = state.begin_sync().unwrap();
    let files = |work: &SyncWork| work.files.iter().map(|file| file.path.clone()).collect::<Vec<_>>();
    assert_eq!(files(&under_way), std::slice::from_ref(&first));
    for _ in 0..3 {
        append(&mut state);
    }
    state.end_sync(&under_way, Instant::now());
    assert_eq!(state.synced(), under_way.target);
    let second = file_path(&config.directory, 1, 1);
    assert!(second.exists(), "another file has begun");
    let next = state.begin_sync().unwrap();
    assert_eq!(files(&next), [first, second.clone()]);
    state.end_sync(&next, Instant::now());
    assert_eq!(state.unsynced_bytes(), 0);
    append(&mut state);
    assert_eq!(files(&state.begin_sync().unwrap()), [second]);
}
