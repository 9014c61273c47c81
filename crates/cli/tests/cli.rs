//! The program from its user's view: errors with advice, exit codes, JSON, configuration, background processes, users.

#[path = "cli/cluster.rs"]
mod cluster;
mod common;
#[path = "cli/demo.rs"]
mod demo;
#[path = "cli/directories.rs"]
mod directories;
#[path = "cli/handles.rs"]
mod handles;
#[path = "cli/job.rs"]
mod job;
#[path = "cli/keys.rs"]
mod keys;
#[path = "cli/ranks.rs"]
mod ranks;
#[path = "cli/remounting.rs"]
mod remounting;
#[path = "cli/scale.rs"]
mod scale;
#[path = "cli/starting.rs"]
mod starting;
#[path = "cli/stdout.rs"]
mod stdout;
#[path = "cli/stopping.rs"]
mod stopping;
#[path = "cli/store.rs"]
mod store;

use common::mounted::is_mounted;
use common::process::is_running;
use common::{SHORT, Volume, must, run, scratch, until, varve};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

fn outcome(arguments: &[&str]) -> common::Outcome {
    run(varve().args(arguments), SHORT)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}

#[test]
fn format_refuses_a_directory_that_is_not_empty() {
    let directory = scratch();
    std::fs::write(directory.path().join("mine"), "kept").expect("a file");
    let refused = outcome(&["format", text(directory.path())]);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("not empty") && refused.stderr.contains("--force"), "{}", refused.stderr);
    outcome(&["format", "--force", text(directory.path())]).succeeded("format --force");
    assert_eq!(std::fs::read_to_string(directory.path().join("mine")).expect("it stays"), "kept");
}

#[test]
fn format_over_a_volume_needs_force_twice() {
    let volume = Volume::format(&[]);
    let store = volume.store();
    for flags in [&[][..], &["--force"]] {
        let refused = outcome(&[&["format", text(&store)], flags].concat());
        assert_eq!(refused.code(), Some(1), "{flags:?}");
        assert!(refused.stderr.contains("holds a Varve volume already"), "{}", refused.stderr);
    }
    outcome(&["format", "--force", "--force", text(&store)]).succeeded("format --force --force");
}

#[test]
fn format_validates_settings() {
    let directory = scratch();
    let store = directory.path().join("store");
    let wrong = [
        ("--shards", "3"),
        ("--shards", "many"),
        ("--inline-limit", "1GiB"),
        ("--inline-limit", "64 elephants"),
        ("--sync-interval", "5"),
        ("--split-threshold", "1"),
        ("--name", "a/b"),
        ("--name", ".."),
    ];
    for (flag, value) in wrong {
        let refused = outcome(&["format", text(&store), flag, value]);
        assert_eq!(refused.code(), Some(2), "{flag} {value}: {}", refused.stderr);
        assert!(!store.exists(), "{flag} {value} has made something");
    }
    let many = outcome(&["format", text(&store), "--shards", "1048576"]);
    assert!(many.code() == Some(2) && many.stderr.contains("a power of two"), "{}", many.stderr);
    let unknown = outcome(&["format", "s3://bucket/volume"]);
    assert!(unknown.code() == Some(2) && unknown.stderr.contains("file://"), "{}", unknown.stderr);
}

#[test]
fn results_are_json_with_a_schema_version() {
    let directory = scratch();
    let store = format!("file://{}", text(&directory.path().join("store")));
    let formatted = outcome(&["--json", "format", &store, "--shards", "8", "--sync-interval", "250ms"]).json();
    assert_eq!(formatted["schema_version"], 1);
    assert_eq!(formatted["command"], "format");
    assert_eq!((&formatted["shards"], &formatted["sync_interval_ms"]), (&Value::from(8), &Value::from(250)));
    let status = outcome(&["status", &store, "--json"]);
    assert_eq!(status.code(), Some(0));
    assert_eq!(outcome(&["status", &store, "--require-server"]).code(), Some(3));
    let status = status.json();
    assert_eq!((&status["schema_version"], &status["command"]), (&Value::from(1), &Value::from("status")));
    assert_eq!(status["volume"]["id"], formatted["id"]);
    assert_eq!(status["server"], Value::Null);
}

