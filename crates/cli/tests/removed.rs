//! Backing files of removed and replaced files are removed, whichever process is killed when.

mod common;

use common::{SHORT, Volume, run, until, varve};
use rustix::fs::{AtFlags, CWD};
use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// Several files for every shard.
const FILES: usize = 64;
/// Beyond the inline limit of the volume.
const LARGE: &[u8] = &[7; 10_000];
/// A server removes backing files within seconds; a slow machine takes longer.
const REMOVED: Duration = Duration::from_secs(60);
/// How long a shard waits for clients of the server before.
const SESSIONS_RETURN: Duration = Duration::from_secs(30);

fn volume() -> Volume {
    Volume::format(&["--shards", "4", "--split-threshold", "2", "--inline-limit", "4KiB"])
}

fn make_files(directory: &Path) {
    fs::create_dir(directory).expect("a directory");
    for number in 0..FILES {
        fs::write(directory.join(format!("removed-{number}")), LARGE).expect("a large file");
        fs::write(directory.join(format!("replaced-{number}")), LARGE).expect("a large file");
        fs::write(directory.join(format!("new-{number}")), LARGE).expect("a large file");
    }
}

/// Keeps a third of the files, under new names.
fn remove_and_replace(directory: &Path) {
    for number in 0..FILES {
        fs::remove_file(directory.join(format!("removed-{number}"))).expect("it can be removed");
        let (new, replaced) = (format!("new-{number}"), format!("replaced-{number}"));
        fs::rename(directory.join(new), directory.join(replaced)).expect("it can be replaced");
    }
}

fn backing_files(volume: &Volume) -> usize {
    let directories = fs::read_dir(volume.store().join("data")).expect("the volume has data");
    let files = |directory: fs::DirEntry| fs::read_dir(directory.path()).expect("a directory").count();
    directories.map(|directory| files(directory.expect("an entry"))).sum()
}

/// How many findings of `kind` the check has.
fn found(volume: &Volume, kind: &str) -> u64 {
    let report = run(varve().args(["--json", "fsck"]).arg(volume.store()), SHORT).json();
    assert_eq!(report["sound"], true, "{report}");
    let totals = report["totals"].as_array().expect("totals");
    totals.iter().find(|total| total["kind"] == kind).map_or(0, |total| total["found"].as_u64().expect("a number"))
}

fn expect_only_what_is_left(volume: &Volume) {
    until("the backing files of removed files are gone", REMOVED, || backing_files(volume) == FILES);
}

fn expect_content(directory: &Path) {
    for number in 0..FILES {
        assert_eq!(fs::read(directory.join(format!("replaced-{number}"))).expect("it is there"), LARGE);
    }
    assert_eq!(fs::read_dir(directory).expect("a directory").count(), FILES);
}

#[test]
fn restarted_server_removes_unlinked_backing_files() {
    let volume = volume();
    let server = volume.serve(&[]);
    let mount = volume.mount(&[]);
    let directory = volume.mount_point().join("directory");
    make_files(&directory);
    remove_and_replace(&directory);
    server.kill();
    assert_eq!(found(&volume, "stray-backing-file"), 0, "the check knows what was removed");
    let server = volume.serve(&[]);
    expect_only_what_is_left(&volume);
    expect_content(&directory);
    mount.unmount();
    server.stop();
    assert_eq!(found(&volume, "removed-content"), 0);
}

/// Promise: files that lost their names while they were open keep their content when the server is killed and started
/// again, although a split has moved names to shards that do not keep what is open. Closed, they are removed.
#[test]
fn killed_server_keeps_open_unlinked_files() {
    let volume = volume();
    let server = volume.serve(&["--workers", "2"]);
    let mount = volume.mount(&[]);
    let directory = volume.mount_point().join("directory");
    make_files(&directory);
    let open: Vec<_> = (0..FILES)
        .map(|number| fs::File::open(directory.join(format!("removed-{number}"))).expect("it can be opened"))
        .collect();
    remove_and_replace(&directory);
    server.kill();
    let server = volume.serve(&["--workers", "2"]);
    expect_content(&directory);
    // The server counts every file as open in its first half minute.
    std::thread::sleep(SESSIONS_RETURN + Duration::from_secs(2));
    let left = backing_files(&volume);
    assert!(left >= 2 * FILES, "only {left} files are left: the client has {FILES} open");
    for mut file in open {
        let mut content = Vec::new();
        file.read_to_end(&mut content).expect("it can be read");
        assert_eq!(content, LARGE);
    }
    expect_only_what_is_left(&volume);
    mount.unmount();
    server.stop();
    assert_eq!(found(&volume, "removed-content"), 0);
}

