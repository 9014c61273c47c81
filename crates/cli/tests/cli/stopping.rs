//! A mount that gets a stop signal while it is in use; and a benchmark.

use super::common::mounted::{Mount, is_mounted};
use super::common::{SHORT, Volume, must, scratch, until, varve};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::process::{Command, Stdio};

fn terminate(mount: &Mount) {
    must(Command::new("kill").arg(mount.pid().to_string()));
}

fn open(mount: &Mount) -> File {
    let path = mount.directory.join("open");
    let made = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    let mut file = made.expect("a file");
    file.write_all(b"before").expect("it can be written");
    file
}

fn read(mut file: &File) -> String {
    let mut text = String::new();
    file.rewind().and_then(|()| file.read_to_string(&mut text)).expect("it can be read");
    text
}

/// Checks the content of the volume afterwards.
fn expect_kept(volume: &Volume, content: &str) {
    volume.expect_sound();
    let mount = volume.mount(&[]);
    assert_eq!(fs::read_to_string(mount.directory.join("open")).expect("it is there"), content);
    mount.unmount();
}

/// One signal: the mount logs that it is busy and stays usable. When it is free, it ends without further messages.
#[test]
fn busy_mount_stops_when_it_becomes_free() {
    let volume = Volume::format(&["--shards", "2"]);
    let mut mount = volume.mount(&[]);
    let mut file = open(&mount);
    terminate(&mount);
    until("it says that it is busy", SHORT, || mount.log().contains("is unmounted when it is no longer in use"));
    assert!(mount.log().contains("is busy, held by"), "{}", mount.log());
    assert!(mount.log().contains(&format!("process {}", std::process::id())), "{}", mount.log());
    file.write_all(b" and after").expect("it is used on");
    fs::write(mount.directory.join("new"), "").expect("new files are made, too");
    assert!(is_mounted(&mount.directory));
    drop(file);
    mount.expect_end();
    assert!(!is_mounted(&mount.directory));
    assert_eq!(mount.log().matches("asked to stop").count(), 1, "{}", mount.log());
    expect_kept(&volume, "before and after");
}

/// Two signals: the mount is detached, and open files work until they are closed.
#[test]
fn second_stop_detaches_a_busy_mount() {
    let volume = Volume::format(&["--shards", "2"]);
    let mut mount = volume.mount(&[]);
    let mut file = open(&mount);
    terminate(&mount);
    until("it says that it is busy", SHORT, || mount.log().contains("is unmounted when it is no longer in use"));
    terminate(&mount);
    until("it is out of sight", SHORT, || !is_mounted(&mount.directory));
    until("it says so", SHORT, || mount.log().contains("is detached, and this process ends"));
    file.write_all(b" and after").expect("what is open is served");
    assert_eq!(read(&file), "before and after");
    assert_eq!(fs::read_dir(&mount.directory).expect("the directory beneath").count(), 0);
    drop(file);
    mount.expect_end();
    expect_kept(&volume, "before and after");
}

/// Two signals, with another mount over this one: the other mount stays. This mount is detached when it is uncovered,
/// though in use.
#[test]
fn twice_stopped_covered_mount_ends_when_uncovered() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may mount over a mount");
        return;
    }
    let volume = Volume::format(&["--shards", "2"]);
    let mut mount = volume.mount(&[]);
    let file = open(&mount);
    let cover = |arguments: &[&str]| {
        let done = Command::new(arguments[0]).args(&arguments[1..]).arg(&mount.directory).status().expect("a command");
        assert!(done.success());
    };
    cover(&["mount", "-t", "tmpfs", "varve-test"]);
    terminate(&mount);
    until("it says that it is busy", SHORT, || mount.log().contains("is unmounted when it is no longer in use"));
    terminate(&mount);
    until("it says what is in the way", SHORT, || mount.log().contains("when that mount is gone"));
    cover(&["umount"]);
    until("it is out of sight", SHORT, || !is_mounted(&mount.directory));
    until("it says so", SHORT, || mount.log().contains("is detached, and this process ends"));
    drop(file);
    mount.expect_end();
    expect_kept(&volume, "before");
}

/// The mount handles the second signal while the first one's sync waits for a dead server, for much longer than this
/// test. (The test holds a directory open and not a file: a process started in the meantime inherits it, and closing a
/// directory does not block.)
#[test]
fn second_signal_does_not_wait_for_the_first_sync() {
    let volume = Volume::format(&["--shards", "2"]);
    let server = volume.serve(&[]);
    let mut mount = volume.mount(&["-o", "deadline=10m,noembedded"]);
    fs::write(mount.directory.join("open"), "before").expect("a file");
    let held = File::open(&mount.directory).expect("a directory");
    server.kill();
    terminate(&mount);
    until("it says that it is busy", SHORT, || mount.log().contains("is unmounted when it is no longer in use"));
    terminate(&mount);
    until("it is out of sight", SHORT, || !is_mounted(&mount.directory));
    let server = volume.serve(&[]);
    drop(held);
    mount.expect_end();
    server.stop();
    expect_kept(&volume, "before");
}

/// An interrupted benchmark exits with the code for that, and leaves nothing behind.
#[test]
fn interrupted_benchmark_cleans_up() {
    let directory = scratch();
    let via = format!("path:{}", directory.path().display());
    let made = || fs::read_dir(directory.path()).expect("a directory").count();
    let workloads = [("INT", "stream"), ("TERM", "stream"), ("INT", "mdtest"), ("INT", "tree"), ("TERM", "tree")];
    for (signal, workload) in workloads {
        let mut bench = varve();
        bench.args(["bench", workload, "--repeat", "10000"]);
        match workload {
            "stream" => bench.args(["--clients", "1", "--via", &via, "--bytes", "1MiB"]),
            "mdtest" => bench.args(["--clients", "1", "--via", &via, "--files", "100"]),
            _ => bench.args(["--names", "100", "--files", "100"]).arg(directory.path()),
        };
        let child = bench.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("varve runs");
        until("it is at work", SHORT, || made() > 0);
        must(Command::new("kill").args(["-s", signal, &child.id().to_string()]));
        let ended = child.wait_with_output().expect("varve ends");
        assert_eq!(ended.status.code(), Some(130), "{ended:?}");
        assert!(String::from_utf8_lossy(&ended.stderr).contains("was interrupted"), "{ended:?}");
        assert_eq!(made(), 0);
    }
}
