//! Root's processes in another user's store: a server has that user's rights, and a mount has that user's rights over
//! files.

use crate::cases::{Case, Site, check, is_root};
use crate::common::process::{Launcher, Process};
use crate::common::{SHORT, mounted, run, until};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const USER: u32 = 47111;
/// `CAP_CHOWN`, `DAC_OVERRIDE`, `DAC_READ_SEARCH`, `FOWNER`, `FSETID`, `LINUX_IMMUTABLE`, `MKNOD`.
const FILE_CAPABILITIES: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 4 | 1 << 9 | 1 << 27;

fn make(path: &Path, owner: u32, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::create_dir(path).expect("a new directory");
    chown(path, Some(owner), Some(owner)).expect("root may");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("root may");
}

fn varve(site: &Site) -> Command {
    let mut command = Command::new(site.program());
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
}

/// A directory for sockets of the test's own, not the machine's.
fn sockets(site: &Site) -> PathBuf {
    site.path().join("sockets")
}

/// Formats a store of the user, as root.
fn store(site: &Site) -> PathBuf {
    let store = site.path().join("store");
    make(&store, USER, 0o755);
    make(&sockets(site), USER, 0o700);
    run(varve(site).args(["format", "--shards", "2"]).arg(&store), SHORT).succeeded("format");
    store
}

/// All paths below `directory`, itself included.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = vec![directory.to_owned()];
    let mut at = 0;
    while at < found.len() {
        if found[at].symlink_metadata().is_ok_and(|metadata| metadata.is_dir()) {
            let entries = std::fs::read_dir(&found[at]).expect("root may list it").flatten();
            found.extend(entries.map(|entry| entry.path()));
        }
        at += 1;
    }
    found
}

fn expect_all_of(user: u32, directory: &Path) {
    for path in files(directory) {
        // A server may just have removed the file.
        if let Ok(found) = path.symlink_metadata() {
            assert_eq!(found.uid(), user, "{}", path.display());
        }
    }
}

/// A line of proc_pid_status(5).
fn field(status: &str, name: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_else(|| panic!("{name} in {status}"));
    line.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
}

fn statuses(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    // A thread may end in the meantime.
    tasks.filter_map(|task| std::fs::read_to_string(task.path().join("status")).ok()).collect()
}

fn capabilities(status: &str) -> u64 {
    ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"]
        .iter()
        .fold(0, |all, name| all | u64::from_str_radix(&field(status, name), 16).expect("hexadecimal"))
}

fn start(launcher: &Arc<Launcher>, command: &Command, log: &Path) -> Process {
    Process::start(launcher, command, log)
}

fn await_server(store: &Path, process: &Process) {
    until("the server serves", SHORT, || {
        process.expect_alive();
        let record = std::fs::read_to_string(store.join("servers/current.toml")).unwrap_or_default();
        record.contains(&format!("pid = {}\n", process.pid()))
    });
}

#[test]
fn server_of_a_users_store_is_that_users_process() {
    if !is_root() {
        return;
    }
    let launcher = Arc::new(Launcher::start());
    let site = Site::new();
    let store = store(&site);
    expect_all_of(USER, &store);
    let mut serve = varve(&site);
    serve.arg("serve").arg(&store).arg("--unix-dir").arg(sockets(&site));
    let mut process = start(&launcher, &serve, &site.path().join("log"));
    await_server(&store, &process);
    for status in statuses(process.pid()) {
        assert_eq!(field(&status, "Uid:"), "47111 47111 47111 47111");
        assert_eq!(field(&status, "Gid:"), "47111 47111 47111 47111");
        assert_eq!(field(&status, "Groups:"), "");
        assert_eq!(capabilities(&status), 0);
        assert_eq!(field(&status, "NoNewPrivs:"), "1");
    }
    expect_all_of(USER, &store);
    process.signal(rustix::process::Signal::TERM);
    process.expect_end("the server", SHORT);
    expect_all_of(USER, &store);
}

#[test]
fn commands_of_root_leave_the_store_to_its_user() {
    if !is_root() {
        return;
    }
    let site = Site::new();
    let store = store(&site);
    let (dump, loaded) = (site.path().join("dump"), site.path().join("loaded"));
    make(&loaded, USER, 0o700);
    let closed = site.path().join("roots");
    make(&closed, 0, 0o700);
    run(varve(&site).arg("status").arg(&store), SHORT).succeeded("status");
    run(varve(&site).args(["fsck", "--repair"]).arg(&store), SHORT).succeeded("fsck");
    let roots = closed.join("dump");
    run(varve(&site).arg("dump").arg(&store).arg("-o").arg(&roots), SHORT).succeeded("dump");
    assert_eq!(roots.metadata().expect("it is there").uid(), 0, "root made the dump and owns it");
    run(varve(&site).arg("dump").arg(&store).arg("-o").arg(&dump), SHORT).succeeded("dump");
    run(varve(&site).arg("load").arg(&roots).arg(&loaded), SHORT).succeeded("load");
    expect_all_of(USER, &store);
    expect_all_of(USER, &loaded);
}

