//! Workloads of ranks, as a user runs them: each does what it says, in threads, processes and under mpirun; after a failure
//! the figures stay, and only the run's own directory is removed.

use super::common::hosts::Network;
use super::common::{LONG, run, scratch, soak, until, varve, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn via(directory: &Path) -> String {
    format!("path:{}", directory.display())
}

fn data(directory: &Path, words: &[&str]) -> Command {
    let mut bench = varve();
    bench
        .args(["--json", "bench", "data", "--bytes", "1MiB", "--transfer", "64KiB", "--via", &via(directory)])
        .args(words);
    bench
}

fn entries(directory: &Path) -> usize {
    std::fs::read_dir(directory).expect("it is there").count()
}

fn metrics(report: &Value) -> Vec<&str> {
    let entries = report["entries"].as_array().expect("a list");
    entries.iter().map(|entry| entry["metric"].as_str().expect("a name")).collect()
}

const WRITTEN_AND_READ: [&str; 5] = ["open", "write", "write_overall", "write_drained", "read"];

#[test]
fn threads_and_processes_do_the_same_work() {
    let directory = scratch();
    for (words, driven_by) in [(&["--verify"][..], "threads"), (&["--verify", "--processes"], "processes")] {
        let mut bench = data(directory.path(), words);
        bench.args(["--clients", "3", "--repeat", "2", "--pattern", "n-1-strided", "--block", "64KiB"]);
        let report = run(&mut bench, LONG).succeeded(driven_by).json();
        assert_eq!(report["driven_by"], driven_by);
        assert_eq!(metrics(&report), WRITTEN_AND_READ);
        assert!(
            report["entries"][1]["first_and_last_done_s"][1][1].as_f64().is_some_and(|last| last > 0.0),
            "{report}"
        );
        assert_eq!(entries(directory.path()), 0);
    }
}

#[test]
fn ranks_under_mpirun_meet_without_mpi() {
    let directory = scratch();
    let bench = data(directory.path(), &["--repeat", "2"]);
    let mut mpirun = Command::new("mpirun");
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", "3"]).arg(bench.get_program()).args(bench.get_args());
    let report = run(&mut mpirun, LONG).succeeded("mpirun").json();
    assert_eq!(report["driven_by"], "processes of Open MPI");
    assert_eq!(report["entries"][0]["parameters"]["clients"], 3);
    assert_eq!(metrics(&report), WRITTEN_AND_READ);
    assert_eq!(entries(directory.path()), 0);
}

/// The lines of a trace that name this.
fn calls(trace: &str, call: &str, name: &str) -> usize {
    let is_call = |line: &&str| line.split_once(' ').map_or(*line, |(_, call)| call.trim_start()).starts_with(call);
    trace.lines().filter(is_call).filter(|line| line.contains(name) && !line.contains("resumed>")).count()
}

/// Promise: each operation of mdtest is one call of the kernel, or three with an open file.
#[test]
fn mdtest_makes_the_calls_that_it_counts() {
    let (directory, log) = (scratch(), scratch());
    let (log, bench) = (log.path().join("trace"), varve());
    let mut strace = Command::new("strace");
    strace
        .args(["-f", "-e", "trace=openat,mkdirat,newfstatat,renameat,renameat2,unlinkat,pwrite64,write", "-o"])
        .arg(&log);
    strace
        .arg(bench.get_program())
        .args(["bench", "mdtest", "-I", "4", "-z", "1", "-b", "3", "-w", "100", "-e", "100", "-d"]);
    let table = run(strace.arg(directory.path()), LONG).succeeded("strace").stdout;
    let trace = std::fs::read_to_string(&log).expect("strace writes it");
    for (call, name, expected) in [
        ("openat", "file.mdtest.0.", 16 + 16),
        ("newfstatat", "file.mdtest.0.", 16),
        ("renameat", "file.mdtest.0.", 16),
        ("unlinkat", "file.mdtest.0.", 16),
        ("mkdirat", "dir.mdtest.0.", 16),
        ("newfstatat", "dir.mdtest.0.", 16),
        ("renameat", "dir.mdtest.0.", 16),
        ("unlinkat", "dir.mdtest.0.", 16),
        ("mkdirat", "mdtest_tree.0", 4 + 16),
    ] {
        assert_eq!(calls(&trace, call, name), expected, "{call} of {name}");
    }
    for row in ["Directory rename", "File read", "Tree removal"] {
        assert!(table.contains(row), "{table}");
    }
}

/// A benchmark with client processes that runs until something ends it.
fn endless(directory: &Path, save: &Path) -> Child {
    let mut bench = data(directory, &["--clients", "3", "--repeat", "10000", "--write-only", "--processes"]);
    bench.args(["--rank-timeout", "5s", "--save"]).arg(save);
    bench.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("varve starts")
}

fn children(parent: u32) -> Vec<i32> {
    let listed = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children")).unwrap_or_default();
    listed.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The pass whose files are being written, if one is: the ones before it have figures.
fn pass(directory: &Path) -> u64 {
    let below = |directory: &Path| -> Vec<PathBuf> {
        // A pass may end meanwhile, and its directory is removed.
        let entries = std::fs::read_dir(directory).into_iter().flatten();
        entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
    };
    let named = |path: &Path, prefix: &str| -> Option<String> {
        Some(path.file_name()?.to_str()?.strip_prefix(prefix)?.to_owned())
    };
    let passes = below(directory).into_iter().flat_map(|run| below(&run));
    let written = passes.filter(|pass| below(pass).iter().any(|file| named(file, "data.").is_some()));
    written.filter_map(|pass| named(&pass, "pass.")?.parse().ok()).max().unwrap_or(0)
}

/// Promise: the ranks of a benchmark that was stopped for a while (Ctrl-Z) are not lost.
#[test]
fn stopped_benchmark_goes_on_with_its_ranks() {
    let (directory, saved) = (scratch(), scratch());
    let save = saved.path().join("run.json");
    let mut bench = endless(directory.path(), &save);
    until("the clients write", LONG, || pass(directory.path()) >= 2);
    let process = Pid::from_child(&bench);
    kill_process(process, Signal::STOP).expect("it is alive");
    // Longer than the ranks may be silent.
    std::thread::sleep(Duration::from_secs(6));
    let before = pass(directory.path());
    kill_process(process, Signal::CONT).expect("it is alive");
    until("it goes on", LONG, || {
        assert_eq!(bench.try_wait().expect("a child"), None);
        pass(directory.path()) > before + 2
    });
    kill_process(process, Signal::INT).expect("it is alive");
    wait(&mut bench, LONG).expect("it ends by itself");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(&save).expect("it is saved")).expect("JSON");
    assert_eq!(report["error"], "interrupted");
    assert_eq!(entries(directory.path()), 0);
}

/// Promise: a rank that is killed or falls silent ends the run with an error; its figures are kept and marked.
#[test]
fn lost_rank_ends_the_run_and_its_figures_stay() {
    let (directory, saved) = (scratch(), scratch());
    for (signal, reason) in [(Signal::KILL, "its process ended"), (Signal::STOP, "it has not answered for 5 s")] {
        let save = saved.path().join("run.json");
        let mut bench = endless(directory.path(), &save);
        until("the clients write", LONG, || children(bench.id()).len() == 3 && pass(directory.path()) >= 2);
        let rank = Pid::from_raw(children(bench.id())[1]).expect("a number");
        kill_process(rank, signal).expect("it is alive");
        let status = wait(&mut bench, LONG).expect("it ends by itself");
        assert_eq!(status.code(), Some(1));
        let report: Value = serde_json::from_str(&std::fs::read_to_string(&save).expect("it is saved")).expect("JSON");
        let error = report["error"].as_str().expect("it says why");
        assert!(error.contains("rank 1") && error.contains(reason), "{error}");
        assert!(report["entries"].as_array().is_some_and(|entries| !entries.is_empty()), "{report}");
        assert!(report.to_string().contains("\"partial\""), "{report}");
        assert_eq!(entries(directory.path()), 0, "{reason}");
        assert!(kill_process(rank, Signal::CONT).is_err(), "the benchmark ends its processes");
    }
}

#[test]
fn full_and_read_only_targets_fail_clearly() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: it needs root for a small file system");
        return;
    }
    let directory = scratch();
    for (option, reason, code) in [("size=3m", "No space left", 1), ("ro", "Read-only file system", 1)] {
        let target = directory.path().to_str().expect("text");
        assert!(
            Command::new("mount")
                .args(["-t", "tmpfs", "-o", option, "none", target])
                .status()
                .expect("it runs")
                .success()
        );
        let outcome = run(&mut data(directory.path(), &["--clients", "4", "--repeat", "1"]), LONG);
        let left = entries(directory.path());
        assert!(Command::new("umount").arg(target).status().expect("it runs").success());
        assert_eq!(outcome.code(), Some(code), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(reason), "{}", outcome.stderr);
        assert_eq!(left, 0, "{reason}");
    }
}