#[test]
fn repair_removes_unlinked_backing_files() {
    let volume = volume();
    let mut mount = volume.mount(&[]);
    let directory = volume.mount_point().join("directory");
    make_files(&directory);
    remove_and_replace(&directory);
    mount.kill_process();
    mount.bury();
    let repaired = run(varve().args(["--json", "fsck", "--repair"]).arg(volume.store()), SHORT).json();
    assert_eq!(repaired["sound"], true, "{repaired}");
    assert_eq!(backing_files(&volume), FILES);
    let mount = volume.mount(&[]);
    expect_content(&directory);
    assert!(!volume.mount_point().join("lost+found").exists(), "nothing that was removed comes back");
    mount.unmount();
}

/// Files that were unlinked while open, by a mount that is then killed.
#[test]
fn killed_mount_leaves_no_open_unlinked_files() {
    let volume = volume();
    let mut mount = volume.mount(&[]);
    let directory = volume.mount_point().join("directory");
    make_files(&directory);
    let open: Vec<_> = (0..FILES)
        .map(|number| fs::File::open(directory.join(format!("removed-{number}"))).expect("it can be opened"))
        .collect();
    remove_and_replace(&directory);
    drop(open);
    mount.kill_process();
    mount.bury();
    assert_eq!(found(&volume, "stray-backing-file"), 0);
    // A server waits half a minute for sessions that may return. A repair knows that none does.
    let repaired = run(varve().args(["--json", "fsck", "--repair"]).arg(volume.store()), SHORT).json();
    assert_eq!(repaired["sound"], true, "{repaired}");
    assert_eq!(backing_files(&volume), FILES);
    let mount = volume.mount(&[]);
    expect_content(&directory);
    mount.unmount();
}

/// Promise: a file without a name (O_TMPFILE) ends with a mount that is killed, and one that was named stays.
#[test]
fn killed_mount_leaves_no_unnamed_files() {
    let volume = volume();
    for embedded in [true, false] {
        let server = (!embedded).then(|| volume.serve(&[]));
        let mut mount = volume.mount(&[]);
        let at = volume.mount_point();
        let unnamed = |bytes: usize| {
            let mut options = fs::File::options();
            let mut file = options.read(true).write(true).custom_flags(libc::O_TMPFILE).open(&at).expect("O_TMPFILE");
            file.write_all(&vec![7; bytes]).expect("it can be written");
            file
        };
        let (small, large, named) = (unnamed(10), unnamed(300_000), unnamed(300_000));
        let path = at.join(if embedded { "named" } else { "named-too" });
        let from = format!("/proc/self/fd/{}", named.as_raw_fd());
        rustix::fs::linkat(CWD, from, CWD, &path, AtFlags::SYMLINK_FOLLOW).expect("it gets a name");
        named.sync_all().expect("it is synced");
        mount.kill_process();
        drop((small, large, named));
        mount.bury();
        if let Some(server) = server {
            server.stop();
        }
        let repaired = run(varve().args(["--json", "fsck", "--repair"]).arg(volume.store()), SHORT).json();
        assert_eq!(repaired["sound"], true, "{repaired}");
        assert_eq!(backing_files(&volume), if embedded { 1 } else { 2 });
        let mount = volume.mount(&[]);
        assert_eq!(fs::read(&path).expect("it is there"), vec![7; 300_000]);
        assert!(!at.join("lost+found").exists(), "nothing without a name comes back");
        mount.unmount();
    }
}