#[test]
fn usage_error_exits_2_and_failure_exits_1() {
    assert_eq!(outcome(&["fromat"]).code(), Some(2));
    assert_eq!(outcome(&["format"]).code(), Some(2));
    assert_eq!(outcome(&["--help"]).code(), Some(0));
    assert_eq!(outcome(&["--log", "a=b=c", "status", "/nonexistent"]).code(), Some(2));
    let missing = outcome(&["status", "/nonexistent"]);
    assert_eq!((missing.code(), missing.stdout.as_str()), (Some(1), ""));
    assert!(missing.stderr.contains("not a Varve volume"), "{}", missing.stderr);
    assert_eq!(outcome(&["fsck"]).code(), Some(16), "as fsck(8)");
    assert_eq!(outcome(&["--log", "debug", "fsck", "--bogus"]).code(), Some(16), "as fsck(8)");
    assert_eq!(outcome(&["format", "/proc/volume"]).code(), Some(1));
    assert_eq!(outcome(&["umount", "/proc"]).code(), Some(1));
    let misplaced = [
        (&["info", "/etc/passwd"][..], 1, "/etc/passwd is not on a mounted volume"),
        (&["info", "/nonexistent"], 1, "cannot ask the mount about"),
        (&["stats", "/tmp"], 1, "no volume of Varve is mounted on /tmp"),
        (&["status", "/etc/passwd"], 1, "/etc/passwd is not a Varve volume: it is no directory"),
        (&["fsck", "/etc/passwd"], 8, "/etc/passwd is not a Varve volume: it is no directory"),
        (&["record", "recover", "/tmp"], 1, "it is a directory; give the run's file in it"),
    ];
    for (arguments, code, why) in misplaced {
        let asked = outcome(arguments);
        assert_eq!(asked.code(), Some(code), "{arguments:?}");
        assert!(asked.stderr.contains(why), "{}", asked.stderr);
    }
    assert_eq!(outcome(&["stats", "/tmp", "-i", "0s"]).code(), Some(2));
    let over_a_file = outcome(&["format", "/etc/passwd"]);
    assert!(over_a_file.stderr.contains("A volume is a directory"), "{}", over_a_file.stderr);
    let metrics = outcome(&["serve", "/nonexistent", "--metrics", "0.0.0.0:9000"]);
    assert_eq!(metrics.code(), Some(2), "{}", metrics.stderr);
}

/// A missing report to compare with is an error before the measurement starts, which may take hours.
#[test]
fn baseline_is_read_before_measuring() {
    let directory = scratch();
    let via = format!("path:{}", directory.path().display());
    let save = directory.path().join("report.json");
    let asked = ["bench", "mdtest", "--via", &via, "--files", "8", "--save", text(&save), "--compare", "/nonexistent"];
    let refused = outcome(&asked);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("cannot compare with /nonexistent") && !save.exists(), "{}", refused.stderr);
    let twice = outcome(&["bench", "mdtest", "--via", &via, "--via", &via]);
    assert!(twice.code() == Some(2) && twice.stderr.contains("given twice"), "{}", twice.stderr);
    // A report that cannot be saved is still printed. A report with other settings is not compared.
    let unkept = outcome(&["bench", "mdtest", "--via", &via, "--files", "8", "--save", "/proc/report.json"]);
    assert!(unkept.code() == Some(1) && unkept.stdout.contains("create"), "{}{}", unkept.stdout, unkept.stderr);
    outcome(&["bench", "mdtest", "--via", &via, "--files", "8", "--save", text(&save)]);
    let other = outcome(&["bench", "mdtest", "--via", &via, "--files", "9", "--compare", text(&save)]);
    assert!(other.code() == Some(0) && other.stderr.contains("nothing is compared"), "{}", other.stderr);
    assert!(other.stderr.contains("other settings: files"), "{}", other.stderr);
}

/// An error message that nobody reads does not change the exit code.
#[test]
fn closed_pipe_does_not_panic() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut reported = varve();
    reported.args(["status", "/nonexistent"]).stdout(std::process::Stdio::null()).stderr(writer);
    assert_eq!(reported.status().expect("it runs").code(), Some(1));
}

#[test]
fn flag_overrides_environment_overrides_file() {
    let directory = scratch();
    let config = directory.path().join("config.toml");
    std::fs::write(&config, "json = true\n[format]\nshards = 4\nname = \"from-file\"\n").expect("a file");
    let formatted = |store: &str, environment: Option<&str>, flags: &[&str]| {
        let mut command = varve();
        command.arg("--config").arg(&config).arg("format").arg(directory.path().join(store)).args(flags);
        command.envs(environment.map(|shards| ("VARVE_FORMAT_SHARDS", shards)));
        run(&mut command, SHORT).succeeded(store).json()
    };
    let of_file = formatted("file", None, &[]);
    assert_eq!((&of_file["shards"], &of_file["name"]), (&Value::from(4), &Value::from("from-file")));
    assert_eq!(formatted("environment", Some("8"), &[])["shards"], 8);
    assert_eq!(formatted("flag", Some("8"), &["--shards", "16"])["shards"], 16);
}