#[test]
fn targets_with_files_and_the_root_are_refused() {
    let directory = scratch();
    std::fs::write(directory.path().join("precious"), b"1").expect("it is writable");
    let outcome = run(&mut data(directory.path(), &[]), LONG);
    assert_eq!(outcome.code(), Some(2));
    assert!(outcome.stderr.contains("is not empty"), "{}", outcome.stderr);
    assert_eq!(entries(directory.path()), 1);
    let outcome = run(&mut data(Path::new("/"), &[]), LONG);
    assert_eq!(outcome.code(), Some(2));
    assert!(outcome.stderr.contains("is the root of the system"), "{}", outcome.stderr);
}

/// A rank on a host of its own, as srun starts it.
fn rank_on(network: &Network, rank: usize, bench: &mut Command) -> Command {
    bench.env("SLURM_PROCID", rank.to_string()).env("SLURM_STEP_NUM_TASKS", "3");
    bench.env("SLURM_JOB_ID", "7").env("SLURM_STEP_ID", "0");
    let mut command = network.host(rank).connected(bench);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Promise: hosts without MPI measure together, and one that no longer answers is named.
#[test]
fn hosts_meet_over_tcp_and_a_silent_one_is_named() {
    let Some(network) = Network::make(3) else { return };
    let directory = scratch();
    let ranks = |words: &[&str]| -> (Child, Vec<Child>) {
        let mut all: Vec<Child> = (0..3)
            .map(|rank| rank_on(&network, rank, &mut data(directory.path(), words)).spawn().expect("it starts"))
            .collect();
        (all.remove(0), all)
    };
    let saved = scratch();
    let save = saved.path().join("run.json");
    let save_word = save.to_str().expect("text");
    let read = || serde_json::from_str::<Value>(&std::fs::read_to_string(&save).expect("it is saved")).expect("JSON");

    let (mut first, others) = ranks(&["--verify", "--pattern", "n-1-strided", "--block", "64KiB", "--save", save_word]);
    for rank in std::iter::once(&mut first).chain(&mut { others }) {
        assert!(wait(rank, LONG).is_some_and(|status| status.success()));
    }
    let report = read();
    assert_eq!(report["driven_by"], "processes of Slurm");
    assert_eq!(report["entries"][0]["parameters"]["clients"], 3);
    assert_eq!(metrics(&report), WRITTEN_AND_READ);
    assert_eq!(entries(directory.path()), 0);

    let endless = ["--write-only", "--repeat", "10000", "--rank-timeout", "5s", "--save", save_word];
    let (mut first, mut others) = ranks(&endless);
    until("the ranks write", LONG, || pass(directory.path()) >= 2);
    network.cut(0, 2);
    let ended = wait(&mut first, LONG).expect("it ends by itself");
    others.iter_mut().for_each(|rank| {
        rank.kill().expect("its parent may kill it");
        rank.wait().expect("a child");
    });
    assert_eq!(ended.code(), Some(1));
    let report = read();
    assert!(report["error"].as_str().is_some_and(|error| error.contains("rank 2 on")), "{}", report["error"]);
    assert!(
        report["error"].as_str().is_some_and(|error| error.contains("not answered for 5 s")),
        "{}",
        report["error"]
    );
    assert_eq!(entries(directory.path()), 0);
}

/// Bytes a second of fio, with the same calls.
fn fio(directory: &Path) -> f64 {
    let mut fio = Command::new("fio");
    fio.args([
        "--name=x",
        "--rw=write",
        "--bs=1m",
        "--size=32m",
        "--ioengine=psync",
        "--fallocate=none",
        "--end_fsync=1",
        "--output-format=json",
    ]);
    fio.arg(format!("--directory={}", directory.display()));
    let report = run(&mut fio, LONG).succeeded("fio").json();
    std::fs::remove_file(directory.join("x.0.0")).expect("fio makes it");
    report["jobs"][0]["write"]["bw_bytes"].as_f64().expect("a rate") / 1048576.0
}

/// Promise: a plain directory's figures agree with an independent program. Other load makes some passes slow, so the fastest
/// ones are compared; the bounds allow for a debug build.
#[test]
fn write_rate_of_a_directory_agrees_with_fio() {
    if !soak() {
        eprintln!("skipped: measures, so only with VARVE_SOAK=1");
        return;
    }
    let directory = tempfile::tempdir_in("/dev/shm").expect("it is writable");
    let fastest = |rates: Vec<f64>| rates.into_iter().fold(0.0, f64::max);
    let mut ours = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..3 {
        let mut bench = varve();
        bench.args(["--json", "bench", "data", "--bytes", "32MiB", "--clients", "1", "--repeat", "3", "--write-only"]);
        let report = run(bench.args(["--via", &via(directory.path())]), LONG).succeeded("varve bench data").json();
        let entries = report["entries"].as_array().expect("a list");
        let drained = entries.iter().find(|entry| entry["metric"] == "write_drained").expect("it is measured");
        ours.extend(drained["samples"].as_array().expect("a list").iter().filter_map(Value::as_f64));
        theirs.extend((0..3).map(|_| fio(directory.path())));
    }
    let ratio = fastest(ours) / fastest(theirs);
    println!("{ratio:.2} of fio's rate");
    assert!((0.25..4.0).contains(&ratio), "{ratio}");
}
