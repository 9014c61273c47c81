//! Shards move between the workers of the server while writers work, also when the server is killed meanwhile.

use super::common::{Outcome, SHORT, Volume, on_plain_directory, run, soak, varve};
use super::{Site, a_while, expect_work, in_library, on_mount, seed, volume, work};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};
use varve_env::random::Seeded;

/// Shards of the suite's volumes, and workers of their servers.
const SHARDS: usize = 8;
const WORKERS: usize = 2;

/// From the beginning of one move to that of the next.
const MOVE_EVERY: Duration = Duration::from_millis(100);

/// How long a moving shard may be away. The suites share the machine, so some moves may take longer.
const AWAY_MAX: f64 = 0.5;

fn move_one(volume: &Volume, random: &mut Seeded) -> Outcome {
    let [shard, worker] = [SHARDS, WORKERS].map(|count| random.below(count).to_string());
    run(varve().args(["--json", "cluster", "move"]).arg(volume.store()).args([shard, worker]), SHORT)
}

/// Moves random shards until `stop`; returns for how many seconds each that moved was away, in order.
fn move_until(volume: &Volume, random: &mut Seeded, stop: impl Fn() -> bool) -> Vec<f64> {
    let mut away = Vec::new();
    while !stop() {
        let begun = Instant::now();
        let moved = move_one(volume, random);
        if moved.code() == Some(0) {
            let moved = moved.json();
            if moved["from"] != moved["to"] {
                away.push(moved["seconds"].as_f64().expect("a number"));
            }
        }
        std::thread::sleep(MOVE_EVERY.saturating_sub(begun.elapsed()));
    }
    away.sort_by(f64::total_cmp);
    away
}

/// Promise: moves of shards disturb nobody: no call fails, nothing acknowledged is lost, fsck finds nothing, and a shard
/// is away for less than half a second.
#[test]
fn moves_fail_no_call_and_lose_nothing() {
    if on_plain_directory() {
        return;
    }
    let mut random = Seeded::new(seed() + 2);
    let mut site = Site::start(volume());
    let mut writers = on_mount(&site.volume.mount_point());
    writers.extend(in_library(&site.volume));
    let mut away = Vec::new();
    for round in 0..if soak() { 40 } else { 4 } {
        let end = Instant::now() + Duration::from_secs(3);
        work(&mut writers, || away.extend(move_until(&site.volume, &mut random, || Instant::now() >= end)));
        for writer in &mut writers {
            assert!(writer.unanswered.is_none(), "{writer:?} while shards moved");
            writer.check(&format!("round {round} of moves"));
        }
    }
    away.sort_by(f64::total_cmp);
    assert!(away.len() >= 5, "only {} moves: the suite proves nothing", away.len());
    let (median, longest) = (away[away.len() / 2], away[away.len() - 1]);
    println!("{} moves, away for {median:.3} s in the median and {longest:.3} s at most", away.len());
    assert!(median < AWAY_MAX, "shards were away for {median:.3} s");
    expect_work(&writers, 400);
    site.check();
}

/// Promise: a server that is killed while a shard moves loses nothing that it acknowledged, and no call fails: the next
/// server has the shard at one of its workers.
#[test]
fn kill_during_a_move_loses_nothing() {
    if on_plain_directory() {
        return;
    }
    let mut random = Seeded::new(seed() + 3);
    let mut site = Site::start(volume());
    let mut writers = on_mount(&site.volume.mount_point());
    writers.extend(in_library(&site.volume));
    for death in 0..if soak() { 60 } else { 6 } {
        work(&mut writers, || {
            let (killed, mut moves) = (AtomicBool::new(false), Seeded::new(random.number()));
            let (volume, stop) = (&site.volume, &killed);
            std::thread::scope(|scope| {
                // Without a pause, so that a shard is moving most of the time.
                let mover = scope.spawn(move || {
                    while !stop.load(Relaxed) {
                        move_one(volume, &mut moves);
                    }
                });
                a_while(&mut random);
                a_while(&mut random);
                site.server.take().expect("a server runs").kill();
                killed.store(true, Relaxed);
                // First the server: until the mover's process has begun its program, it may wait for the mount.
                site.server = Some(volume.serve(&[]));
                mover.join().expect("a move ends");
            });
            a_while(&mut random);
        });
        for writer in &mut writers {
            assert!(writer.unanswered.is_none(), "{writer:?} though the server came back");
            writer.check(&format!("death {death} during moves"));
        }
    }
    expect_work(&writers, 60);
    site.check();
}
