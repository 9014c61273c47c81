//! `varve bench profile` attributes the time of every operation; benchmarks with mounts can be killed.

mod common;

use common::process::{Launcher, Process};
use common::{LONG, SHORT, must, scratch, soak, until, varve};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const STAGES: [&str; 7] = ["client", "wire", "queue", "fetch", "decide", "log", "reply"];

#[test]
fn profile_reports_stages_of_each_operation() {
    let scratch = scratch();
    let mut command = varve();
    command.args(["--json", "bench", "profile", "--files", "100"]).arg(scratch.path());
    let profile = must(&mut command).json();
    let frontends = profile["doors"].as_array().expect("doors");
    let names: Vec<_> = frontends.iter().map(|frontend| frontend["door"].as_str().unwrap_or_default()).collect();
    assert_eq!(names, ["library", "served mount", "embedded mount"]);
    for frontend in frontends {
        let operations = frontend["operations"].as_array().expect("operations");
        assert_eq!(operations.len(), 3, "{frontend}");
        for operation in operations {
            let stages = operation["stages"].as_array().expect("stages");
            for stage in STAGES {
                assert!(stages.iter().any(|found| found["stage"] == stage), "{stage} is not in {operation}");
            }
            assert!(operation["latency_us"].as_f64() > Some(0.0), "{operation}");
        }
        let create = &operations[0];
        assert!(create["calls"].as_f64() >= Some(1.0), "a create is a call at least: {create}");
        let log = create["stages"].as_array().into_iter().flatten().find(|stage| stage["stage"] == "log");
        assert!(log.and_then(|log| log["us"].as_f64()) > Some(0.0), "a create goes to the log: {create}");
    }
    assert_eq!(std::fs::read_dir(scratch.path()).unwrap().count(), 0, "the volumes made for it are removed");
}

/// The mount points below `directory`.
fn mounted_below(directory: &Path) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("proc(5) is there");
    let targets = table.lines().filter_map(|line| line.split(' ').nth(4)).map(PathBuf::from);
    targets.filter(|target| target.starts_with(directory)).collect()
}

/// A benchmark that is killed while it waits for its own mount dies, because another process serves the mount. The
/// mount is removed too.
fn dies_while_it_measures(command: &Command, directory: &Path, mounts: &str) {
    let launcher = Arc::new(Launcher::start());
    for round in 0..if soak() { 40 } else { 3 } {
        let mut benchmark = Process::start(&launcher, command, &directory.join("log"));
        until("the benchmark mounts", SHORT, || {
            benchmark.expect_alive();
            mounted_below(directory).iter().any(|mount| mount.to_string_lossy().contains(mounts))
        });
        std::thread::sleep(Duration::from_millis(50 + 137 * round));
        benchmark.kill();
        until("its mount is gone", SHORT, || mounted_below(directory).is_empty());
    }
}

#[test]
fn killed_profile_ends_and_unmounts() {
    let scratch = scratch();
    let mut command = varve();
    command.args(["bench", "profile", "--files", "2000"]).arg(scratch.path());
    dies_while_it_measures(&command, scratch.path(), "mnt");
}

/// An interrupted benchmark ends in good order and leaves nothing behind.
#[test]
fn interrupted_profile_cleans_up() {
    let scratch = scratch();
    let mut command = varve();
    command.args(["bench", "profile", "--files", "10000"]).arg(scratch.path());
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("varve runs");
    until("it measures a mount", LONG, || {
        mounted_below(scratch.path())
            .iter()
            .any(|mount| std::fs::read_dir(mount).is_ok_and(|mut entries| entries.next().is_some()))
    });
    must(Command::new("kill").args(["-s", "INT", &child.id().to_string()]));
    let ended = child.wait_with_output().expect("varve ends");
    assert_eq!(ended.status.code(), Some(130), "{ended:?}");
    assert_eq!(std::fs::read_dir(scratch.path()).expect("a directory").count(), 0);
}

#[test]
fn killed_ceiling_benchmark_ends_and_unmounts() {
    let scratch = scratch();
    let plain = scratch.path().join("plain");
    std::fs::create_dir(&plain).expect("a directory");
    let mut command = varve();
    command.env("TMPDIR", scratch.path());
    command.args(["bench", "mdtest", "--ceilings", "--files", "100000", "--via"]);
    command.arg(format!("path:{}", plain.display()));
    dies_while_it_measures(&command, scratch.path(), "varve-null-fuse");
}
