//! A mount that starts while its server starts.

use super::common::{SHORT, Volume, must, run, until, varve};
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::{Duration, Instant};

/// Half the time that a mount waits for a server that has not published its addresses.
const WAITED_FOR_NOBODY: Duration = Duration::from_secs(10);

/// `varve serve … & varve mount -o noembedded …`: the mount waits for the server, which has taken the volume's lock, or
/// is about to, and has not published its addresses yet.
#[test]
fn mount_waits_for_a_starting_server() {
    for _ in 0..3 {
        let volume = Volume::format(&["--shards", "64"]);
        let (server, mount) = std::thread::scope(|scope| {
            let serving = scope.spawn(|| volume.serve(&[]));
            until("the server's process is begun", SHORT, || volume.beside("server.log").exists());
            let mount = volume.mount(&["-o", "noembedded"]);
            (serving.join().expect("it serves"), mount)
        });
        std::fs::write(mount.directory.join("file"), "").expect("it can be used");
        mount.unmount();
        server.stop();
    }
}

/// `varve serve … & varve mount …` after an embedded mount was killed. The record that the mount left does not describe
/// the server, which has taken the lock and has not published its addresses yet. The new mount waits for the server,
/// and not for itself.
#[test]
fn mount_succeeds_after_a_killed_mount() {
    let volume = Volume::format(&["--shards", "64"]);
    for round in 0..3 {
        let mut killed = volume.mount(&[]);
        std::fs::write(killed.directory.join("file"), [round]).expect("it can be used");
        killed.kill_process();
        killed.bury();
        let (server, mount) = std::thread::scope(|scope| {
            let serving = scope.spawn(|| volume.serve(&[]));
            until("the server has taken the volume", SHORT, || is_locked(&volume));
            let mount = volume.mount(&[]);
            (serving.join().expect("it serves"), mount)
        });
        std::fs::write(mount.directory.join("other"), [round]).expect("it can be used");
        mount.unmount();
        server.stop();
    }
    volume.expect_sound();
}

/// Whether some process holds the volume's lock. The test does not block a server that takes it.
fn is_locked(volume: &Volume) -> bool {
    let lock = varve_env::volume_dir::VolumeDir::new(volume.store()).lock_file();
    let inode = std::fs::metadata(lock).expect("a mount has made it").ino();
    let locks = std::fs::read_to_string("/proc/locks").expect("proc(5) is there");
    locks.lines().any(|line| line.contains("FLOCK") && line.contains(&format!(":{inode} ")))
}

/// A client of a killed server gets an error that says so. The error does not say that the dead process does not
/// answer.
#[test]
fn mount_reports_a_killed_server() {
    let volume = Volume::format(&["--shards", "2"]);
    let server = volume.serve(&[]);
    let pid = server.pid();
    server.kill();
    let mut mount = varve();
    mount.arg("mount").arg(volume.store()).arg(volume.mount_point()).args(["-f", "-o", "noembedded"]);
    let refused = run(&mut mount, SHORT);
    assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
    let reported =
        refused.stderr.contains("nobody serves the volume") && refused.stderr.contains(&format!("process {pid} on"));
    assert!(reported && refused.stderr.contains("varve serve"), "{}", refused.stderr);
}

/// A mount in a container finds the host's server, although its process number belongs to another process there, or to
/// none.
#[test]
fn a_mount_in_another_pid_namespace_finds_the_server() {
    if !rustix::process::geteuid().is_root() {
        // Only root can make such a namespace on every machine.
        return;
    }
    let volume = Volume::format(&["--shards", "2"]);
    let server = volume.serve(&[]);
    let script = "\"$0\" mount \"$1\" \"$2\" --log-file \"$1.log\" && echo inside >\"$2/file\" && \"$0\" umount \"$2\"";
    let mut unshare = Command::new("unshare");
    unshare.args(["--pid", "--fork", "--mount-proc", "sh", "-ec", script, env!("CARGO_BIN_EXE_varve")]);
    let begun = Instant::now();
    must(unshare.arg(volume.store()).arg(volume.mount_point()));
    assert!(begun.elapsed() < WAITED_FOR_NOBODY, "it took {:?}", begun.elapsed());
    let mount = volume.mount(&[]);
    assert_eq!(std::fs::read_to_string(mount.directory.join("file")).expect("it was made"), "inside\n");
    mount.unmount();
    server.stop();
}

/// A volume served by an embedded mount cannot be mounted again. The error names the holder. The second mount does not
/// wait, because the first one is in the mount table, also under another source than its store.
#[test]
fn a_mount_beside_an_embedded_one_is_refused() {
    let volume = Volume::format(&["--shards", "2"]);
    std::fs::create_dir(volume.beside("other")).expect("a directory to mount on");
    for options in ["rw", "fsname=elsewhere"] {
        let first = volume.mount(&["-o", options]);
        let mut second = varve();
        second.arg("mount").arg(volume.store()).arg(volume.beside("other")).arg("-f");
        let begun = Instant::now();
        let refused = run(&mut second, SHORT);
        assert!(begun.elapsed() < WAITED_FOR_NOBODY, "{options}: it took {:?}", begun.elapsed());
        assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
        let names = refused.stderr.contains(&format!("a mount, process {} on host", first.pid()));
        assert!(names && refused.stderr.contains("Unmount it there first"), "{}", refused.stderr);
        first.unmount();
    }
}

/// Without a server, running or starting, the mount reports that after a while.
#[test]
fn mount_reports_missing_server() {
    let volume = Volume::format(&["--shards", "2"]);
    let mut mount = varve();
    mount.arg("mount").arg(volume.store()).arg(volume.mount_point()).args(["-f", "-o", "noembedded"]);
    let refused = run(&mut mount, SHORT);
    assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
    assert!(refused.stderr.contains("nobody serves the volume"), "{}", refused.stderr);
}
