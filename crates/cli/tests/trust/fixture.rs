//! A victim's directory that must not change, an attacker's store, and processes of both.

use crate::common::{SHORT, copy_program, run, scratch, until, varve};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The attacker: `bin` of Debian. It has a name, which fusermount3 needs.
pub const ATTACKER: u32 = 2;
/// An unprivileged victim, without a name.
pub const VICTIM: u32 = 47_111;

/// Deadline for a command of root on an attacker's store to end by itself; a longer run counts as a hang.
pub const END: Duration = Duration::from_secs(90);

/// Whether these tests can play several users.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("skipped: it plays several users, which needs root");
    }
    root
}

/// A directory of the victim and one of the attacker, and a copy of the program that everybody can run.
pub struct Scene {
    directory: tempfile::TempDir,
}

impl Scene {
    pub fn new() -> Scene {
        let directory = scratch();
        let scene = Scene { directory };
        copy_program(Path::new(env!("CARGO_BIN_EXE_varve")), &scene.program());
        for (name, uid) in [("attacker", ATTACKER), ("victim", 0), ("other", VICTIM)] {
            let home = scene.path(name);
            fs::create_dir(&home).expect("a home");
            chown(&home, Some(uid), Some(uid)).expect("root may give it away");
            fs::set_permissions(&home, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        fs::create_dir(scene.path("victim/directory")).expect("a directory");
        fs::write(scene.path("victim/file"), "precious\n").expect("a file");
        fs::write(scene.path("victim/directory/file"), "precious\n").expect("a file");
        fs::set_permissions(scene.path("victim/file"), fs::Permissions::from_mode(0o600)).expect("a mode");
        scene
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn program(&self) -> PathBuf {
        self.path("varve")
    }

    /// The program, run by root in root's own environment.
    pub fn by_root(&self) -> Command {
        let mut command = varve();
        command.env_remove("XDG_RUNTIME_DIR").env("HOME", self.path("victim")).current_dir("/");
        command
    }

    /// Any command, run by another user, with nothing of the environment of the tests.
    pub fn as_user(&self, uid: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("setpriv");
        command.arg(format!("--reuid={uid}")).arg(format!("--regid={uid}")).arg("--clear-groups").arg("--");
        command.arg(program).env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").env("HOME", "/nonexistent");
        for mark in ["RUN_MARK", "TMPDIR"] {
            if let Some(value) = std::env::var_os(mark) {
                command.env(mark, value);
            }
        }
        command.current_dir("/");
        command
    }

    /// The program, run by another user.
    pub fn by_user(&self, uid: u32) -> Command {
        self.as_user(uid, self.program())
    }

    /// Formats a store of another user below that user's directory.
    pub fn format_as(&self, uid: u32, store: &str, flags: &[&str]) -> PathBuf {
        let store = self.path(store);
        run(self.by_user(uid).arg("format").arg(&store).args(flags), SHORT).succeeded("varve format");
        store
    }

    pub fn format_as_root(&self, store: &str, flags: &[&str]) -> PathBuf {
        let store = self.path(store);
        run(self.by_root().arg("format").arg(&store).args(flags), SHORT).succeeded("varve format");
        store
    }
}

/// A process that is killed and waited for when it is dropped.
pub struct Running {
    pub child: Child,
    log: PathBuf,
}

impl Running {
    /// Starts a process in a process group of its own, with both outputs in `log`.
    pub fn start(command: &mut Command, log: PathBuf) -> Running {
        let out = fs::File::create(&log).expect("a log");
        let errors = out.try_clone().expect("a second descriptor");
        let child = command.stdin(Stdio::null()).stdout(out).stderr(errors).process_group(0).spawn();
        Running { child: child.expect("it can be started"), log }
    }

    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_none()
    }

    /// Waits until `ready`, or until the process has ended by itself; returns whether it is ready.
    pub fn ready_or_ended(&mut self, mut ready: impl FnMut() -> bool) -> bool {
        let end = Instant::now() + END;
        loop {
            if ready() {
                return true;
            }
            if !self.is_running() {
                return false;
            }
            assert!(Instant::now() < end, "neither ready nor ended within {END:?}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGTERM and expects the end within [`END`].
    pub fn stop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.child);
        // It may have ended by itself.
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        until("the process ends after SIGTERM", END, || !self.is_running());
    }

    pub fn kill(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Everything about a tree that an attack could change, and its stat(2) results.
pub fn snapshot(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(path) = waiting.pop() {
        let data = fs::symlink_metadata(&path).expect("it is there");
        let content = if data.is_file() { fs::read(&path).expect("root may read it") } else { Vec::new() };
        let (mode, owner, times) = (data.mode(), (data.uid(), data.gid()), (data.mtime(), data.mtime_nsec()));
        let changed = (data.ctime(), data.ctime_nsec());
        found.insert(path.clone(), format!("{mode:o} {owner:?} {times:?} {changed:?} {} {content:?}", data.len()));
        if data.is_dir() {
            waiting.extend(fs::read_dir(&path).expect("a directory").map(|entry| entry.expect("an entry").path()));
        }
    }
    found
}

/// A real copy of a tree, with owners and modes.
pub fn copy_tree(from: &Path, to: &Path) {
    run(Command::new("cp").arg("-a").arg(from).arg(to), SHORT).succeeded("cp -a");
}
