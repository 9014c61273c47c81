//! An unmount leaves everything written and all sizes recorded, or reports the obstacle and the remedy.

mod common;

use common::mounted::is_mounted;
use common::{SHORT, Volume, run, until, varve};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The process of a mount that was taken away by force ends in this time, whatever the timeout of its calls.
const ENDED_MAX: Duration = Duration::from_secs(15);

/// Beyond the inline limit of the volume.
const LARGE: &[u8] = &[7; 10_000];

/// After a clean unmount, the rows have the sizes of large files, also if the server has just started: it knows their
/// writer.
#[test]
fn clean_unmount_records_file_sizes() {
    let volume = Volume::format(&["--shards", "4", "--inline-limit", "4KiB"]);
    for round in ["made", "written again"] {
        let server = volume.serve(&[]);
        let mount = volume.mount(&[]);
        let root = volume.mount_point();
        for number in 0..20 {
            fs::write(root.join(format!("truncated-{number}")), LARGE).expect("a large file");
            let mut grown = OpenOptions::new().create(true).append(true).open(root.join(format!("grown-{number}")));
            grown.as_mut().expect("a file").write_all(LARGE).expect("it can be written");
        }
        mount.unmount();
        server.stop();
        let report = run(varve().args(["--json", "fsck"]).arg(volume.store()), SHORT).succeeded("varve fsck").json();
        assert_eq!(report["findings"].as_array().map(Vec::len), Some(0), "{round}: {report}");
        assert_eq!(report["counts"]["files_backing"], 40, "{round}");
    }
}

/// A server that was started later has to wait for the clients of the one before it, which may write the same files. An
/// unmount waits with it, or reports that it did not.
#[test]
fn unmount_after_server_restart_records_file_sizes() {
    for deadline in ["1m", "5s"] {
        let volume = Volume::format(&["--shards", "4", "--inline-limit", "4KiB"]);
        let server = volume.serve(&[]);
        let mount = volume.mount(&["-o", &format!("deadline={deadline}")]);
        let root = volume.mount_point();
        for number in 0..20 {
            fs::write(root.join(format!("large-{number}")), LARGE).expect("a large file");
        }
        server.kill();
        let server = volume.serve(&[]);
        let unmounted = run(varve().arg("umount").arg(&root), SHORT).succeeded("varve umount");
        let printed = mount.log();
        drop(mount);
        server.stop();
        let checked = run(varve().args(["--json", "fsck"]).arg(volume.store()), SHORT).succeeded("varve fsck").json();
        let settled = checked["findings"].as_array().map(Vec::len) == Some(0);
        assert_eq!(
            (settled, printed.contains("too recently to know their other writers")),
            (deadline == "1m", deadline == "5s")
        );
        assert_eq!(unmounted.stderr.contains("waiting, "), settled, "{}", unmounted.stderr);
        assert_eq!(unmounted.stdout.contains("20 large files are not recorded"), !settled, "{}", unmounted.stdout);
    }
}

/// An unmount with a short limit reports that the volume is unmounted and which process is still working. That process
/// records the sizes.
#[test]
fn unmount_without_wait_leaves_the_process_writing() {
    let volume = Volume::format(&["--shards", "4", "--inline-limit", "4KiB"]);
    let server = volume.serve(&[]);
    let mut mount = volume.mount(&[]);
    let root = volume.mount_point();
    fs::write(root.join("large"), LARGE).expect("a large file");
    server.kill();
    let server = volume.serve(&[]);
    let unmounted = run(varve().args(["umount", "--wait", "1s"]).arg(&root), SHORT);
    assert_eq!(unmounted.code(), Some(1), "{}", unmounted.stdout);
    let still = format!("is unmounted, but its process {} is still at work", mount.pid());
    assert!(unmounted.stderr.contains(&still), "{}", unmounted.stderr);
    assert!(!unmounted.stderr.contains("cannot unmount"), "{}", unmounted.stderr);
    assert!(!is_mounted(&root));
    mount.expect_end();
    server.stop();
    volume.expect_sound();
}

/// The stale sizes of a dead writer are one line, not one per file.
#[test]
fn fsck_counts_and_lists_crash_leftovers() {
    let volume = Volume::format(&["--shards", "2", "--inline-limit", "4KiB"]);
    let mut mount = volume.mount(&[]);
    for number in 0..20 {
        fs::write(volume.mount_point().join(format!("large-{number}")), LARGE).expect("a large file");
    }
    mount.kill_process();
    mount.bury();
    let lines = |flags: &[&str]| {
        let checked = run(varve().arg("fsck").args(flags).arg(volume.store()), SHORT).succeeded("varve fsck");
        checked.stdout.lines().filter(|line| line.contains("unsettled-size")).count()
    };
    assert_eq!((lines(&[]), lines(&["--verbose"])), (1, 21));
}

