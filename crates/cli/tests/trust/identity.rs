//! The rights of root's processes on another user's store.

use crate::common::mounted::{detach, is_mounted};
use crate::common::run;
use crate::fixture::{ATTACKER, END, Running, Scene, VICTIM, is_root};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Command;

/// A field of /proc/PID/status, for each thread.
fn of_threads(pid: u32, field: &str) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a process has threads");
    let line = |path: &Path| {
        let status = fs::read_to_string(path.join("status")).ok()?;
        let found = status.lines().find_map(|line| line.strip_prefix(field))?.trim().to_owned();
        Some(found)
    };
    tasks.filter_map(|task| line(&task.expect("an entry").path())).collect()
}

/// `chown`, `dac_override`, `dac_read_search`, `fowner`, `fsetid`, `linux_immutable`, `mknod`: capabilities(7).
const FILE_CAPABILITIES: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9 | 1 << 27;

#[test]
fn server_of_another_users_store_is_that_users() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = scene.format_as(VICTIM, "other/store", &["--shards", "2"]);
    let mut command = scene.by_root();
    command.arg("serve").arg(&store);
    let mut server = Running::start(&mut command, scene.path("serve.log"));
    assert!(server.ready_or_ended(|| store.join("servers/current.toml").exists()), "{}", server.log());
    for field in ["Uid:", "Gid:"] {
        let wanted = [VICTIM; 4].map(|id| id.to_string()).join("\t");
        for found in of_threads(server.pid(), field) {
            assert_eq!(found, wanted, "{field}");
        }
    }
    for set in ["CapEff:", "CapPrm:"] {
        for found in of_threads(server.pid(), set) {
            assert_eq!(u64::from_str_radix(&found, 16).expect("hexadecimal"), 0, "{set}");
        }
    }
    for found in of_threads(server.pid(), "Groups:") {
        assert!(found.is_empty() || found == VICTIM.to_string(), "root's groups stay: {found}");
    }
    server.stop();
    expect_owner(&store, VICTIM);
}

#[test]
fn mount_works_in_the_store_as_its_owner() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = scene.format_as(VICTIM, "other/store", &["--shards", "2", "--inline-limit", "4KiB"]);
    let mnt = scene.path("mnt");
    fs::create_dir(&mnt).expect("a directory");
    let mut command = scene.by_root();
    command.arg("mount").arg(&store).arg(&mnt).arg("-f");
    let mut mount = Running::start(&mut command, scene.path("mount.log"));
    assert!(mount.ready_or_ended(|| is_mounted(&mnt)), "{}", mount.log());
    fs::write(mnt.join("small"), "small").expect("a small file");
    fs::write(mnt.join("large"), vec![7; 1 << 20]).expect("a large file");
    for found in of_threads(mount.pid(), "Uid:") {
        assert_eq!(found.split('\t').nth(3), Some(VICTIM.to_string().as_str()), "the file system uid of a thread");
    }
    for set in ["CapEff:", "CapPrm:"] {
        for found in of_threads(mount.pid(), set) {
            let found = u64::from_str_radix(&found, 16).expect("hexadecimal");
            assert_eq!(found & FILE_CAPABILITIES, 0, "{set} {found:x}");
        }
    }
    assert_eq!(fs::read(mnt.join("large")).expect("it is there"), vec![7; 1 << 20]);
    run(scene.by_root().arg("umount").arg(&mnt), END).succeeded("varve umount");
    mount.stop();
    detach(&mnt);
    expect_owner(&store, VICTIM);
}

#[test]
fn repair_by_root_makes_files_of_the_owner() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let store = scene.format_as(VICTIM, "other/store", &["--shards", "2"]);
    fs::remove_file(store.join("key")).expect("it can be removed");
    run(scene.by_root().args(["fsck", "--repair"]).arg(&store), END);
    run(scene.by_root().arg("dump").arg(&store).arg("-o").arg(scene.path("dump")), END).succeeded("varve dump");
    assert_eq!(fs::metadata(scene.path("dump")).expect("a dump").uid(), 0, "a dump is whose command it was");
    expect_owner(&store, VICTIM);
}

/// Promise: the owner of a directory can trace the programs that root's benchmark starts there, and finds nothing of
/// root's in them: neither descriptors nor the environment.
#[test]
fn programs_of_roots_benchmark_have_nothing_of_root() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let [directory, found, programs] = ["attacker/bench", "attacker/found", "programs"].map(|name| scene.path(name));
    for made in [&directory, &programs] {
        fs::create_dir(made).expect("a directory");
    }
    chown(&directory, Some(ATTACKER), Some(ATTACKER)).expect("root may give it away");
    // The process that serves the benchmark's mount starts this program with its own environment and descriptors.
    let script = format!(
        "#!/bin/sh\nexec >{} 2>&1\nid -u\nenv\nls -l /proc/self/fd /proc/$PPID/fd\n\
         tr '\\0' '\\n' </proc/$PPID/environ\nexit 1\n",
        found.display()
    );
    let helper = programs.join("fusermount3");
    fs::write(&helper, script).expect("a program");
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).expect("a mode");

    // Root's shell passes an open file on.
    let mut command = Command::new("sh");
    command.args(["-c", "exec 9<\"$1\"; shift; exec \"$@\"", "sh"]).arg(scene.path("victim/file"));
    command.arg(scene.path("varve")).args(["bench", "profile", "--files", "100"]).arg(&directory);
    command.env("ROOTS_SECRET", "precious").env("PATH", format!("{}:/usr/bin:/bin", programs.display()));
    let ended = run(command.env_remove("XDG_RUNTIME_DIR").current_dir("/"), END);
    assert_eq!(ended.code(), Some(1), "{}", ended.stderr);
    let text = fs::read_to_string(&found).unwrap_or_else(|error| panic!("{error}: {}", ended.stderr));
    assert!(text.starts_with(&format!("{ATTACKER}\n")) && text.contains("/proc/self/fd:"), "{text}");
    for word in ["ROOTS_SECRET", "precious", "victim/file"] {
        assert!(!text.contains(word), "{word}: {text}");
    }
}

fn expect_owner(store: &Path, uid: u32) {
    let mut waiting = vec![store.to_owned()];
    while let Some(path) = waiting.pop() {
        let data = fs::symlink_metadata(&path).expect("it is there");
        assert_eq!(data.uid(), uid, "{}", path.display());
        if data.is_dir() {
            waiting.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
        }
    }
}
