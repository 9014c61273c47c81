//! Fails the power at every point of a cluster's operations (`varve_env::power_loss`), and compares the recovered
//! volume with the guarantees in docs/semantics.md, "What survives which event".
//!
//! One client runs a sequence of operations once, recorded. For every point of the record, and several fates of the
//! unsynced writes, the test builds a volume from what the disk may hold and opens it with the real code. Then
//!
//! - the tree is the one after some prefix of the operations, none of them half done: at least the synced operations,
//!   at most those begun;
//! - an inode id that was allocated before is not allocated again;
//! - `fsck` finds no damage after a server has opened the volume.
//!
//! If the names of two operations are in different shards, the later operation may survive without the earlier one as
//! long as neither is synced: each shard has its own log.

mod operations;
mod picture;

use super::cluster::Cluster;
use super::watched::Watched;
use operations::Operation;
use picture::Picture;
use std::collections::HashSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use varve_admin::fsck;
use varve_env::power_loss::{CrashOrder, DiskState, Fate, History, Recording};
use varve_env::volume_dir::{FormatOver, VolumeDir};
use varve_types::{AckLevel, InodeId, ShardCount, ShardId, VolumeId, VolumeSettings};

/// Two shards, so that every verb that can cross shards does.
const SHARDS: u16 = 2;
/// The minimum. The root has one name less at first.
const SPLIT_THRESHOLD: u64 = 16;

/// High counts are for `make soak`.
fn soak() -> bool {
    std::env::var_os("VARVE_SOAK").is_some()
}

/// The volume with which every sequence begins, closed.
fn prepared() -> DiskState {
    let directory = tempfile::tempdir().unwrap();
    let settings = VolumeSettings {
        id: VolumeId([7; 16]),
        name: "power".into(),
        shards: ShardCount::new(SHARDS).unwrap(),
        split_threshold: SPLIT_THRESHOLD,
        inline_limit: 4096,
        sync_interval: Duration::from_secs(300),
        owner_uid: 0,
    };
    VolumeDir::new(directory.path()).format(&settings, FormatOver::Nothing).unwrap();
    let recording = Recording::begin(directory.path()).unwrap();
    Cluster::run_in(directory.path(), async |cluster| {
        cluster.make_root().await;
        operations::prepare(&cluster).await;
        cluster.close().await;
    });
    assert_eq!(recording.check().unwrap(), Vec::<std::path::PathBuf>::new(), "changed past the seam");
    let state = DiskState::read_from(directory.path()).unwrap();
    // The server creates missing directories of backing files. Leaving out the 256 empty ones saves time in thousands
    // of runs.
    state.without_empty(Path::new("data"))
}

/// The recorded events, and the tree after each operation.
struct PowerRun {
    operations: Vec<Operation>,
    history: History,
    pictures: Vec<Picture>,
    /// The tree after the second of two operations alone, if it can survive without the first.
    without_first: Option<Picture>,
    /// The inode ids that each operation returned.
    given: Vec<Vec<InodeId>>,
}

// Marks: a number of operations and their state.
const BEGUN: u64 = 1000;
const ANSWERED: u64 = 2000;
const SYNCED: u64 = 3000;
const RECOVERED: u64 = 4000;

/// Numbers of operations at a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct CompletedOperations {
    synced: usize,
    answered: usize,
    begun: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Workers {
    OneAShard,
    /// One worker for all, so that shards access each other directly.
    OneForAll,
}

/// Runs the operations on a copy of the prepared volume, with a worker for each shard.
fn run(prepared: &DiskState, operations: &[Operation]) -> PowerRun {
    run_by(Workers::OneAShard, prepared, operations)
}

fn run_by(workers: Workers, prepared: &DiskState, operations: &[Operation]) -> PowerRun {
    run_with(workers, AckLevel::Appended, prepared, operations)
}

fn run_with(workers: Workers, ack: AckLevel, prepared: &DiskState, operations: &[Operation]) -> PowerRun {
    let directory = tempfile::tempdir().unwrap();
    prepared.write_to(directory.path()).unwrap();
    let recording = Recording::begin(directory.path()).unwrap();
    let (pictures, given) = Cluster::run_in(directory.path(), async |cluster| {
        cluster.peers.all_near.set(workers == Workers::OneForAll);
        if ack == AckLevel::Synced {
            cluster.sync_writes.turn_on();
        }
        let mut pictures = vec![picture::take(&cluster).await];
        let mut given = Vec::new();
        for (number, operation) in operations.iter().enumerate() {
            recording.mark(BEGUN + number as u64 + 1);
            given.push(operation.run(&cluster).await);
            recording.mark(ANSWERED + number as u64 + 1);
            if operation.syncs() || ack == AckLevel::Synced {
                recording.mark(SYNCED + number as u64 + 1);
            }
            pictures.push(picture::take(&cluster).await);
        }
        (pictures, given)
    });
    let strays = recording.check().unwrap();
    assert!(strays.is_empty(), "changed past the seam: {strays:?}");
    let history = recording.history();
    PowerRun { operations: operations.to_vec(), history, pictures, without_first: None, given }
}