/// A mount whose server is gone stays, and is given up on the user's request.
#[test]
fn mount_without_server_can_be_abandoned() {
    let volume = Volume::format(&["--shards", "2"]);
    let server = volume.serve(&[]);
    let mount = volume.mount(&["-o", "deadline=2s"]);
    let root = volume.mount_point();
    fs::write(root.join("closed"), "closed").expect("a file");
    drop(File::open(root.join("closed")).expect("it can be opened"));
    server.kill();
    let status = run(varve().arg("status").arg(volume.store()), SHORT);
    assert!(status.stdout.contains("does not answer: a server, process "), "{}", status.stdout);
    let refused = run(varve().arg("umount").arg(&root), SHORT);
    assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
    assert!(refused.stderr.contains("umount --force"), "{}", refused.stderr);
    assert!(is_mounted(&root));
    let given_up = run(varve().args(["umount", "--force"]).arg(&root), SHORT);
    assert_eq!(given_up.code(), Some(3), "{}\n{}", given_up.stdout, given_up.stderr);
    assert!(given_up.stdout.contains("not everything was written"), "{}", given_up.stdout);
    assert!(!is_mounted(&root));
    drop(mount);
    let mount = volume.mount(&[]);
    assert_eq!(fs::read_to_string(root.join("closed")).expect("it was acknowledged"), "closed");
    mount.unmount();
    volume.expect_sound();
}

/// An unmount with a limit waits no longer than that, even if the mount itself waits much longer for its server.
#[test]
fn unmount_waits_at_most_its_limit() {
    let volume = Volume::format(&["--shards", "2"]);
    let server = volume.serve(&[]);
    let mount = volume.mount(&["-o", "deadline=10m,noembedded"]);
    let root = volume.mount_point();
    fs::write(root.join("closed"), "closed").expect("a file");
    server.kill();
    let refused = run(varve().args(["umount", "--wait", "2s"]).arg(&root), SHORT);
    assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
    assert!(refused.stderr.contains("for 2s") && refused.stderr.contains("umount --force"), "{}", refused.stderr);
    assert!(is_mounted(&root));
    let given_up = run(varve().args(["umount", "--force", "--wait", "2s"]).arg(&root), SHORT);
    assert_eq!(given_up.code(), Some(3), "{}\n{}", given_up.stdout, given_up.stderr);
    assert!(given_up.stdout.contains("not everything was written"), "{}", given_up.stdout);
    assert!(!is_mounted(&root));
    drop(mount);
    let mount = volume.mount(&[]);
    assert_eq!(fs::read_to_string(root.join("closed")).expect("it was acknowledged"), "closed");
    let unmounted = run(varve().args(["umount", "--wait", "60s"]).arg(&root), SHORT);
    unmounted.succeeded("varve umount");
    drop(mount);
    volume.expect_sound();
}

/// The message at the deadline names the holder of the mount and the remedy. Other mounts are not touched.
#[test]
fn an_unmount_that_is_too_late_says_what_holds_the_mount() {
    let volume = Volume::format(&["--shards", "2"]);
    let mount = volume.mount(&[]);
    let root = volume.mount_point();
    // If this process held a file, each process that it starts would flush the file and wait for that.
    let mut holder = Command::new("sleep").arg("600").current_dir(&root).spawn().expect("sleep");
    mount.hang();
    let refused = run(varve().args(["umount", "--wait", "1s"]).arg(&root), SHORT);
    mount.go_on();
    assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
    let own = format!("process {} ", holder.id());
    for words in ["for 1s", &own, "its working directory is there", "--wait", "umount --force"] {
        assert!(refused.stderr.contains(words), "{words}: {}", refused.stderr);
    }
    assert!(is_mounted(&root));
    holder.kill().expect("it is there");
    holder.wait().expect("it ends");
    mount.unmount();
}

