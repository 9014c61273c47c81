//! A mount that is begun while its server is.

use super::common::{SHORT, Volume, run, until, varve};

/// `varve serve … & varve mount -o noembedded …`: the mount waits for the server, which has taken the volume, or is about to,
/// and has not said yet where it listens.
#[test]
fn a_mount_finds_a_server_that_is_just_starting() {
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

/// Where nobody serves and nobody is about to, that is said, after a while.
#[test]
fn a_mount_says_that_nobody_serves() {
    let volume = Volume::format(&["--shards", "2"]);
    let mut mount = varve();
    mount.arg("mount").arg(volume.store()).arg(volume.mount_point()).args(["-f", "-o", "noembedded"]);
    let refused = run(&mut mount, SHORT);
    assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
    assert!(refused.stderr.contains("nobody serves the volume"), "{}", refused.stderr);
}