#[test]
fn unknown_config_key_is_refused_with_a_suggestion() {
    let directory = scratch();
    let config = directory.path().join("config.toml");
    std::fs::write(&config, "[format]\nshard = 4\n").expect("a file");
    let mut command = varve();
    command.env("VARVE_CONFIG", &config).args(["status", "/nonexistent"]);
    let refused = run(&mut command, SHORT);
    assert_eq!(refused.code(), Some(2));
    assert!(refused.stderr.contains("`format.shard`") && refused.stderr.contains("`shards`"), "{}", refused.stderr);
    let missing = outcome(&["--config", "/nonexistent/config.toml", "status", "/nonexistent"]);
    assert!(missing.code() == Some(2) && missing.stderr.contains("/nonexistent/config.toml"), "{}", missing.stderr);
}

#[test]
fn a_second_server_on_one_volume_is_refused() {
    let volume = Volume::format(&["--shards", "4"]);
    let server = volume.serve(&[]);
    let store = volume.store();
    let second = run(varve().arg("serve").arg(&store).arg("--unix-dir").arg(volume.beside("other")), SHORT);
    assert_eq!(second.code(), Some(1));
    assert!(second.stderr.contains(&format!("process {}", server.pid())), "{}", second.stderr);
    let formatted = outcome(&["format", "-ff", text(&store)]);
    assert!(formatted.code() == Some(1) && formatted.stderr.contains("in use"), "{}", formatted.stderr);
    server.stop();
    let misplaced = run(varve().arg("serve").arg(&store).args(["--unix-dir", "/etc/passwd"]), SHORT);
    assert_eq!(misplaced.code(), Some(1));
    let printed = &misplaced.stderr;
    assert!(
        printed.contains("choose another directory with --unix-dir") && !printed.contains("may not use the store"),
        "{printed}"
    );
    volume.serve(&[]).stop();
}

#[test]
fn status_shows_the_server_and_notices_its_death() {
    let volume = Volume::format(&["--shards", "4"]);
    let store = volume.store();
    let server = volume.serve(&["--workers", "2"]);
    let status = outcome(&["--json", "status", text(&store)]).succeeded("status").json();
    assert_eq!(status["server"]["pid"], server.pid());
    assert_eq!(status["server"]["workers"].as_array().map(Vec::len), Some(2));
    assert_eq!(status["server"]["shards"].as_array().map(Vec::len), Some(4));
    server.kill();
    let degraded = outcome(&["status", text(&store)]);
    assert_eq!(degraded.code(), Some(3), "{}{}", degraded.stdout, degraded.stderr);
    assert!(degraded.stdout.contains("does not answer"), "{}", degraded.stdout);
}

/// A copy of a served volume contains the server's record. A client that followed it would change the original.
#[test]
fn copy_of_a_served_volume_is_a_different_volume() {
    let volume = Volume::format(&[]);
    let (store, copy, other) = (volume.store(), volume.beside("copy"), volume.beside("other"));
    let server = volume.serve(&[]);
    {
        let mount = volume.mount(&[]);
        std::fs::write(volume.mount_point().join("before"), "x").expect("a file");
        must(Command::new("sync").arg("-f").arg(volume.mount_point()));
        mount.unmount();
    }
    // The copy must be consistent: files may disappear during the copy while the server runs.
    let pid = server.pid().to_string();
    must(Command::new("kill").args(["-STOP", &pid]));
    must(Command::new("cp").arg("-a").arg(&store).arg(&copy));
    must(Command::new("kill").args(["-CONT", &pid]));
    std::fs::create_dir(&other).expect("a directory to mount on");
    for arguments in [vec!["status", text(&copy)], vec!["mount", "-f", "-o", "noembedded", text(&copy), text(&other)]] {
        let refused = outcome(&arguments);
        assert_eq!(refused.code(), Some(1), "{arguments:?}: {}{}", refused.stdout, refused.stderr);
        for word in ["copy/servers/current.toml", text(&store), "varve fsck"] {
            assert!(refused.stderr.contains(word), "{arguments:?}: {}", refused.stderr);
        }
    }
    outcome(&["status", text(&store)]).succeeded("status of the volume itself");
    // As after a crash. The copy gets a server of its own, beside the first one.
    outcome(&["fsck", text(&copy)]).succeeded("fsck of the copy");
    let own = BackgroundMount::mount_store(&volume, &copy, &other);
    assert_eq!(std::fs::read_to_string(other.join("before")).expect("it was copied"), "x");
    std::fs::write(other.join("of-the-copy"), "y").expect("a file");
    outcome(&["status", text(&copy)]).succeeded("status of the copy");
    drop(own);
    let mount = volume.mount(&[]);
    assert!(!volume.mount_point().join("of-the-copy").exists());
    mount.unmount();
}