#[test]
fn mount_of_a_users_store_has_that_users_rights_over_files() {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return;
    }
    let launcher = Arc::new(Launcher::start());
    let site = Site::new();
    let store = store(&site);
    // A directory that only root may enter. Root's mount reaches it all the same.
    let closed = site.path().join("roots");
    make(&closed, 0, 0o700);
    let directory = closed.join("mnt");
    make(&directory, 0, 0o700);
    for served in [false, true] {
        let server = served.then(|| {
            let mut serve = varve(&site);
            serve.arg("serve").arg(&store).arg("--unix-dir").arg(sockets(&site));
            let server = start(&launcher, &serve, &site.path().join("server.log"));
            await_server(&store, &server);
            server
        });
        let mut mount = varve(&site);
        mount.arg("mount").arg("-f").arg(&store).arg(&directory).arg("--unix-dir").arg(sockets(&site));
        let mut process = start(&launcher, &mount, &site.path().join("mount.log"));
        until("it is mounted", SHORT, || {
            process.expect_alive();
            mounted::is_mounted(&directory)
        });
        // Files of several users and sizes: small ones in the tables, large ones in the store.
        for (name, owner) in [("roots", 0), ("users", USER), ("bins", 2)] {
            for (size, length) in [("small", 10), ("large", 3 << 20)] {
                let file = directory.join(format!("{name}-{size}-{served}"));
                std::fs::write(&file, vec![7; length]).expect("root may write");
                chown(&file, Some(owner), Some(owner)).expect("root may");
                assert_eq!(file.metadata().expect("it is there").uid(), owner);
            }
        }
        let statuses = statuses(process.pid());
        assert!(statuses.len() > 1, "a mount has threads");
        for status in &statuses {
            assert_eq!(field(status, "Uid:"), "0 0 0 47111");
            assert_eq!(field(status, "Gid:"), "0 0 0 47111");
            assert_eq!(field(status, "Groups:"), "");
            assert_eq!(capabilities(status) & FILE_CAPABILITIES, 0, "{status}");
        }
        expect_all_of(USER, &store);
        process.signal(rustix::process::Signal::TERM);
        process.expect_end("the mount", SHORT);
        assert!(!mounted::is_mounted(&directory));
        if let Some(mut server) = server {
            server.signal(rustix::process::Signal::TERM);
            server.expect_end("the server", SHORT);
        }
    }
    expect_all_of(USER, &store);
    run(varve(&site).arg("fsck").arg(&store), SHORT).succeeded("fsck");
}

#[test]
fn background_mount_has_a_log_of_roots_and_the_users_rights() {
    if !is_root() || !Path::new("/dev/fuse").exists() {
        return;
    }
    let site = Site::new();
    let store = store(&site);
    let directory = site.path().join("mnt");
    make(&directory, 0, 0o755);
    let log = site.path().join("mount.log");
    let mut mount = varve(&site);
    mount.args(["--json", "mount"]).arg(&store).arg(&directory).arg("--log-file").arg(&log);
    mount.arg("--unix-dir").arg(sockets(&site));
    let pid = run(&mut mount, SHORT).succeeded("mount").json()["pid"].as_u64().expect("a number");
    let statuses = statuses(u32::try_from(pid).expect("a process's number"));
    let umount = run(varve(&site).arg("umount").arg(&directory), SHORT);
    mounted::detach(&directory);
    umount.succeeded("umount");
    assert!(!statuses.is_empty());
    for status in statuses {
        assert_eq!(field(&status, "Uid:"), "0 0 0 47111");
        assert_eq!(capabilities(&status) & FILE_CAPABILITIES, 0, "{status}");
    }
    let found = log.metadata().expect("the log is there");
    assert_eq!((found.uid(), found.mode() & 0o777), (0, 0o600));
    expect_all_of(USER, &store);
}

#[test]
fn store_belongs_to_the_owner_of_its_place() {
    check(&[
        Case {
            name: "new directory in a users directory",
            script: "install -d -o $USER $D/home; umask 000; as 0 $V format $D/home/a --shards 1 >/dev/null; access $D/home/a",
            code: 0,
            says: &["of 47111"],
            never: &[],
        },
        Case {
            name: "new directory two levels below",
            script: "install -d -o $USER $D/home; as 0 $V format $D/home/a/b --shards 1 >/dev/null; access $D/home/a/b",
            code: 0,
            says: &["of 47111"],
            never: &[],
        },
        Case {
            name: "new directory of root",
            script: "as 0 $V format $D/a --shards 1 >/dev/null; access $D/a",
            code: 0,
            says: &["of 0"],
            never: &[],
        },
        Case {
            name: "directory in a users closed home",
            script: "install -d -m 700 -o $USER $D/home; as 0 $V format $D/home/a --shards 1 >/dev/null && as 0 $V fsck $D/home/a",
            code: 0,
            says: &["is sound"],
            never: &[],
        },
        Case {
            name: "groups of the user database",
            script: "store $OTHER; begin 0 $V --json serve $S; grep ^Groups: /proc/$PID/status | tr -s '\\t ' ' '; finish",
            code: 0,
            says: &["Groups: 2"],
            never: &[],
        },
        Case {
            name: "roots group is not taken with a users store",
            script: "store $USER; chown -R 47111:0 $S; begin 0 $V --json serve $S; grep ^Gid: /proc/$PID/status | tr -s '\\t' ' '; finish",
            code: 0,
            says: &["Gid: 65534 65534 65534 65534"],
            never: &[],
        },
    ]);
}

