//! The power fails at every point of a log's life: what was synced and is not in tables is there, and no log that lost
//! nothing is taken for one whose files somebody has removed.

use super::super::format::FileHeader;
use super::super::state::{State, SyncWork};
use super::*;
use tokio::time::Instant;
use varve_world::disk::File;
use varve_world::power_loss::{Fate, History, Order, Recording};

// Marks: what is durable from then on, by itself or in the manifest, which is not recorded here.
const CLAIMED: u64 = 10_000;
const SYNCED: u64 = 20_000;
const IN_TABLES: u64 = 30_000;
const APPENDED: u64 = 40_000;

/// Three epochs, with files left and reclaimed in each, that end as if the process had died.
fn lived(world: &World) -> History {
    let recording = Recording::begin(world.path().path()).unwrap();
    let (mut sequence, mut group) = (0, 0);
    for epoch in 1..4 {
        recording.mark(CLAIMED + epoch);
        let mut owner = world.open(epoch, group).unwrap();
        for _ in 0..3 {
            recording.mark(APPENDED + sequence + 2);
            world.append(&mut owner, sequence + 1..sequence + 3);
            sequence += 2;
            world.sync(&owner);
            recording.mark(SYNCED + sequence);
            owner.log.leave_file(0);
            group = owner.flushed_group();
            recording.mark(IN_TABLES + 100 * group + sequence);
            reclaim::reclaim(&world.config(), group).unwrap();
        }
        recording.mark(APPENDED + sequence + 1);
        world.append(&mut owner, sequence + 1..sequence + 2);
        sequence += 1;
    }
    assert!(recording.check().unwrap().is_empty());
    recording.history()
}

/// Two epochs; in each a file that was begun and never fsynced fails, and another one takes over from it. Both it and
/// the file before are reclaimed at the end, or not.
fn failed(world: &World, reclaims: bool) -> History {
    let recording = Recording::begin(world.path().path()).unwrap();
    let (mut sequence, mut group) = (0, 0);
    for epoch in 1..3 {
        recording.mark(CLAIMED + epoch);
        let mut owner = world.open(epoch, group).unwrap();
        for fails in [false, true, false] {
            if fails {
                owner.log.leave_file(0);
                owner.log.state.lock().break_file();
            }
            recording.mark(APPENDED + sequence + 2);
            world.append(&mut owner, sequence + 1..sequence + 3);
            sequence += 2;
            world.sync(&owner);
            recording.mark(SYNCED + sequence);
        }
        if reclaims {
            group = owner.flushed_group();
            recording.mark(IN_TABLES + 100 * group + sequence);
            reclaim::reclaim(&world.config(), group).unwrap();
        }
    }
    assert!(recording.check().unwrap().is_empty());
    recording.history()
}

#[test]
fn every_point_of_a_log_keeps_what_was_synced_and_is_opened() {
    keeps_what_was_synced(&lived(&World::new()), [Order::Anyhow, Order::Journaled]);
}

/// Promise: so does a log that has gone on in a new file, whatever is left of the one before that, which was never fsynced.
#[test]
fn a_file_that_was_never_fsynced_hides_none_after_it() {
    keeps_what_was_synced(&failed(&World::new(), false), [Order::Anyhow, Order::Journaled]);
    // It goes together with the one before it, which is to go first.
    keeps_what_was_synced(&failed(&World::new(), true), [Order::Journaled; 2]);
}

fn keeps_what_was_synced(history: &History, orders: [Order; 2]) {
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
            let world = World::new();
            history.lose_power(point, fate).write_to(world.path().path()).unwrap();
            let (after, covered) = in_tables;
            let told = || format!("point {point}, {fate:?}\n{}", history.describe(point, 20));
            let found = match world.open(claimed + 1, after) {
                Ok(owner) => owner.sequences(),
                Err(error) => panic!("{error}: {}", told()),
            };
            let last = found.last().copied().unwrap_or(covered);
            assert_eq!(found, range(covered + 1..last + 1), "{}", told());
            assert!((synced..=appended).contains(&last), "{last} of {synced} synced: {}", told());
        }
    }
}

/// Promise: what comes to a file while that is fsynced is fsynced with the next, also where another file has begun by then.
#[test]
fn what_comes_to_a_file_while_it_is_fsynced_is_fsynced_with_the_next() {
    let world = World::new();
    let config = world.config();
    let header = FileHeader { shard: 9, epoch: 1, number: 0, base: 0, synced: 0, last_group: 0 };
    let first = file_path(&config.directory, 1, 0);
    let file = File::options().write(true).create_new().open(&first).unwrap();
    let mut state = State::begin(header, file, first.clone(), None);
    let mut sequence = 0;
    let mut append = |state: &mut State| {
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
