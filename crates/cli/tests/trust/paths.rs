//! Paths that root names and that lead through a directory of the attacker's: a link there sends no command of root's
//! elsewhere.

use crate::common::mounted::{detach, is_mounted};
use crate::common::{SHORT, run};
use crate::fixture::{ATTACKER, END, Running, Scene, is_root, snapshot};
use std::fs;
use std::os::unix::fs::{lchown, symlink};
use std::path::Path;
use std::process::Command;

/// A link of the attacker's.
fn plant(target: &Path, at: &Path) {
    symlink(target, at).expect("a link");
    lchown(at, Some(ATTACKER), Some(ATTACKER)).expect("root may give it away");
}

/// Runs a command of root's that must be refused because of a link.
fn refused(scene: &Scene, command: &mut Command) {
    let before = snapshot(&scene.path("victim"));
    let outcome = run(command, END);
    assert_ne!(outcome.code(), Some(0), "{command:?}: {}", outcome.stdout);
    assert!(outcome.stderr.contains("is a symbolic link of"), "{command:?}: {}", outcome.stderr);
    assert_eq!(snapshot(&scene.path("victim")), before, "{command:?}: root's files changed");
}

#[test]
fn links_in_a_stores_path_are_refused_to_root() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = scene.format_as_root("victim/store", &["--shards", "2"]);
    plant(&scene.path("victim"), &scene.path("attacker/link"));
    plant(&store, &scene.path("attacker/store"));
    for name in ["attacker/link/store", "attacker/store"] {
        let named = scene.path(name);
        refused(&scene, scene.by_root().arg("status").arg(&named));
        refused(&scene, scene.by_root().arg("fsck").arg(&named));
        refused(&scene, scene.by_root().args(["key", "list"]).arg(&named));
        refused(&scene, scene.by_root().arg("mount").arg(&named).arg(scene.path("victim/directory")));
        refused(&scene, scene.by_root().arg("dump").arg(&named).arg("-o").arg(scene.path("victim/dump")));
    }
}

#[test]
fn mount_point_behind_a_link_is_refused_to_root() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = scene.format_as(ATTACKER, "attacker/store", &["--shards", "2"]);
    let target = scene.path("victim/directory");
    plant(&target, &scene.path("attacker/mnt"));
    plant(&scene.path("victim"), &scene.path("attacker/link"));
    for name in ["attacker/mnt", "attacker/link/directory"] {
        refused(&scene, scene.by_root().arg("mount").arg(&store).arg(scene.path(name)).arg("-f"));
        assert!(!is_mounted(&target), "{name}");
    }
}

#[test]
fn dumps_behind_links_are_neither_written_nor_read_by_root() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = scene.format_as(ATTACKER, "attacker/store", &["--shards", "2"]);
    let dump = scene.path("victim/dump");
    run(scene.by_root().arg("dump").arg(&store).arg("-o").arg(&dump), SHORT).succeeded("varve dump");
    plant(&scene.path("victim/file"), &scene.path("attacker/out"));
    plant(&scene.path("victim/absent"), &scene.path("attacker/new"));
    for name in ["attacker/out", "attacker/new"] {
        refused(&scene, scene.by_root().arg("dump").arg(&store).arg("-o").arg(scene.path(name)));
    }
    plant(&dump, &scene.path("attacker/in"));
    refused(&scene, scene.by_root().arg("load").arg(scene.path("attacker/in")).arg(scene.path("attacker/loaded")));
}

#[test]
fn unmount_behind_a_link_is_refused_to_root() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = scene.format_as_root("victim/store", &["--shards", "2"]);
    let mnt = scene.path("mnt");
    fs::create_dir(&mnt).expect("a directory");
    let mut command = scene.by_root();
    command.arg("mount").arg(&store).arg(&mnt).arg("-f");
    let mut mount = Running::start(&mut command, scene.path("mount.log"));
    assert!(mount.ready_or_ended(|| is_mounted(&mnt)), "{}", mount.log());
    plant(&mnt, &scene.path("attacker/um"));
    let outcome = run(scene.by_root().arg("umount").arg(scene.path("attacker/um")), END);
    assert!(outcome.stderr.contains("is a symbolic link of"), "{}", outcome.stderr);
    assert!(is_mounted(&mnt));
    run(scene.by_root().arg("umount").arg(&mnt), END).succeeded("varve umount");
    mount.stop();
    detach(&mnt);
}

/// The directory of a detector service belongs to the attacker, with a link in the place of the service's records.
#[test]
fn detector_service_of_root_follows_no_link_of_its_directorys_owner() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let directory = scene.path("attacker/beamline");
    fs::create_dir(&directory).expect("a directory");
    lchown(&directory, Some(ATTACKER), Some(ATTACKER)).expect("root may give it away");
    plant(&scene.path("victim/directory"), &directory.join(".varve-record"));
    let before = snapshot(&scene.path("victim"));
    let mut command = scene.by_root();
    command.arg("record").arg("serve").arg(&directory).args(["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]);
    let mut service = Running::start(&mut command, scene.path("service.log"));
    let log = scene.path("service.log");
    service.ready_or_ended(|| fs::read_to_string(&log).is_ok_and(|text| text.contains("process")));
    service.stop();
    assert_eq!(snapshot(&scene.path("victim")), before, "{}", service.log());
    let file = directory.join("run.h5");
    plant(&scene.path("victim/file"), &file);
    run(scene.by_root().args(["record", "recover"]).arg(&file), END);
    assert_eq!(snapshot(&scene.path("victim")), before);
}

/// A store on a file system without set-user-id programs may be in another user's volume, whatever its owner is said to be.
#[test]
fn mount_of_a_store_on_a_nosuid_file_system_is_nosuid() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let (beneath, mnt) = (scene.path("tmpfs"), scene.path("mnt"));
    [&beneath, &mnt].iter().for_each(|directory| fs::create_dir(directory).expect("a directory"));
    let mounted =
        run(Command::new("mount").args(["-t", "tmpfs", "-o", "nosuid,nodev,size=256m", "none"]).arg(&beneath), SHORT);
    mounted.succeeded("mount");
    let store = beneath.join("store");
    run(scene.by_root().arg("format").arg(&store).args(["--shards", "2"]), SHORT).succeeded("varve format");
    let mut command = scene.by_root();
    command.arg("mount").arg(&store).arg(&mnt).arg("-f");
    let mut mount = Running::start(&mut command, scene.path("mount.log"));
    let is_ready = mount.ready_or_ended(|| is_mounted(&mnt));
    let flags = rustix::fs::statvfs(&mnt).expect("it is there").f_flag;
    run(scene.by_root().arg("umount").arg(&mnt), END);
    mount.stop();
    for directory in [&mnt, &beneath] {
        detach(directory);
    }
    assert!(is_ready, "{}", mount.log());
    let wanted = rustix::fs::StatVfsMountFlags::NOSUID | rustix::fs::StatVfsMountFlags::NODEV;
    assert!(flags.contains(wanted), "{flags:?}");
}
