//! A store's directory that is moved away while it is in use, and returns.

use super::common::{Mount, SHORT, Server, Volume, run, until, varve};
use super::{Kept, RECOVERY, comes_back, expect_no_panic};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Longer than the sync interval and than the first attempts to reopen a shard.
const AWAY: Duration = Duration::from_secs(8);
const FLAGS: [&str; 4] = ["--shards", "4", "--inline-limit", "4KiB"];
const OPTIONS: &str = "deadline=5s,noembedded";
const EMBEDDED: &str = "deadline=5s";

/// The replies that a worker got.
#[derive(Default)]
struct SeenReplies {
    kept: Kept,
    /// Errnos other than success, of changes and of reads of existing files.
    refusals: BTreeSet<i32>,
}

/// Makes and fsyncs files, reads earlier ones again and lists, whatever the result, until `done`.
fn work(directory: &Path, worker: usize, done: &AtomicBool) -> SeenReplies {
    let mut seen = SeenReplies::default();
    let note = |result: io::Result<()>, refusals: &mut BTreeSet<i32>| {
        refusals.extend(result.err().map(|error| error.raw_os_error().unwrap_or_default()));
    };
    for number in 0.. {
        if done.load(Relaxed) {
            break;
        }
        let name = format!("d{}/w{worker}-{number}", number % 8);
        let made = seen.kept.write_one(directory, &name, if number % 5 == 0 { 20_000 } else { 300 });
        note(made, &mut seen.refusals);
        let earlier: Vec<_> = seen.kept.files.iter().step_by(17).map(|(name, bytes)| (name, bytes.len())).collect();
        for (name, length) in earlier {
            let read = fs::read(directory.join(name)).map(|found| assert_eq!(found.len(), length, "{name}"));
            note(read, &mut seen.refusals);
        }
        let listed = fs::read_dir(directory).and_then(|entries| entries.collect::<io::Result<Vec<_>>>());
        note(listed.map(|names| assert_eq!(names.len(), 8)), &mut seen.refusals);
        std::thread::sleep(Duration::from_millis(2));
    }
    seen
}

fn make_directories(directory: &Path) {
    (0..8).for_each(|number| fs::create_dir(directory.join(format!("d{number}"))).expect("a directory"));
}

/// Moves the store away for a while under load and back. Returns the files that must exist.
fn moved_and_back(volume: &Volume, directory: &Path) -> Kept {
    replaced_and_back(volume, &volume.store(), directory, None)
}

/// Moves the store or a directory in it away and back, with `other` in its place in between.
fn replaced_and_back(volume: &Volume, part: &Path, directory: &Path, other: Option<&Path>) -> Kept {
    let aside = volume.beside("aside");
    let done = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let done = &done;
        let workers: Vec<_> = (0..3).map(|worker| scope.spawn(move || work(directory, worker, done))).collect();
        std::thread::sleep(Duration::from_secs(2));
        fs::rename(part, &aside).expect("it goes");
        other.into_iter().for_each(|other| fs::rename(other, part).expect("another comes"));
        let begun = Instant::now();
        while begun.elapsed() < AWAY {
            assert_eq!(part.exists(), other.is_some(), "something took its place");
            std::thread::sleep(Duration::from_millis(50));
        }
        other.into_iter().for_each(|other| fs::rename(part, other).expect("another goes"));
        fs::rename(&aside, part).expect("it comes back");
        done.store(true, Relaxed);
        workers.into_iter().map(|worker| worker.join().expect("a worker")).collect::<Vec<_>>()
    });
    // A worker may need nothing of an unreachable part, or may wait until the part is back.
    let refused = seen.iter().any(|worker| !worker.refusals.is_empty());
    assert!(refused || part != volume.store(), "nothing failed");
    let mut kept = Kept::default();
    for SeenReplies { kept: of_worker, refusals } in seen {
        // A busy machine may exceed the deadline. But no existing file may be reported as missing.
        let others: Vec<_> = refusals.iter().filter(|errno| ![libc::EIO, libc::ETIMEDOUT].contains(errno)).collect();
        assert!(others.is_empty(), "{:?}", others.iter().map(|errno| io::Error::from_raw_os_error(**errno)));
        kept.files.extend(of_worker.files);
    }
    kept
}

/// Checks that all files exist, and that new files can be made, by the same mount.
fn goes_on(kept: &mut Kept, mount: &Mount) {
    comes_back("writing", || kept.write_one(&mount.directory, "d1/after", 5_000));
    for number in 0..8 {
        comes_back("listing", || {
            fs::read_dir(mount.directory.join(format!("d{number}")))?.try_for_each(|name| name.map(drop))
        });
    }
    until("all files can be read", RECOVERY, || {
        kept.files.keys().all(|name| fs::metadata(mount.directory.join(name)).is_ok())
    });
    kept.expect(&mount.directory);
}