/// One of this many points is tried.
#[derive(Clone, Copy)]
struct Every(usize);

impl PowerRun {
    /// If two operations are decided in different shards, the later one may survive alone.
    fn with_second_alone(mut self, prepared: &DiskState) -> PowerRun {
        let [first, second] = self.operations[..] else { return self };
        if first.decided_in() != second.decided_in() && first.decided_in().len() + second.decided_in().len() == 2 {
            self.without_first = run(prepared, &[second]).pictures.pop();
        }
        self
    }

    /// Fails the power at one of `stride` points.
    fn lose_power(&self, skipped: usize, Every(stride): Every, seeds: u64, tried: &Tried) {
        let points: Vec<_> = (0..=self.history.points())
            .filter(|point| self.history.is_change(*point))
            .filter(|point| self.is_its_own(*point))
            .collect();
        for point in points.into_iter().skip(skipped).step_by(stride) {
            let chances = (0..seeds).map(|seed| {
                let order =
                    if (seed + point as u64).is_multiple_of(2) { CrashOrder::Anyhow } else { CrashOrder::Journaled };
                Fate::Chance { order, seed: seed + 1000 * point as u64 }
            });
            for fate in [Fate::Kept, Fate::Lost].into_iter().chain(chances) {
                let state = self.history.lose_power(point, fate);
                if tried.first(&state, self.done(point)) {
                    self.check(point, fate, &state);
                }
            }
        }
    }

    /// Whether no other run covers the point. All runs begin with the open of the volume, which the very first
    /// operation covers, and a pair's first points are those of its first operation alone.
    fn is_its_own(&self, point: usize) -> bool {
        let done = self.done(point);
        match self.operations[..] {
            [first, Operation::Sync] => done.begun > 0 || first == Operation::ALL[0],
            [_, _] => done.answered > 0,
            _ => true,
        }
    }

    fn done(&self, point: usize) -> CompletedOperations {
        let mut done = CompletedOperations { synced: 0, answered: 0, begun: 0 };
        for mark in self.history.marks(point) {
            let number = (mark % 1000) as usize;
            match mark - mark % 1000 {
                BEGUN => done.begun = number,
                ANSWERED => done.answered = number,
                _ => done.synced = number,
            }
        }
        done
    }

    fn check(&self, point: usize, fate: Fate, state: &DiskState) {
        let _watched = Watched::begin(format!("{:?}, power lost at point {point}, {fate:?}", self.operations));
        let directory = tempfile::tempdir().unwrap();
        state.write_to(directory.path()).unwrap();
        let recording = Recording::begin(directory.path()).unwrap();
        let checked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let found = Cluster::run_in(directory.path(), async |cluster| {
                let found = picture::take(&cluster).await;
                recording.mark(RECOVERED);
                self.check_fresh_ids(point, &cluster).await;
                found
            });
            self.check_picture(point, &found);
            check_fsck(directory.path());
            let again = state.digest();
            if soak() || again.is_multiple_of(4) {
                lose_power_again(&recording.history(), again, &found);
            }
        }));
        drop(recording);
        if let Err(panic) = checked {
            let kept = directory.keep();
            eprintln!(
                "operations {:?}, power lost at point {point} of {}, {fate:?}\nvolume kept in {}\nlast changes\n{}",
                self.operations,
                self.history.points(),
                kept.display(),
                self.history.describe(point, 30),
            );
            std::panic::resume_unwind(panic);
        }
    }

    fn check_picture(&self, point: usize, found: &Picture) {
        let CompletedOperations { synced, begun, .. } = self.done(point);
        let whole = &self.pictures[synced..=begun];
        let without = self.without_first.as_ref().filter(|_| begun == synced + 2);
        if whole.contains(found) || without == Some(found) {
            return;
        }
        let differences: String = (synced..=begun)
            .map(|number| format!("against {number} operations:\n{}", found.differences(&self.pictures[number])))
            .collect();
        panic!("not the tree after {synced} to {begun} operations\n{differences}");
    }

    /// Creates files in both shards and checks that their ids are new.
    async fn check_fresh_ids(&self, point: usize, cluster: &Cluster) {
        let given: HashSet<_> = self.given[..self.done(point).answered].iter().flatten().collect();
        for (directory, label) in [(operations::A, "a"), (operations::B, "b")] {
            let Some((directory, _)) = cluster.lookup(InodeId::ROOT, directory).await else { continue };
            let fresh = cluster.create(directory, &format!("fresh {label}")).await.unwrap().inode;
            assert!(!given.contains(&fresh), "inode {fresh} was given before");
        }
    }
}