#[test]
fn store_of_nobody_is_refused() {
    let refused = |name, code, script| Case {
        name,
        script,
        code,
        says: &["\"nobody\"", "as the user who owns the store"],
        never: &[],
    };
    check(&[
        refused("serve", 1, "store 0; chown -R 65534:65534 $S; as 0 $V serve $S"),
        refused("mount", 1, "store 0; chown -R 65534:65534 $S; mkdir $D/mnt; as 0 $V mount -f $S $D/mnt"),
        refused("fsck", 8, "store 0; chown -R 65534:65534 $S; as 0 $V fsck --repair $S"),
        refused("status", 1, "store 0; chown -R 65534:65534 $S; as 0 $V status $S"),
        refused("dump", 1, "store 0; chown -R 65534:65534 $S; as 0 $V dump $S -o $D/dump"),
        refused("format", 1, "install -d -o 65534 -g 65534 $S; as 0 $V format $S"),
        refused(
            "load",
            1,
            "store 0; as 0 $V dump $S -o $D/dump; install -d -o 65534 $D/new; as 0 $V load $D/dump $D/new",
        ),
        refused("nobody itself", 1, "store 0; chown -R 65534:65534 $S; as 65534 $V serve $S"),
    ]);
}

#[test]
fn user_without_rights_gains_none() {
    check(&[
        Case {
            name: "a user on anothers closed store",
            script: "store $OTHER; as $USER $V serve $S",
            code: 1,
            says: &["cannot serve"],
            never: &["serving"],
        },
        Case {
            name: "a user on roots store",
            script: "store 0; as $USER $V serve $S; as $USER $V fsck --repair $S; [ -z \"$(find $S ! -user 0)\" ]",
            code: 0,
            says: &["cannot serve", "cannot check and repair"],
            never: &["is sound"],
        },
        Case {
            name: "a link in the place of a store",
            script: "store 0; ln -s store $D/link; give $USER $D/link; as 0 $V fsck $D/link",
            code: 8,
            says: &["is a symbolic link of another user", "name the directory it leads to"],
            never: &[],
        },
        Case {
            name: "roots own link to a store",
            script: "store $USER; ln -s store $D/link; as 0 $V fsck $D/link",
            code: 0,
            says: &["is sound"],
            never: &[],
        },
    ]);
}

/// Root of a user namespace that maps root and the user, or root alone, and denies setgroups(2).
#[test]
fn root_of_a_user_namespace_takes_the_rights_too() {
    const NAMESPACE: &str = r#"
# inside MAP COMMAND...: as root of a user namespace that has these lines of uid_map and gid_map.
inside() {
  map=$1
  shift
  mkfifo "$D/go"
  unshare --user sh -c 'read _ <"$0"; exec "$@"' "$D/go" env -i PATH="$PATH" "$@" &
  child=$!
  while [ "$(readlink /proc/$child/ns/user)" = "$(readlink /proc/self/ns/user)" ]; do sleep 0.02; done
  echo deny >/proc/$child/setgroups
  printf "$map" >/proc/$child/uid_map
  printf "$map" >/proc/$child/gid_map
  echo >"$D/go"
  wait $child
}
"#;
    let inside = |script: &str| -> &'static str { Box::leak(format!("{NAMESPACE}\n{script}").into_boxed_str()) };
    check(&[
        Case {
            name: "the user is mapped",
            script: inside("store $USER; inside '0 0 1\\n47111 47111 1\\n' $V fsck --repair $S; find $S ! -uid $USER"),
            code: 0,
            says: &["is sound"],
            never: &["/store/"],
        },
        Case {
            name: "the user is not mapped",
            script: inside("store $USER; inside '0 0 1\\n' $V fsck $S"),
            code: 8,
            says: &["\"nobody\""],
            never: &[],
        },
        Case {
            name: "the user is root inside",
            script: inside("store $USER; chown $USER $D; as $USER unshare --map-root-user $V fsck $S"),
            code: 0,
            says: &["is sound"],
            never: &[],
        },
    ]);
}