/// A process that closes a file of a hanging mount to start a program hangs in the kernel, which then does not show its
/// other mappings. The unmount does not wait for them.
#[test]
fn unmount_does_not_wait_for_a_hung_process() {
    const SCRIPT: &str = "import os, sys
file = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(file, b'x')
print('open', flush=True)
sys.stdin.readline()
os.execvp('sleep', ['sleep', '60'])";
    let volume = Volume::format(&["--shards", "2"]);
    let mount = volume.mount(&[]);
    let root = volume.mount_point();
    let mut python = Command::new("python3");
    python.args(["-c", SCRIPT]).arg(root.join("file")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut holder = python.spawn().expect("python3");
    let mut printed = String::new();
    BufReader::new(holder.stdout.take().expect("piped")).read_line(&mut printed).expect("it says so");
    assert_eq!(printed, "open\n");
    mount.hang();
    writeln!(holder.stdin.take().expect("piped")).expect("it listens");
    // The process holds the mount until it reaches that state.
    until("the mount is taken away", SHORT, || {
        let given_up = run(varve().args(["umount", "--force", "--wait", "2s"]).arg(&root), SHORT);
        assert!(given_up.code() == Some(3) || given_up.stderr.contains("a file open there"), "{}", given_up.stderr);
        given_up.code() == Some(3)
    });
    mount.go_on();
    holder.kill().expect("it is there");
    holder.wait().expect("it ends");
    assert!(!is_mounted(&root));
}

/// A forced unmount during changes ends the calls in progress, and loses no acknowledged change.
#[test]
fn forced_unmount_aborts_pending_calls() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: only root takes mounts away by force");
    }
    let volume = Volume::format(&["--shards", "4"]);
    let mut mount = volume.mount(&[]);
    let root = volume.mount_point();
    // With this file open, the unmount is refused because the mount is in use, and still ends all requests.
    let held = File::create(root.join("held")).expect("a file");
    let made = AtomicUsize::new(0);
    let make_until_refused = |maker: usize| {
        let path = |number: usize| root.join(format!("{maker}-{number}"));
        (0..).find(|number| {
            let all_well =
                File::create(path(*number)).is_ok() && (number % 2 == 0 || fs::remove_file(path(*number)).is_ok());
            made.fetch_add(1, Relaxed);
            !all_well
        })
    };
    let lasts: Vec<usize> = std::thread::scope(|scope| {
        let makers: Vec<_> = (0..4).map(|maker| scope.spawn(move || make_until_refused(maker))).collect();
        until("files are made", SHORT, || made.load(Relaxed) > 400);
        run(Command::new("umount").arg("-f").arg(&root), SHORT);
        makers.into_iter().map(|maker| maker.join().expect("it makes files").expect("it is refused")).collect()
    });
    mount.expect_end();
    drop(held);
    mount.bury();
    volume.expect_sound();
    let mount = volume.mount(&[]);
    for (maker, last) in lasts.into_iter().enumerate() {
        for number in 0..last {
            let found = root.join(format!("{maker}-{number}")).exists();
            assert_eq!(found, number % 2 == 0, "{maker}-{number} of {last}");
        }
    }
    mount.unmount();
}

#[test]
fn missing_mount_is_reported_once() {
    let refused = run(varve().args(["umount", "nope"]), SHORT);
    assert_eq!(refused.code(), Some(1));
    assert_eq!(refused.stderr.matches("cannot unmount").count(), 1, "{}", refused.stderr);
}

/// A user of umount(8), which returns before the mount's process has closed the volume, may use the volume at once.
#[test]
fn volume_is_usable_right_after_umount8() {
    let volume = Volume::format(&["--shards", "64"]);
    let root = volume.mount_point();
    for (round, options) in ["rw", "fsname=elsewhere", "rw"].into_iter().enumerate() {
        let mut mount = volume.mount(&["-o", options]);
        for number in 0..200 {
            fs::write(root.join(format!("{round}-{number}")), LARGE).expect("a file");
        }
        run(Command::new("umount").arg(&root), SHORT).succeeded("umount");
        volume.expect_sound();
        mount.expect_end();
        let mut mount = volume.mount(&[]);
        fs::write(root.join("again"), LARGE).expect("a file");
        run(Command::new("umount").arg(&root), SHORT).succeeded("umount");
        let next = volume.mount(&[]);
        mount.expect_end();
        assert_eq!(fs::read_dir(&root).expect("it can be read").count(), 200 * (round + 1) + 1);
        next.unmount();
    }
}

/// A forced unmount does not wait as long as the mount waits for its server, and ends the calls that wait.
#[test]
fn forced_unmount_ends_waiting_calls() {
    let volume = Volume::format(&["--shards", "2"]);
    let server = volume.serve(&[]);
    let mut mount = volume.mount(&["-o", "deadline=10m,noembedded"]);
    let root = volume.mount_point();
    fs::create_dir(root.join("directory")).expect("a directory");
    server.hang();
    let mut waiting = Command::new("stat").arg("-f").arg(root.join("directory/absent")).spawn().expect("stat");
    until("stat waits for the server", SHORT, || {
        fs::read_to_string(format!("/proc/{}/stack", waiting.id())).is_ok_and(|stack| stack.contains("fuse"))
    });
    let given_up = run(varve().args(["umount", "--force"]).arg(&root), SHORT);
    assert_eq!(given_up.code(), Some(3), "{}\n{}", given_up.stdout, given_up.stderr);
    assert!(!is_mounted(&root));
    until("the waiting call ends", SHORT, || waiting.try_wait().expect("a child").is_some());
    let begun = Instant::now();
    mount.expect_end();
    assert!(begun.elapsed() < ENDED_MAX, "its process went on for {:?}", begun.elapsed());
    server.go_on();
    drop(mount);
    server.stop();
    volume.expect_sound();
}
