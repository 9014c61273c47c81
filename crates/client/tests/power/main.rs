//! Simulates a power failure at every point of a program that uses the client library: rows and the bytes of large
//! files together (`varve_env::power_loss`). docs/semantics.md, "What survives which event".
//!
//! A sequence of steps runs once, recorded, in one process with its server. For points of the record, and for several
//! fates of the unsynced data, the volume that the disk may hold is served again, and the state that a client finds is
//! compared with the [`model`]. All synced data must be there, and of the rest the names and small files after some
//! prefix of the steps. Each byte of a large file is one that it had at some step since it was last synced, and its
//! size is one from that time. The file must be readable without an error up to that size, accept more bytes, and
//! `fsck` must find the volume sound.
//!
//! A seed determines the steps, the points and the fates. The order in which the threads of the server reach the disk
//! depends on the machine, so a failed test keeps its directory, which replays the failure exactly.

mod model;
mod scene;
mod steps;

use model::CompletedActions;
use scene::{DiskState, Scene};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;
use steps::Step::*;
use steps::{Path::*, Step};
use varve_env::power_loss::{CrashOrder, Fate};
use varve_env::random::Seeded;

fn soak() -> bool {
    std::env::var_os("VARVE_SOAK").is_some()
}

/// Sequences of steps on files whose state is known; power is lost at the points of each sequence.
const SEQUENCES: &[&[Step]] = &[
    // A large file that was closed and whose size was recorded; then it is written, appended to and truncated without a
    // sync.
    &[Write(A, 0, 9000), RecordSize, Append(A, 6000)],
    &[Write(A, 0, 9000), RecordSize, Sync, Write(A, 3000, 2000), RecordSize],
    &[Write(A, 0, 20_000), Sync, RecordSize, Cut(A, 5000), RecordSize],
    &[Write(A, 0, 9000), RecordSize, Sync, Empty(A), Write(A, 0, 7000), RecordSize],
    &[Write(A, 0, 9000), RecordSize, Sync, Hold(A, 12_000, 3000), Fsync(A), Hold(A, 100, 9000), Drop(A)],
    // Promotion: a small file outgrows its row.
    &[Write(A, 0, 3000), Fsync(A), Append(A, 6000), RecordSize],
    &[Write(A, 0, 3000), Append(A, 6000), Fsync(A), Cut(A, 100)],
    &[Write(A, 0, 500), Sync, Cut(A, 30_000), RecordSize],
    // As editors save: write beside, sync, rename over the old file.
    &[Write(A, 0, 9000), Sync, Write(B, 0, 12_000), Fsync(B), Rename(B, A)],
    &[Write(A, 0, 9000), RecordSize, Sync, Write(B, 0, 100), Fsync(B), Rename(B, A), Write(A, 50, 8000)],
    &[Write(A, 0, 9000), RecordSize, Rename(A, C), Append(C, 5000), RecordSize, Remove(C)],
    &[Write(A, 0, 6000), Link(A, D), RecordSize, Append(D, 6000), Remove(A), RecordSize, Fsync(D)],
    // fsync raises the minimum size in the row; a truncation lowers it before it cuts the file.
    &[
        Write(A, 0, 9000),
        RecordSize,
        Hold(A, 9000, 6000),
        Fsync(A),
        Cut(A, 5000),
        Hold(A, 5000, 9000),
        Fsync(A),
        Drop(A),
    ],
    &[
        Hold(A, 0, 12_000),
        Fsync(A),
        Cut(A, 6000),
        Cut(A, 20_000),
        Fsync(A),
        Empty(A),
        Hold(A, 0, 8000),
        Drop(A),
        RecordSize,
    ],
];

/// Every sequence of the list, at every seventh of its points (at each in `make soak`).
#[test]
fn files_are_what_posix_allows_at_every_point() {
    let scene = Scene::new(1);
    let (stride, seeds) = if soak() { (1, 8) } else { (7, 1) };
    let tally = Tally::begin("client sequences");
    in_parallel(SEQUENCES, |number, steps| tally.add(try_sequence(&scene, steps, number % stride, stride, seeds)));
}

/// Random sequences, with one shard, whose log is one order, and with several.
#[test]
fn files_are_what_posix_allows_after_random_steps() {
    let scenes = [Scene::new(1), Scene::new(4)];
    let count = if soak() { 600 } else { 8 };
    let seeds: Vec<u64> = (0..count).collect();
    let tally = Tally::begin("client random sequences");
    in_parallel(&seeds, |_, seed| {
        let mut chance = Seeded::new(*seed);
        let length = 6 + chance.below(10);
        let steps: Vec<Step> = (0..length).map(|_| Step::random(&mut chance)).collect();
        let stride = if soak() { 9 } else { 41 };
        let skipped = chance.below(stride);
        tally.add(try_sequence(&scenes[(*seed % 2) as usize], &steps, skipped, stride, 1));
    });
}

/// Loses power at every `stride`-th point of `steps`; returns the number of states that were tried.
fn try_sequence(scene: &Scene, steps: &[Step], skipped: usize, stride: usize, seeds: u64) -> usize {
    let run = scene.run(steps);
    let points: Vec<usize> = (0..=run.history.points()).filter(|point| run.history.is_change(*point)).collect();
    let mut tried = std::collections::HashSet::new();
    for point in points.into_iter().skip(skipped).step_by(stride) {
        let chances = (0..seeds).map(|seed| {
            let order =
                if (seed + point as u64).is_multiple_of(2) { CrashOrder::Anyhow } else { CrashOrder::Journaled };
            Fate::Chance { order, seed: seed + 1000 * point as u64 }
        });
        let done = CompletedActions::at(&run.history, point);
        for fate in [Fate::Kept, Fate::Lost].into_iter().chain(chances) {
            let state: DiskState = run.history.lose_power(point, fate);
            if tried.insert((state.digest(), done)) {
                scene.check(&run, point, fate, &state);
            }
        }
    }
    tried.len()
}

/// Runs `work` on every item, on as many threads as there are processors.
fn in_parallel<T: std::marker::Sync>(items: &[T], work: impl Fn(usize, &T) + std::marker::Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let number = next.fetch_add(1, Relaxed)
                    && let Some(item) = items.get(number)
                {
                    work(number, item);
                }
            });
        }
    });
}

/// Counts the states that were tried, and prints the count at the end.
struct Tally(&'static str, Instant, AtomicUsize, AtomicUsize);

impl Tally {
    fn begin(what: &'static str) -> Tally {
        Tally(what, Instant::now(), AtomicUsize::new(0), AtomicUsize::new(0))
    }

    fn add(&self, states: usize) {
        self.2.fetch_add(1, Relaxed);
        self.3.fetch_add(states, Relaxed);
    }
}

impl std::ops::Drop for Tally {
    fn drop(&mut self) {
        let (sequences, states) = (self.2.load(Relaxed), self.3.load(Relaxed));
        println!("{}: {sequences} sequences, {states} states of the disk, {:?}", self.0, self.1.elapsed());
    }
}