/// `status` finds the volume behind a mount, also if the mount's process is dead. For a mount with another source name
/// it reports that name.
#[test]
fn status_finds_the_volume_of_a_mount() {
    let volume = Volume::format(&["--shards", "1"]);
    let mut mount = volume.mount(&[]);
    let link = volume.beside("link");
    std::os::unix::fs::symlink(&mount.directory, &link).expect("a symlink");
    for place in [text(&mount.directory), text(&link)] {
        let status = outcome(&["--json", "status", place]).succeeded("status").json();
        assert_eq!(status["store"], text(&volume.store()));
        assert_eq!(status["server"]["pid"], mount.pid());
        assert_eq!(status["full"], false);
    }
    mount.kill_process();
    let dead = outcome(&["--json", "status", text(&mount.directory)]);
    assert_eq!(dead.code(), Some(3), "{}{}", dead.stdout, dead.stderr);
    assert_eq!(dead.json()["store"], text(&volume.store()));
    mount.bury();

    let mount = volume.mount(&["-o", "fsname=elsewhere"]);
    let refused = outcome(&["status", text(&mount.directory)]);
    assert_eq!(refused.code(), Some(1), "{}", refused.stdout);
    assert!(refused.stderr.contains("fsname=elsewhere"), "{}", refused.stderr);
    mount.unmount();
}

#[test]
fn metrics_are_served_when_asked_for() {
    let volume = Volume::format(&["--shards", "4"]);
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port();
    let server = volume.serve(&["--metrics", &format!("127.0.0.1:{port}")]);
    outcome(&["status", text(&volume.store())]).succeeded("status");
    let mut page = String::new();
    until("the metrics speak of calls", SHORT, || {
        use std::io::{Read, Write};
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("the port is open");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it listens");
        page.clear();
        stream.read_to_string(&mut page).expect("it answers");
        page.contains("varve_calls_total")
    });
    assert!(page.contains("call=\"shard_status\""), "{page}");
    server.stop();
}

/// `varve mount` goes into the background and returns when the mount answers. `varve umount` returns when the mount's
/// process has ended. In between, `stats` and `info` describe the mount.
#[test]
fn mount_runs_in_background() {
    let volume = Volume::format(&["--shards", "4"]);
    let mount = BackgroundMount::mount(&volume);
    std::fs::write(mount.0.join("hello"), "world").expect("the mount answers when the command has returned");
    let stats = outcome(&["--json", "stats", text(&mount.0)]).succeeded("stats").json();
    let pid = stats["pid"].as_u64().expect("the mount's process");
    let operations = stats["operations"].as_array().expect("what was done");
    assert!(operations.iter().any(|count| count["operation"] == "create" && count["calls"] == 1), "{stats}");
    let interval = outcome(&["--json", "stats", "--interval", "50ms", "--count", "2", text(&mount.0)]);
    assert_eq!(interval.succeeded("stats --interval").stdout.lines().count(), 2);
    let info = outcome(&["--json", "info", text(&mount.0.join("hello"))]).succeeded("info").json();
    assert_eq!((&info["schema_version"], &info["command"]), (&Value::from(1), &Value::from("info")));
    assert!(info.get("inode").is_some(), "{info}");
    let status = outcome(&["--json", "status", text(&volume.store())]).succeeded("status").json();
    assert_eq!((&status["server"]["pid"], &status["server"]["embedded"]), (&Value::from(pid), &Value::from(true)));
    outcome(&["umount", text(&mount.0)]).succeeded("umount");
    assert!(!is_running(pid as u32), "process {pid} outlives the unmount");
    assert!(!is_mounted(&mount.0));
    let mount = BackgroundMount::mount(&volume);
    assert_eq!(std::fs::read_to_string(mount.0.join("hello")).expect("it is durable"), "world");
    outcome(&["umount", text(&mount.0)]).succeeded("umount");
}

