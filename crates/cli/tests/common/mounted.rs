//! A volume, its server and its mount, as processes of the real program.

use super::hosts::Host;
use super::process::{Launcher, Process};
use super::{BUSY_FOR_A_MOMENT, SHORT, on_plain_directory, run, scratch, until, varve};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server or mount that has not answered by then never will.
const START: Duration = Duration::from_secs(30);
/// The same for a server that joins others: it proves that their registry is fast enough, perhaps in a slow store.
const JOIN: Duration = Duration::from_secs(120);
/// A clean end writes back, fsyncs and closes every shard.
const END: Duration = Duration::from_secs(60);

/// A formatted store in a directory of its own.
pub struct Volume {
    launcher: Arc<Launcher>,
    store: PathBuf,
    directory: tempfile::TempDir,
}

impl Volume {
    /// Formats a volume with the given flags.
    pub fn format(flags: &[&str]) -> Volume {
        let directory = scratch();
        let store = directory.path().join("store");
        Volume::format_store(directory, store, flags)
    }

    /// Formats a volume in a new directory of another place, such as a disk of the suite's own.
    pub fn format_in(place: &Path, flags: &[&str]) -> Volume {
        Volume::format_store(scratch(), place.join("store"), flags)
    }

    fn format_store(directory: tempfile::TempDir, store: PathBuf, flags: &[&str]) -> Volume {
        let launcher = Arc::new(Launcher::start());
        let mut command = varve();
        command.arg("format").arg(&store).args(flags);
        run(&mut command, SHORT).succeeded("varve format");
        std::fs::create_dir(directory.path().join("mnt")).expect("a directory to mount on");
        std::fs::create_dir(directory.path().join("sockets")).expect("a directory for sockets");
        Volume { launcher, store, directory }
    }

    pub fn store(&self) -> PathBuf {
        self.store.clone()
    }

    /// The mount point of its mounts.
    pub fn mount_point(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    /// A path beside the store, on the plain file system.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a server and waits until it announces that it serves.
    pub fn serve(&self, flags: &[&str]) -> Server {
        let mut command = varve();
        // The default unless the flags differ: with one worker, the shards of a directory never send requests to other
        // threads.
        command.env("VARVE_SERVE_WORKERS", "2");
        command.arg("serve").arg(self.store()).arg("--unix-dir").arg(self.beside("sockets")).args(flags);
        let process = Process::start(&self.launcher, &command, &self.beside("server.log"));
        let server = Server { process };
        until("the server serves", START, || {
            server.process.expect_alive();
            self.server_pid() == Some(server.pid())
        });
        server
    }

    /// Starts a server that joins the others of the volume, and waits until it announces that it serves. `name`: of its
    /// log.
    pub fn join(&self, name: &str, flags: &[&str]) -> Server {
        self.join_with(name, flags, &[])
    }

    /// [`Volume::join`], with more variables in its environment.
    pub fn join_with(&self, name: &str, flags: &[&str], environment: &[(&str, &str)]) -> Server {
        let mut command = self.join_command(&self.store, flags);
        command.envs(environment.iter().copied());
        self.start_joining(&command, name)
    }

    /// The same on `host`, at its address.
    pub fn join_on(&self, host: &Host, name: &str, flags: &[&str]) -> Server {
        self.join_by(&self.store, host, name, flags)
    }

    /// The same by another path of the store.
    pub fn join_by(&self, store: &Path, host: &Host, name: &str, flags: &[&str]) -> Server {
        let mut command = self.join_command(store, flags);
        command.arg("--listen").arg(format!("{}:0", host.address()));
        self.start_joining(&host.native(&command, store), name)
    }

    fn join_command(&self, store: &Path, flags: &[&str]) -> Command {
        let mut command = varve();
        command.env("VARVE_SERVE_WORKERS", "2");
        command.arg("serve").arg(store).arg("--join").arg("--unix-dir").arg(self.beside("sockets")).args(flags);
        command
    }

    fn start_joining(&self, command: &Command, name: &str) -> Server {
        let process = Process::start(&self.launcher, command, &self.beside(name));
        let server = Server { process };
        until("the server has joined", JOIN, || {
            server.process.expect_alive();
            server.log().contains(&format!("process {}", server.pid()))
        });
        server
    }

    /// The process in the server record.
    fn server_pid(&self) -> Option<u32> {
        let record = std::fs::read_to_string(self.store().join("servers/current.toml")).ok()?;
        let table: toml::Table = record.parse().ok()?;
        table.get("pid")?.as_integer()?.try_into().ok()
    }

    /// Checks that `varve fsck` finds no damage. The volume must not be served.
    pub fn expect_sound(&self) {
        let mut command = varve();
        command.arg("fsck").arg(self.store());
        run(&mut command, END).succeeded("varve fsck");
    }

    /// Mounts it, in the foreground of a child process, and waits until it answers.
    pub fn mount(&self, flags: &[&str]) -> Mount {
        let mount = self.mount_unasked(flags);
        std::fs::metadata(&mount.directory).expect("a mount that is there answers");
        mount
    }

    /// Mounts it, but returns as soon as the kernel knows the mount, which has not answered anything yet.
    pub fn mount_unasked(&self, flags: &[&str]) -> Mount {
        let directory = self.mount_point();
        let process = Process::start(&self.launcher, &self.mount_command(&directory, flags), &self.beside("mount.log"));
        Volume::mounted(directory, process)
    }

    /// Mounts it on `host`, in a directory of its own beside the store, which waits for a server elsewhere.
    pub fn mount_on(&self, host: &Host, name: &str, flags: &[&str]) -> Mount {
        let directory = self.beside(name);
        std::fs::create_dir(&directory).expect("a directory to mount on");
        let flags = [&["-o", "noembedded"], flags].concat();
        let command = host.connected(&self.mount_command(&directory, &flags));
        let process = Process::start(&self.launcher, &command, &self.beside(&format!("{name}.log")));
        let mount = Volume::mounted(directory, process);
        std::fs::metadata(&mount.directory).expect("a mount that is there answers");
        mount
    }

    fn mount_command(&self, directory: &Path, flags: &[&str]) -> Command {
        let mut command = varve();
        command.env("VARVE_MOUNT_WORKERS", "2");
        command.arg("mount").arg(self.store()).arg(directory).arg("-f").args(flags);
        command
    }

    fn mounted(directory: PathBuf, process: Process) -> Mount {
        let mount = Mount { directory, process };
        until("the mount is there", START, || {
            mount.process.expect_alive();
            is_mounted(&mount.directory)
        });
        mount
    }

    /// Mounts it, or makes the plain directory that `VARVE_E2E_ON=plain` asks for.
    pub fn place(&self) -> TestDirectory {
        if on_plain_directory() {
            return TestDirectory { directory: self.mount_point(), mount: None };
        }
        let mount = self.mount(&[]);
        TestDirectory { directory: mount.directory.clone(), mount: Some(mount) }
    }
}

/// The directory in which a suite works.
pub struct TestDirectory {
    pub directory: PathBuf,
    pub mount: Option<Mount>,
}

impl TestDirectory {
    /// Unmounts cleanly.
    pub fn end(self) {
        if let Some(mount) = self.mount {
            mount.unmount();
        }
    }
}

pub struct Server {
    process: Process,
}

impl Server {
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Stops all threads of the process.
    pub fn hang(&self) {
        self.process.hang();
    }