#[test]
fn unreachable_store_works_again_when_it_returns() {
    let volume = Volume::format(&FLAGS);
    let server = volume.serve(&[]);
    let mount = volume.mount(&["-o", OPTIONS]);
    make_directories(&mount.directory);
    let mut kept = moved_and_back(&volume, &mount.directory);
    goes_on(&mut kept, &mount);
    let status = run(varve().arg("status").arg(volume.store()).arg("--shards"), SHORT).succeeded("varve status");
    assert!(!status.stdout.contains("problem"), "{}", status.stdout);
    expect_no_panic("the server", &server.log());
    mount.unmount();
    server.stop();
    volume.expect_sound();
    let mount = volume.mount(&[]);
    kept.expect(&mount.directory);
    mount.unmount();
}

#[test]
fn embedded_mount_recovers_when_its_store_returns() {
    let volume = Volume::format(&FLAGS);
    let mount = volume.mount(&["-o", EMBEDDED]);
    make_directories(&mount.directory);
    let mut kept = moved_and_back(&volume, &mount.directory);
    goes_on(&mut kept, &mount);
    expect_no_panic("the mount", &mount.log());
    mount.unmount();
    volume.expect_sound();
}

/// A copy of the store has the same names of tables and files as the store, and even its key. Nothing is written or
/// removed in it.
#[test]
fn copy_in_place_of_the_store_is_not_used() {
    for (options, served) in [(EMBEDDED, false), (OPTIONS, true)] {
        let volume = Volume::format(&FLAGS);
        let server = served.then(|| volume.serve(&[]));
        let mount = volume.mount(&["-o", options]);
        make_directories(&mount.directory);
        let before = mount.directory.join("d0/before");
        fs::write(&before, vec![1; 100_000]).expect("a large file");
        let open = fs::File::options().write(true).open(&before).expect("it is opened");
        open.sync_all().expect("it is on disk");
        let copy = volume.beside("copy");
        run(Command::new("cp").arg("-a").arg(volume.store()).arg(&copy), SHORT).succeeded("cp");
        let whole = tree(&copy);
        let mut kept = replaced_and_back(&volume, &volume.store(), &mount.directory, Some(&copy));
        assert_eq!(tree(&copy), whole, "the copy is as it was");
        goes_on(&mut kept, &mount);
        drop(open);
        mount.unmount();
        server.into_iter().for_each(Server::stop);
        volume.expect_sound();
    }
}

/// If a part of the volume's directory alone is moved away, it is not made anew. A copy or an empty directory in its
/// place stays unchanged: anything written there would be lost.
#[test]
fn missing_part_of_the_store_is_waited_for() {
    for (part, other, options, served) in [
        ("data", None, OPTIONS, true),
        ("data", Some("copy"), EMBEDDED, false),
        ("shards/0001", Some("empty"), OPTIONS, true),
        ("shards", Some("empty"), EMBEDDED, false),
    ] {
        let volume = Volume::format(&FLAGS);
        let server = served.then(|| volume.serve(&[]));
        let mount = volume.mount(&["-o", options]);
        make_directories(&mount.directory);
        fs::write(mount.directory.join("d0/before"), vec![1; 100_000]).expect("a large file");
        let (part, instead) = (volume.store().join(part), volume.beside("instead"));
        match other {
            Some("copy") => {
                run(Command::new("cp").arg("-a").arg(&part).arg(&instead), SHORT).succeeded("cp");
            }
            Some(_) => fs::create_dir(&instead).expect("an empty directory"),
            None => {}
        }
        let whole = instead.exists().then(|| tree(&instead));
        let mut kept = replaced_and_back(&volume, &part, &mount.directory, other.map(|_| instead.as_path()));
        assert_eq!(instead.exists().then(|| tree(&instead)), whole, "{}: {other:?} is as it was", part.display());
        goes_on(&mut kept, &mount);
        mount.unmount();
        server.into_iter().for_each(Server::stop);
        volume.expect_sound();
    }
}

/// All files below a directory, with their bytes.
fn tree(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("a name").path()) {
            match entry.is_dir() {
                true => directories.push(entry),
                false => drop(files.insert(entry.clone(), fs::read(entry).unwrap_or_default())),
            }
        }
    }
    files
}