/// The background process of a mount, and that of an unmount, use the configuration that the command names, and not the
/// user's own.
#[test]
fn background_mount_keeps_its_configuration() {
    let volume = Volume::format(&["--shards", "2"]);
    let (home, given) = (scratch(), volume.beside("given.toml"));
    std::fs::create_dir(home.path().join("varve")).expect("a directory");
    std::fs::write(home.path().join("varve/config.toml"), "nonsense").expect("a file");
    std::fs::write(&given, "[mount]\noptions = [\"ro\"]\n").expect("a file");
    let run = |arguments: &[&str]| {
        let mut command = varve();
        command.env("XDG_CONFIG_HOME", home.path()).args(["--config", text(&given)]).args(arguments);
        command.output().expect("varve runs")
    };
    let (store, directory, log) = (volume.store(), volume.mount_point(), volume.beside("mount.log"));
    let mounted = run(&["mount", "--log-file", text(&log), text(&store), text(&directory)]);
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    let refused = std::fs::write(directory.join("file"), "").expect_err("it is mounted read-only");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    // The reader stops after the first of many frequent reports.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let mut reported = varve();
    reported.args(["stats", "-i", "10ms"]).arg(&directory).stdout(writer);
    assert_eq!(reported.status().expect("it runs").code(), Some(0));
    let unmounted = run(&["umount", "--wait", "60s", text(&directory)]);
    assert!(unmounted.status.success(), "{}", String::from_utf8_lossy(&unmounted.stderr));
}

#[test]
fn mount_refuses_a_dead_mount_point() {
    let volume = Volume::format(&["--shards", "4"]);
    let mount = BackgroundMount::mount(&volume);
    let stats = outcome(&["--json", "stats", text(&mount.0)]).succeeded("stats").json();
    let pid = stats["pid"].as_u64().expect("the mount's process") as u32;
    must(Command::new("kill").args(["-9", &pid.to_string()]));
    until("the mount's process ends", SHORT, || !is_running(pid));
    let refused = outcome(&["mount", text(&volume.store()), text(&mount.0)]);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("umount"), "{}", refused.stderr);
    outcome(&["umount", text(&mount.0)]).succeeded("umount of a dead mount");
    let mount = BackgroundMount::mount(&volume);
    outcome(&["umount", text(&mount.0)]).succeeded("umount");
}

/// A second mount on the same directory would hide the first.
#[test]
fn mount_refuses_a_mounted_directory() {
    let volume = Volume::format(&["--shards", "4"]);
    let mount = BackgroundMount::mount(&volume);
    let refused = outcome(&["mount", text(&volume.store()), text(&mount.0)]);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains("already") && refused.stderr.contains("varve umount"), "{}", refused.stderr);
    outcome(&["umount", text(&mount.0)]).succeeded("umount");
    assert!(!is_mounted(&mount.0));
}

/// A mount made by `varve mount` without `-f`; removed at the end if it still exists.
struct BackgroundMount(std::path::PathBuf);

impl BackgroundMount {
    fn mount(volume: &Volume) -> BackgroundMount {
        BackgroundMount::mount_store(volume, &volume.store(), &volume.mount_point())
    }

    /// Mounts another store, beside the one of `volume`.
    fn mount_store(volume: &Volume, store: &Path, directory: &Path) -> BackgroundMount {
        let background = BackgroundMount(directory.to_owned());
        let log = volume.beside("background.log");
        let mut command = varve();
        command.arg("mount").arg(store).arg(&background.0).arg("--log-file").arg(&log);
        command.arg("--unix-dir").arg(volume.beside("sockets"));
        run(&mut command, SHORT).succeeded("varve mount");
        background
    }
}

impl Drop for BackgroundMount {
    fn drop(&mut self) {
        if is_mounted(&self.0) {
            // A clean unmount first, which also ends the process.
            if !run(varve().arg("umount").arg(&self.0), SHORT).status.success() {
                common::mounted::detach(&self.0);
            }
        }
    }
}