    /// Continues the stopped process.
    pub fn go_on(&self) {
        self.process.go_on();
    }

    /// Waits until the process has stopped by itself.
    pub fn await_stopped(&self, deadline: Duration) {
        self.process.await_stopped(deadline);
    }

    /// kill -9.
    pub fn kill(mut self) {
        self.process.kill();
    }

    /// Waits for its end by itself, with an error. Returns its exit code.
    pub fn expect_failure(&mut self) -> i32 {
        self.process.await_end("the server", END)
    }

    /// SIGTERM; the server must end with 0.
    pub fn stop(mut self) {
        self.process.signal(rustix::process::Signal::TERM);
        self.process.expect_end("the server", END);
    }
}

pub struct Mount {
    pub directory: PathBuf,
    process: Process,
}

impl Mount {
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Stops all threads of the mount's process.
    pub fn hang(&self) {
        self.process.hang();
    }

    /// Continues the stopped process.
    pub fn go_on(&self) {
        self.process.go_on();
    }

    /// kill -9 of the mount's process. The mount point stays, and its calls fail.
    pub fn kill_process(&mut self) {
        self.process.kill();
    }

    /// Cleans up as an administrator would after the death of the process.
    pub fn bury(self) {
        detach(&self.directory);
    }

    /// Waits for its process to end by itself, with 0: the kernel has removed the mount.
    pub fn expect_end(&mut self) {
        self.process.expect_end("the mount's process", END);
    }

    /// `varve umount`: everything is durable when it returns, and the process has ended with 0.
    pub fn unmount(self) {
        self.unmount_within(BUSY_FOR_A_MOMENT);
    }

    /// Unmounts without a second try.
    pub fn unmount_at_once(self) {
        self.unmount_within(Duration::ZERO);
    }

    /// Unmounts a mount that may be busy or whose store has failed: the unmount is refused until that is over.
    pub fn unmount_within(mut self, patience: Duration) {
        let end = Instant::now() + patience;
        let unmount = || run(varve().arg("umount").arg(&self.directory), END);
        let mut last = unmount();
        while last.code() != Some(0) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(500));
            last = unmount();
        }
        last.succeeded("varve umount");
        assert!(!is_mounted(&self.directory), "{} is still mounted", self.directory.display());
        self.process.expect_end("the mount's process", END);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        // Done before the process is killed, so that calls on open files fail at once.
        detach(&self.directory);
    }
}

pub fn is_mounted(directory: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("proc(5) is there");
    let wanted = directory.to_str().expect("temporary directories have plain names");
    table.lines().any(|line| line.split(' ').nth(4) == Some(wanted))
}

/// Detaches a mount whose process may be dead.
pub fn detach(directory: &Path) {
    if is_mounted(directory) {
        let mut umount = Command::new("umount");
        umount.arg("-l").arg(directory);
        let mut fusermount = Command::new("fusermount3");
        fusermount.arg("-uz").arg(directory);
        if !umount.status().is_ok_and(|status| status.success()) {
            // The command for unprivileged users, for suites that do not run as root. `is_mounted` shows whether it
            // worked.
            let _ = fusermount.status();
        }
    }
}