/// The unmount is the first operation after the store's return: it writes everything.
#[test]
fn unmount_after_store_return_writes_everything() {
    let volume = Volume::format(&FLAGS);
    let mount = volume.mount(&["-o", "deadline=60s"]);
    make_directories(&mount.directory);
    let kept = moved_and_back(&volume, &mount.directory);
    mount.unmount_at_once();
    volume.expect_sound();
    let mount = volume.mount(&[]);
    kept.expect(&mount.directory);
    mount.unmount();
}

/// Only the unmount could notice that the store was unreachable. This cost nothing, so it reports no trouble. It also
/// records the sizes that could not be recorded before.
#[test]
fn unmount_succeeds_once_the_store_returned() {
    // A busy machine takes longer than some seconds to reopen shards.
    for (options, served) in [("deadline=60s", false), ("deadline=60s,noembedded", true)] {
        let volume = Volume::format(&FLAGS);
        let server = served.then(|| volume.serve(&[]));
        let mount = volume.mount(&["-o", options]);
        make_directories(&mount.directory);
        let (store, aside) = (volume.store(), volume.beside("aside"));
        let content = |number: usize| vec![number as u8; if number.is_multiple_of(2) { 300 } else { 50_000 }];
        let path = |number: usize| volume.mount_point().join(format!("d{}/{number}", number % 8));
        (0..64).for_each(|number| fs::write(path(number), content(number)).expect("a file"));
        fs::rename(&store, &aside).expect("the store goes");
        std::thread::sleep(AWAY);
        fs::rename(&aside, &store).expect("the store comes back");
        mount.unmount_at_once();
        if let Some(server) = server {
            server.stop();
        }
        let report = run(varve().args(["--json", "fsck"]).arg(volume.store()), SHORT).succeeded("varve fsck").json();
        assert_eq!(report["findings"].as_array().map(Vec::len), Some(0), "{options}: {report}");
        let mount = volume.mount(&[]);
        (0..64).for_each(|number| assert!(fs::read(path(number)).expect("it is there") == content(number), "{number}"));
        mount.unmount();
    }
}

/// The stop of the server is the first operation after the store's return. The server finds that nothing is lost, and
/// stops cleanly.
#[test]
fn server_stops_cleanly_after_store_return() {
    let volume = Volume::format(&FLAGS);
    let server = volume.serve(&[]);
    let mut mount = volume.mount(&["-o", OPTIONS]);
    make_directories(&mount.directory);
    let path = |number: usize| volume.mount_point().join(format!("d{}/{number}", number % 8));
    (0..64).for_each(|number| fs::write(path(number), [number as u8; 300]).expect("a file"));
    let (store, aside) = (volume.store(), volume.beside("aside"));
    fs::rename(&store, &aside).expect("the store goes");
    std::thread::sleep(AWAY);
    // Otherwise the mount would notice first what the server is to notice.
    mount.kill_process();
    mount.bury();
    fs::rename(&aside, &store).expect("the store comes back");
    server.stop();
    volume.expect_sound();
    let mount = volume.mount(&[]);
    (0..64).for_each(|number| assert_eq!(fs::read(path(number)).expect("it is there"), [number as u8; 300]));
    mount.unmount();
}

/// This is the state when the store's file system is unmounted and its bare mount point is left. Files that outgrow
/// their rows in this state fail, and are not made there, where nobody would find them again.
#[test]
fn replacement_directory_stays_untouched() {
    for options in [EMBEDDED, OPTIONS] {
        let volume = Volume::format(&FLAGS);
        let server = (options == OPTIONS).then(|| volume.serve(&[]));
        let mount = volume.mount(&["-o", options]);
        let (store, aside) = (volume.store(), volume.beside("aside"));
        let mut kept = Kept::default();
        kept.write(&mount.directory, "before");
        fs::rename(&store, &aside).expect("the store goes");
        fs::create_dir(&store).expect("another takes its place");
        let content = vec![7; 100_000];
        let made = |number: &usize| fs::write(mount.directory.join(format!("large {number}")), &content).is_ok();
        let acknowledged: Vec<_> = (0..20).filter(made).collect();
        let found = fs::read_dir(&store).expect("it can be listed").count();
        fs::remove_dir_all(&store).expect("it goes");
        fs::rename(&aside, &store).expect("the store comes back");
        assert_eq!(found, 0, "made in its place");
        comes_back("writing", || kept.write_one(&mount.directory, "after", 50_000));
        kept.expect(&mount.directory);
        for number in acknowledged {
            let read = fs::read(mount.directory.join(format!("large {number}"))).expect("it was written");
            assert!(read == content, "large {number} is another");
        }
        mount.unmount_within(RECOVERY);
        if let Some(server) = server {
            server.stop();
        }
        volume.expect_sound();
    }
}
