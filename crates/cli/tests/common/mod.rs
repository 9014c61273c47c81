//! Shared code of the end-to-end suites: temporary volumes, servers and mounts that end with the test however it ends,
//! and commands with a deadline.
//!
//! Guards end only processes that they started, by number. They detach a mount that cannot be unmounted otherwise, so
//! that a failed test leaves neither a process nor a mount behind.
//!
//! `VARVE_E2E_ON=plain` runs the suites that need only a directory on a plain one. This shows whether a failure is the
//! volume's or the suite's.

#![allow(dead_code, reason = "each suite uses its part")]

pub mod disk;
pub mod etcd;
pub mod hosts;
pub mod mounted;
pub mod process;
pub mod tree;

#[allow(unused_imports, reason = "each suite uses its part")]
pub use mounted::{Mount, Server, Volume};

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Deadline of a command with a few calls: far beyond its duration, far below the time limit of a suite.
pub const SHORT: Duration = Duration::from_secs(60);
/// How long a process that another test is just starting may hold a file system: until it executes its program, it has
/// the open files of this program.
pub const BUSY_FOR_A_MOMENT: Duration = Duration::from_secs(10);
/// Deadline of a command over a whole source tree.
pub const LONG: Duration = Duration::from_secs(600);

/// Whether long counts are requested (`make soak`).
pub fn soak() -> bool {
    std::env::var_os("VARVE_SOAK").is_some_and(|value| value == "1")
}

pub fn on_plain_directory() -> bool {
    std::env::var_os("VARVE_E2E_ON").is_some_and(|value| value == "plain")
}

/// A directory that others may enter, removed at the end.
pub fn scratch() -> tempfile::TempDir {
    let directory = tempfile::Builder::new().prefix("varve-e2e-").tempdir().expect("a temporary directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).expect("its owner may chmod it");
    directory
}

/// Copies a program that the test executes afterwards.
///
/// Another process writes the copy. If this one did, a child that another test forks would inherit the descriptor, and
/// the copy could not be executed (ETXTBSY) until that child executes its own program.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--preserve=mode").arg(from).arg(to).status().expect("cp starts");
    assert!(copied.success(), "cp of {} to {}: {copied}", from.display(), to.display());
}

/// The program under test.
pub fn varve() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_varve"));
    // The configuration and the environment of the starting user are not part of the tests.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VARVE_") {
            command.env_remove(name);
        }
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    command
}

pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
    /// The peak of its memory, as far as it was observed.
    peak_bytes: u64,
}

impl Outcome {
    /// # Panics
    /// If it took more memory than allowed.
    pub fn bounded(self, what: &str) -> Outcome {
        expect_below(what, self.peak_bytes);
        self
    }

    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// # Panics
    /// If the command did not exit with 0.
    pub fn succeeded(self, what: &str) -> Outcome {
        assert!(self.status.success(), "{what}: {}\nstdout: {}\nstderr: {}", self.status, self.stdout, self.stderr);
        self
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|error| panic!("not JSON: {error}\nstdout: {}\nstderr: {}", self.stdout, self.stderr))
    }
}

/// Runs a command to its end.
///
/// # Panics
/// If it cannot be started, or has not ended within `deadline`: it is killed then. [`LONG`] is longer for long counts.
pub fn run(command: &mut Command, deadline: Duration) -> Outcome {
    let deadline = if soak() && deadline >= LONG { deadline * 4 } else { deadline };
    let begun = Instant::now();
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {shown}: {error}"));
    let stdout = drain(child.stdout.take().expect("piped"));
    let stderr = drain(child.stderr.take().expect("piped"));
    let mut peak_bytes = 0;
    let watch = |pid| peak_bytes = memory_bytes(pid, "VmHWM:").unwrap_or(peak_bytes);
    let status = wait_watching(&mut child, deadline, watch).unwrap_or_else(|| {
        // The command hangs. If it hangs in the kernel, it may survive the kill, so nobody waits for it.
        let _ = child.kill();
        panic!("{shown} has not ended within {deadline:?}")
    });
    let text = |thread: std::thread::JoinHandle<Vec<u8>>| {
        String::from_utf8_lossy(&thread.join().expect("a reader does not panic")).into_owned()
    };
    Outcome { status, stdout: text(stdout), stderr: text(stderr), took: begun.elapsed(), peak_bytes }
}

/// Runs a command that must succeed, within [`LONG`].
pub fn must(command: &mut Command) -> Outcome {
    let shown = format!("{command:?}");
    run(command, LONG).succeeded(&shown)
}

fn drain(mut pipe: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A broken pipe ends the text. The text before it is still worth showing.
        let _ = pipe.read_to_end(&mut bytes);
        bytes
    })
}

/// Waits for a child's end; `None` after `deadline`.
pub fn wait(child: &mut Child, deadline: Duration) -> Option<ExitStatus> {
    wait_watching(child, deadline, |_| {})
}

fn wait_watching(child: &mut Child, deadline: Duration, mut watch: impl FnMut(u32)) -> Option<ExitStatus> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            return Some(status);
        }
        if Instant::now() >= end {
            return None;
        }
        watch(child.id());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Polls `ready` until it returns true.
///
/// # Panics
/// If it has not within `deadline`.
pub fn until(what: &str, deadline: Duration, mut ready: impl FnMut() -> bool) {
    let end = Instant::now() + deadline;
    while !ready() {
        assert!(Instant::now() < end, "{what}: not within {deadline:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A program that [`setup`](../../../../Makefile) builds for the suites, or the one on the path.
pub fn tool(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_BIN_EXE_varve")).ancestors().nth(2).expect("target/PROFILE/varve");
    let of_workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    let built = [target, &of_workspace].map(|target| target.join("tools/bin").join(name));
    let on_path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&on_path).map(|directory| directory.join(name)).collect::<Vec<_>>();
    built
        .into_iter()
        .chain(on_path)
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{name} is not there: `make setup` builds it into target/tools/bin"))
}

/// The memory that a process uses, in bytes.
pub fn resident_bytes(pid: u32) -> u64 {
    memory_bytes(pid, "VmRSS:").expect("the process is alive")
}

/// The peak of a process's memory so far.
pub fn peak_bytes(pid: u32) -> u64 {
    memory_bytes(pid, "VmHWM:").expect("the process is alive")
}

/// `None`: it has ended.
fn memory_bytes(pid: u32, field: &str) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find(|line| line.starts_with(field))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}

/// The memory limit of a server, a mount or a command in all circumstances. The caches of the largest server in the
/// suites do not come near their own limit (`--memory`), so this bounds the rest: messages, logs that are not fsynced,
/// rows that wait for the store, and data read from damaged files.
const MEMORY_MAX: u64 = 512 << 20;

/// # Panics
/// If the process has taken more than that.
pub fn expect_bounded(what: &str, pid: u32) {
    expect_below(what, peak_bytes(pid));
}

fn expect_below(what: &str, peak: u64) {
    println!("{what} took {} MiB at most", peak >> 20);
    assert!(peak < MEMORY_MAX, "{what} took {peak} bytes of memory");
}
