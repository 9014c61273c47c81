//! Many concurrent callers with a separate server: more than the mount has threads, so that these take turns polling
//! for replies.

use crate::fixture::{Volume, can_mount};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A call that takes this long may have waited until a standby thread reached the end of its standby time.
const STOOD_BY: Duration = Duration::from_millis(15);

/// Three times as many as the mount has threads.
const CALLERS: usize = 12;
const ROUNDS: usize = 48;

/// Longer than any operation here takes on any machine.
const LONG: Duration = Duration::from_secs(10);

/// A call that takes this long may have been ignored by all threads of the mount until the next periodic check.
const LEFT_ALONE: Duration = Duration::from_millis(100);

fn is_absent(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

/// The steps of one caller in a shared directory, and the state that it must observe at each step.
fn make_look_and_remove(directory: &Path, beside: &Path, caller: usize, round: usize) {
    let at = |what: &str| directory.join(format!("{what}-{caller}-{round}"));
    let (file, other, moved, large) = (at("file"), at("link"), at("moved"), at("large"));
    assert!(is_absent(&file));
    fs::write(&file, format!("{caller} {round}")).unwrap();
    assert_eq!(fs::symlink_metadata(&file).unwrap().len(), format!("{caller} {round}").len() as u64);
    fs::hard_link(&file, &other).unwrap();
    fs::rename(&file, &moved).unwrap();
    assert!(is_absent(&file));
    assert_eq!(fs::read_to_string(&moved).unwrap(), format!("{caller} {round}"));
    if round.is_multiple_of(16) {
        // Each stat of it queries the store.
        fs::write(&large, vec![caller as u8; 100_000]).unwrap();
        assert_eq!(fs::symlink_metadata(&large).unwrap().len(), 100_000);
        fs::create_dir(at("directory")).unwrap();
        assert!(fs::symlink_metadata(at("directory")).unwrap().is_dir());
        // Through the other mount, which has not seen it before.
        assert_eq!(fs::read(beside.join(large.file_name().unwrap())).unwrap(), vec![caller as u8; 100_000]);
        fs::remove_dir(at("directory")).unwrap();
        fs::remove_file(&large).unwrap();
    }
    fs::remove_file(&other).unwrap();
    fs::remove_file(&moved).unwrap();
    assert!(is_absent(&moved) && is_absent(&other));
}

/// Promise: under concurrency every caller gets the reply to its own request, whichever thread delivers it.
#[test]
fn concurrent_callers_get_their_own_replies() {
    if !can_mount() {
        return;
    }
    for list in ["", "threads=1"] {
        let (volume, beside) = Volume::mounted_twice(list);
        fs::create_dir(volume.join("shared")).unwrap();
        let (here, there) = (volume.join("shared"), beside.join("shared"));
        std::thread::scope(|scope| {
            for caller in 0..CALLERS {
                let (here, there) = (&here, &there);
                scope.spawn(move || (0..ROUNDS).for_each(|round| make_look_and_remove(here, there, caller, round)));
            }
        });
        assert_eq!(fs::read_dir(&here).unwrap().count(), 0);
        beside.close();
        volume.close();
    }
}

/// A process that stats files for ever.
fn looker(directory: &Path) -> Child {
    let script = "while :; do for file in \"$0\"/*; do [ -e \"$file\" ]; done; done";
    Command::new("sh").args(["-c", script]).arg(directory).spawn().expect("a shell")
}

/// The duration of a stat of `file`.
fn takes(file: &Path) -> Duration {
    let begun = Instant::now();
    assert_eq!(fs::symlink_metadata(file).unwrap().len(), 1);
    begun.elapsed()
}

fn files(volume: &Volume) -> Vec<PathBuf> {
    fs::create_dir(volume.join("files")).unwrap();
    let files: Vec<_> = (0..200).map(|number| volume.join("files").join(number.to_string())).collect();
    files.iter().for_each(|file| fs::write(file, "x").unwrap());
    files
}

/// Promise: callers that are killed during their calls leave no other caller waiting.
#[test]
fn killed_callers_block_nobody() {
    if !can_mount() {
        return;
    }
    let (volume, beside) = Volume::mounted_twice("threads=2");
    let files = files(&volume);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|caller| {
                let (files, done) = (&files, &done);
                scope.spawn(move || {
                    let calls = files.iter().cycle().skip(caller * 50).take_while(|_| !done.load(Relaxed));
                    calls.filter(|file| takes(file) > LEFT_ALONE).count()
                })
            })
            .collect();
        for _ in 0..30 {
            let mut lookers: Vec<_> = (0..4).map(|_| looker(&volume.join("files"))).collect();
            std::thread::sleep(Duration::from_millis(30));
            for looker in &mut lookers {
                looker.kill().unwrap();
                looker.wait().unwrap();
            }
        }
        done.store(true, Relaxed);
        let left_alone: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
        // Killed callers that block others delay them in each of the 30 rounds. A busy machine delays all of them at times.
        assert!(left_alone <= 20, "{left_alone} calls took longer than {LEFT_ALONE:?}");
    });
    beside.close();
    volume.close();
}

/// Promise: requests of unauthenticated users, which are refused before the volume sees them, do not delay the replies
/// to permitted users.
#[test]
fn unauthenticated_connections_do_not_delay_replies() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may call as somebody else");
        return;
    }
    let (volume, beside) = Volume::mounted_twice("allow_root,threads=2");
    let files = files(&volume);
    let mut unauthenticated: Vec<_> = (0..2)
        .map(|_| {
            let script = "while :; do [ -e \"$0\" ]; done";
            Command::new("sh").args(["-c", script]).arg(&files[0]).uid(65534).spawn().expect("a shell")
        })
        .collect();
    let done = AtomicBool::new(false);
    let left_alone: usize = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..2)
            .map(|caller| {
                let (files, done) = (&files, &done);
                scope.spawn(move || {
                    let calls = files.iter().cycle().skip(caller * 50).take_while(|_| !done.load(Relaxed));
                    calls.filter(|file| takes(file) > STOOD_BY).count()
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(2));
        done.store(true, Relaxed);
        callers.into_iter().map(|caller| caller.join().unwrap()).sum()
    });
    for unauthenticated in &mut unauthenticated {
        unauthenticated.kill().unwrap();
        unauthenticated.wait().unwrap();
    }
    // A busy machine may delay them.
    assert!(left_alone <= 40, "{left_alone} calls took longer than {STOOD_BY:?}");
    beside.close();
    volume.close();
}

/// Promise: a mount that is detached during calls of many callers ends, and so do the calls.
#[test]
fn unmount_ends_calls_of_many_callers() {
    if !can_mount() {
        return;
    }
    let (volume, beside) = Volume::mounted_twice("");
    let files = files(&volume);
    let ended = AtomicBool::new(false);
    let begun = std::thread::scope(|scope| {
        for caller in 0..CALLERS {
            let (files, ended) = (&files, &ended);
            scope.spawn(move || {
                let mut calls = files.iter().cycle().skip(caller * 16);
                while !ended.load(Relaxed) {
                    // By name; the name refers to another file once the mount is gone.
                    let _ = fs::symlink_metadata(calls.next().expect("it goes round"));
                }
            });
        }
        std::thread::sleep(Duration::from_millis(200));
        let begun = Instant::now();
        volume.unmounter().detach().unwrap();
        ended.store(true, Relaxed);
        begun
    });
    beside.close();
    volume.close();
    assert!(begun.elapsed() < LONG);
}