fn check_fsck(directory: &Path) {
    let report = fsck::check(&VolumeDir::new(directory), &mut |_| {}).unwrap();
    let findings: String = report.findings.iter().map(|finding| format!("  {finding}\n")).collect();
    assert!(report.is_sound(), "fsck:\n{findings}");
}

/// Fails the power once more during recovery, at a point drawn by `seed`: the result must be the same as before.
fn lose_power_again(history: &History, seed: u64, found: &Picture) {
    let recovered = (0..=history.points()).rfind(|point| history.marks(*point).next().is_none()).unwrap_or(0);
    let point = Draw { seed, drawn: 0 }.below(recovered + 1);
    let directory = tempfile::tempdir().unwrap();
    let state = history.lose_power(point, Fate::Chance { order: CrashOrder::Anyhow, seed });
    state.write_to(directory.path()).unwrap();
    let recording = Recording::begin(directory.path()).unwrap();
    let again = Cluster::run_in(directory.path(), async |cluster| picture::take(&cluster).await);
    drop(recording);
    if again != *found {
        let kept = directory.keep();
        panic!(
            "power lost again at point {point} of its recovery, volume kept in {}\n{}\n{}",
            kept.display(),
            again.differences(found),
            history.describe(point, 30)
        );
    }
}

/// States already opened, with the trees allowed for them.
#[derive(Default)]
struct Tried(Mutex<HashSet<(u64, CompletedOperations)>>);

impl Tried {
    fn first(&self, state: &DiskState, done: CompletedOperations) -> bool {
        self.0.lock().unwrap().insert((state.digest(), done))
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Counts the tries and prints them at the end: with `--nocapture` and in the soak's log.
struct Tally {
    what: &'static str,
    begun: std::time::Instant,
    sequences: AtomicUsize,
    states: AtomicUsize,
}

impl Tally {
    fn begin(what: &'static str) -> Tally {
        Tally { what, begun: std::time::Instant::now(), sequences: AtomicUsize::new(0), states: AtomicUsize::new(0) }
    }

    fn add(&self, tried: &Tried) {
        let sequences = self.sequences.fetch_add(1, Relaxed) + 1;
        let states = self.states.fetch_add(tried.count(), Relaxed) + tried.count();
        if soak() && sequences.is_multiple_of(50) {
            println!("{}: {sequences} sequences, {states} states, {:?}", self.what, self.begun.elapsed());
        }
    }
}

impl Drop for Tally {
    fn drop(&mut self) {
        let (sequences, states) = (self.sequences.load(Relaxed), self.states.load(Relaxed));
        println!("{}: {sequences} sequences, {states} states of the disk, {:?}", self.what, self.begun.elapsed());
    }
}

/// Runs `work` on every item, on as many threads as there are processors.
fn in_parallel<T: Send + Sync>(items: &[T], work: impl Fn(usize, &T) + Send + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    let Some(item) = items.get(number) else { return };
                    work(number, item);
                }
            });
        }
    });
}

/// Every operation alone, at every point.
#[test]
fn power_loss_after_each_operation() {
    let prepared = prepared();
    let seeds = if soak() { 16 } else { 1 };
    let tally = Tally::begin("every operation alone");
    in_parallel(&Operation::ALL, |_, operation| {
        let tried = Tried::default();
        run(&prepared, &[*operation, Operation::Sync]).lose_power(0, Every(1), seeds, &tried);
        tally.add(&tried);
    });
}