#[test]
fn mount_refuses_what_it_cannot_mount() {
    let volume = Volume::format(&["--shards", "4"]);
    let (store, directory) = (volume.store(), volume.mount_point());
    let log = volume.beside("mount.log");
    let (around, inside) = (store.parent().expect("a volume is in a directory"), store.join("data"));
    let cases: [(&[&str], i32, &str); 8] = [
        (&["mount", text(&store), text(&store)], 1, "is the store itself"),
        (&["mount", text(&store), text(&inside)], 1, "inside the store"),
        (&["mount", text(&store), text(around)], 1, "the store is inside"),
        (&["mount", "/nonexistent", text(&directory)], 1, "not a Varve volume"),
        (&["mount", text(&store), "/nonexistent/mnt", "--log-file", text(&log)], 1, "/nonexistent"),
        (&["mount", text(&store), text(&directory), "-o", "rwx"], 2, "rwx"),
        (&["mount", text(&store), text(&directory), "-o", "workers=0"], 2, "workers"),
        (&["mount", text(&store), text(&directory), "-o", "noembedded", "--log-file", text(&log)], 1, "server"),
    ];
    for (arguments, code, word) in cases {
        let refused = outcome(arguments);
        assert_eq!(refused.code(), Some(code), "{arguments:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(word), "{arguments:?}: {}", refused.stderr);
        assert!(!is_mounted(&directory), "{arguments:?}");
    }
}

#[test]
fn embedded_mount_excludes_a_second_mount() {
    let volume = Volume::format(&["--shards", "4"]);
    let mount = volume.mount(&[]);
    let other = volume.beside("other");
    std::fs::create_dir(&other).expect("a directory");
    let second = outcome(&["mount", "-f", text(&volume.store()), text(&other)]);
    assert_eq!(second.code(), Some(1));
    assert!(second.stderr.contains("varve serve"), "{}", second.stderr);
    mount.unmount();
}

#[test]
fn umount_names_processes_that_use_the_mount() {
    let volume = Volume::format(&["--shards", "4"]);
    let mount = volume.mount(&[]);
    let held = std::fs::File::create(mount.directory.join("held")).expect("a file");
    let refused = outcome(&["umount", text(&mount.directory)]);
    assert_eq!(refused.code(), Some(1));
    assert!(refused.stderr.contains(&format!("process {}", std::process::id())), "{}", refused.stderr);
    drop(held);
    mount.unmount();
}

/// The helper that mount(8) runs for a line of fstab is this program under another name.
#[test]
fn fstab_helper_mounts() {
    let volume = Volume::format(&["--shards", "4"]);
    let helper = volume.beside("mount.fuse.varve");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_varve"), &helper).expect("a link");
    let background = BackgroundMount(volume.mount_point());
    let mut command = Command::new(&helper);
    command.env("VARVE_MOUNT_UNIX_DIR", volume.beside("sockets")).env("VARVE_MOUNT_LOG_FILE", volume.beside("log"));
    command.arg(volume.store()).arg(&background.0).args(["-n", "-o", "rw,noatime,_netdev"]);
    run(&mut command, SHORT).succeeded("mount.fuse.varve");
    assert!(is_mounted(&background.0));
}

/// A user serves and mounts their own volume without root. Another user is refused.
#[test]
fn unprivileged_user_can_use_a_volume() {
    if !rustix::process::geteuid().is_root() {
        // This test plays two users, which needs root. Without root, the other tests cover the case of one user.
        return;
    }
    let directory = scratch();
    // A copy of the program that those users can reach: a checkout in root's home is closed to others.
    let program = directory.path().join("varve");
    common::copy_program(Path::new(env!("CARGO_BIN_EXE_varve")), &program);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/users.sh");
    // A separate mount namespace, because the script gives /dev/fuse the mode that it has on most machines: open to
    // all.
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "bash"]).arg(script).arg(&program).arg(directory.path());
    let outcome = must(&mut unshare);
    assert!(outcome.stdout.ends_with("all is well\n"), "{}{}", outcome.stdout, outcome.stderr);
}

#[test]
fn completions_and_manual_pages_are_printed() {
    for shell in ["bash", "zsh", "fish"] {
        let script = outcome(&["completions", shell]).succeeded(shell).stdout;
        assert!(script.contains("varve") && script.contains("umount"), "{shell}");
    }
    let directory = scratch();
    outcome(&["man", text(&directory.path().join("man"))]).succeeded("man");
    let page = std::fs::read_to_string(directory.path().join("man/varve-format.1")).expect("a page a command");
    assert!(page.contains("split\\-threshold"), "{page}");
}
