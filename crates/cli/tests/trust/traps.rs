//! Links and special files at every path of an attacker's store, on which root runs commands. Nothing outside of the
//! store changes, no command hangs or panics, and the error names the object in the way.

use crate::common::mounted::{detach, is_mounted};
use crate::common::{SHORT, run};
use crate::fixture::{ATTACKER, END, Running, Scene, copy_tree, is_root, snapshot};
use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Paths of a store at which the attacker puts something else.
const PATHS: [&str; 14] = [
    "varve.toml",
    "key",
    "lock",
    "reserve",
    "servers",
    "servers/current.toml",
    "shards",
    "shards/varve.toml",
    "shards/0000",
    "shards/0000/log",
    "shards/0000/manifest",
    "shards/0000.opened",
    "data",
    "data/00",
];

/// An object at such a path.
#[derive(Clone, Copy, Debug)]
enum Trap {
    /// A link to a file or directory of root's.
    Link,
    Fifo,
    /// A link to a character device that is root's.
    Device,
}

impl Trap {
    fn set(self, scene: &Scene, store: &Path, at: &str) {
        let path = store.join(at);
        let directory = path.is_dir() || !path.exists() && !at.contains('.') && at.starts_with("data");
        if path.is_dir() {
            fs::remove_dir_all(&path).expect("it can be removed");
        } else if path.exists() {
            fs::remove_file(&path).expect("it can be removed");
        }
        match self {
            Trap::Link if directory => symlink(scene.path("victim/directory"), &path).expect("a link"),
            Trap::Link => symlink(scene.path("victim/file"), &path).expect("a link"),
            Trap::Device => symlink("/dev/zero", &path).expect("a link"),
            Trap::Fifo => {
                run(Command::new("mkfifo").arg(&path), SHORT).succeeded("mkfifo");
            }
        }
        lchown(&path, Some(ATTACKER), Some(ATTACKER)).expect("root may give it away");
    }
}

/// Mounts the store as root. If that works, writes small and large files and unmounts.
fn mount(scene: &Scene, store: &Path) -> String {
    let mnt = scene.path("mnt");
    let mut command = scene.by_root();
    command.arg("mount").arg(store).arg(&mnt).arg("-f");
    let mut mount = Running::start(&mut command, scene.path("mount.log"));
    if mount.ready_or_ended(|| is_mounted(&mnt)) {
        for (name, bytes) in [("small", 10), ("large", 1 << 20)] {
            // A trap may make it fail.
            let _ = fs::write(mnt.join(name), vec![1; bytes]);
        }
        run(scene.by_root().arg("umount").arg(&mnt), END);
    }
    mount.stop();
    detach(&mnt);
    mount.log()
}

/// Serves the store as root for `served_for`.
fn serve(scene: &Scene, store: &Path, served_for: Duration) -> String {
    let mut command = scene.by_root();
    command.arg("serve").arg(store);
    let mut server = Running::start(&mut command, scene.path("serve.log"));
    let serving = format!("pid = {}", server.pid());
    let record = store.join("servers/current.toml");
    let is_regular = || fs::symlink_metadata(&record).is_ok_and(|data| data.is_file());
    if server.ready_or_ended(|| is_regular() && fs::read_to_string(&record).is_ok_and(|text| text.contains(&serving))) {
        std::thread::sleep(served_for);
    }
    server.stop();
    server.log()
}

/// Runs each of root's commands that access a store.
fn all_commands(scene: &Scene, store: &Path) -> String {
    let dump = scene.path("dump");
    let mut printed = String::new();
    let mut note = |command: &mut Command| {
        let outcome = run(command, END);
        printed += &outcome.stderr;
    };
    note(scene.by_root().arg("status").arg(store));
    note(scene.by_root().arg("dump").arg(store).arg("-o").arg(&dump));
    let mounted = mount(scene, store);
    let served = serve(scene, store, Duration::ZERO);
    note(scene.by_root().args(["fsck", "--repair"]).arg(store));
    note(scene.by_root().args(["format", "--force", "--force"]).arg(store));
    let _ = fs::remove_file(dump);
    format!("{printed}{mounted}{served}")
}

fn pristine(scene: &Scene) -> PathBuf {
    let store = scene.format_as(ATTACKER, "attacker/pristine", &["--shards", "2", "--inline-limit", "4KiB"]);
    fs::create_dir(scene.path("mnt")).expect("a directory");
    // One server has run, so that each path exists.
    mount(scene, &store);
    store
}

fn spring(traps: impl Iterator<Item = (Trap, &'static str)>) {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let pristine = pristine(&scene);
    let before = snapshot(&scene.path("victim"));
    for (trap, at) in traps {
        let store = scene.path("attacker/store");
        copy_tree(&pristine, &store);
        trap.set(&scene, &store, at);
        let printed = all_commands(&scene, &store);
        assert!(!printed.contains("panicked"), "{trap:?} at {at}: {printed}");
        assert_eq!(snapshot(&scene.path("victim")), before, "{trap:?} at {at}: root's files changed\n{printed}");
        fs::remove_dir_all(&store).expect("it can be removed");
    }
}

#[test]
fn links_in_a_store_lead_root_nowhere() {
    spring(PATHS.into_iter().map(|at| (Trap::Link, at)));
}

#[test]
fn fifos_in_a_store_hold_nobody_up() {
    spring(PATHS.into_iter().map(|at| (Trap::Fifo, at)));
}

#[test]
fn devices_in_a_store_are_not_opened() {
    spring(PATHS.into_iter().map(|at| (Trap::Device, at)));
}

/// Point 4 of the trial: `reserve` as a link, to an existing file and to a missing one.
#[test]
fn reserve_as_a_link_makes_and_grows_no_file() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = pristine(&scene);
    let before = snapshot(&scene.path("victim"));
    for target in ["victim/file", "victim/new"] {
        // It may not exist.
        let _ = fs::remove_file(store.join("reserve"));
        symlink(scene.path(target), store.join("reserve")).expect("a link");
        // A server makes its reserve within its first second.
        serve(&scene, &store, Duration::from_secs(3));
        mount(&scene, &store);
        assert_eq!(snapshot(&scene.path("victim")), before, "{target}");
    }
}

/// A directory of the store is swapped for a link and back while root works in it.
#[test]
fn directory_swapped_for_a_link_meanwhile_leads_nowhere() {
    if !is_root() {
        return;
    }
    const SWAP: &str = r#"
import os, sys
store, target = sys.argv[1:3]
aside, link = store + "/aside", store + "/link"
while True:
    for name in ["data", "data/00", "data/01", "servers"]:
        path = store + "/" + name
        try:
            os.rename(path, aside)
            os.symlink(target, path)
            os.rename(path, link)
            os.rename(aside, path)
        except OSError:
            pass
        try:
            os.unlink(path) if os.path.islink(path) else None
            os.rename(aside, path)
        except OSError:
            pass
"#;
    let scene = Scene::new();
    let store = pristine(&scene);
    let before = snapshot(&scene.path("victim"));
    let mut swap = scene.as_user(ATTACKER, "/usr/bin/python3");
    swap.args(["-c", SWAP]).arg(&store).arg(scene.path("victim/directory"));
    let _swap = Running::start(&mut swap, scene.path("swap.log"));
    for _ in 0..3 {
        mount(&scene, &store);
        serve(&scene, &store, Duration::ZERO);
    }
    assert_eq!(snapshot(&scene.path("victim")), before);
}