/// Every pair of operations in sequence, at the points of the second, in `make soak`. Otherwise every third pair, with
/// every fortieth point and a different start for each pair.
#[test]
fn power_loss_after_each_pair_of_operations() {
    let prepared = prepared();
    let firsts = Operation::ALL.into_iter().filter(|first| *first != Operation::Sync);
    let pairs: Vec<_> = firsts.flat_map(|first| Operation::ALL.map(|second| [first, second])).collect();
    let (share, stride, seeds) = if soak() { (1, 1, 4) } else { (3, 40, 1) };
    let pairs: Vec<_> = pairs.into_iter().step_by(share).collect();
    let tally = Tally::begin("every two operations");
    in_parallel(&pairs, |number, pair| {
        let tried = Tried::default();
        let run = run(&prepared, pair).with_second_alone(&prepared);
        run.lose_power(number % stride, Every(stride), seeds, &tried);
        tally.add(&tried);
    });
}

/// Promise: with the acknowledgement level `synced`, every change that was replied to survives the loss of power, as if each
/// operation were followed by a sync.
#[test]
fn synced_replies_survive_power_loss() {
    let prepared = prepared();
    let tally = Tally::begin("synced replies");
    let seeds = if soak() { 8 } else { 1 };
    let singles = Operation::ALL.iter().map(|operation| vec![*operation]);
    let sequences: Vec<_> = singles.chain([Operation::ALL.to_vec()]).collect();
    in_parallel(&sequences, |number, sequence| {
        let stride = if soak() { 1 } else { 8 };
        for workers in [Workers::OneAShard, Workers::OneForAll] {
            let tried = Tried::default();
            let run = run_with(workers, AckLevel::Synced, &prepared, sequence);
            assert_eq!(run.done(run.history.points()).synced, sequence.len());
            run.lose_power(number % stride, Every(stride), seeds, &tried);
            tally.add(&tried);
        }
    });
}

/// If a directory's name is in one shard's log and its rows in another's, a power failure may leave the name alone. The
/// directory is then recreated, and the next operation finds it immediately. Few fates of a point do that, so many are
/// tried.
#[test]
fn revived_directory_survives_power_loss() {
    let prepared = prepared();
    let seconds = [Operation::Create, Operation::RmdirAcross];
    let tally = Tally::begin("a directory that was revived");
    in_parallel(&seconds, |_, second| {
        let tried = Tried::default();
        let run = run(&prepared, &[Operation::MkdirAcross, *second]).with_second_alone(&prepared);
        run.lose_power(0, Every(1), 64, &tried);
        tally.add(&tried);
    });
}

/// If one worker serves both shards, plain calls create and remove directories: the first create takes ids first, later
/// ones need no wait.
#[test]
fn power_loss_in_directories_of_one_worker() {
    let prepared = prepared();
    let (mkdir, rmdir) = (Operation::MkdirAcross, Operation::RmdirAcross);
    let sequences: [&[Operation]; 3] = [
        &[Operation::Rmdir, Operation::Sync],
        &[mkdir, rmdir, Operation::Sync, mkdir, Operation::Create],
        &[mkdir, rmdir, Operation::Close, mkdir, rmdir, mkdir, Operation::Sync],
    ];
    let (stride, seeds) = if soak() { (1, 16) } else { (3, 2) };
    let tally = Tally::begin("directories of one worker");
    in_parallel(&sequences, |_, sequence| {
        let tried = Tried::default();
        run_by(Workers::OneForAll, &prepared, sequence).lose_power(0, Every(stride), seeds, &tried);
        tally.add(&tried);
    });
}

/// Longer sequences, drawn by a seed, at points drawn by it too. One shard decides on all their names, so that the
/// surviving operations are a prefix.
#[test]
fn power_loss_after_random_sequences() {
    let prepared = prepared();
    let apart = |operation: &Operation| operation.decided_in() == [ShardId(1)];
    let operations: Vec<_> = Operation::ALL.into_iter().filter(|operation| !apart(operation)).collect();
    let seeds: Vec<u64> = (0..if soak() { 2000 } else { 8 }).collect();
    let tally = Tally::begin("longer sequences");
    in_parallel(&seeds, |_, seed| {
        let mut draw = Draw { seed: *seed, drawn: 0 };
        let sequence: Vec<_> = (0..3 + draw.below(6)).map(|_| operations[draw.below(operations.len())]).collect();
        let run = run(&prepared, &sequence);
        let tried = Tried::default();
        run.lose_power(draw.below(25), Every(25), 1, &tried);
        tally.add(&tried);
    });
}

/// Numbers derived from a seed.
struct Draw {
    seed: u64,
    drawn: u64,
}

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.drawn += 1;
        (xxhash_rust::xxh3::xxh3_64_with_seed(&self.drawn.to_le_bytes(), self.seed) % end as u64) as usize
    }
}
