//! What tests with real mounts share: a directory to mount at that is clean again whatever happens.

#![allow(dead_code, reason = "each test program uses its part")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// Whether this machine can mount at all. Only a missing device excuses a test.
pub fn can_mount() -> bool {
    let there = Path::new("/dev/fuse").exists();
    if !there {
        eprintln!("skipped: this machine has no /dev/fuse");
    }
    there
}

/// A directory that may be mounted at. Dropped, it is unmounted (lazily, should something still be open) and removed.
pub struct MountPoint {
    directory: Option<tempfile::TempDir>,
}

impl MountPoint {
    pub fn new() -> MountPoint {
        let directory = tempfile::Builder::new().prefix("varve-mount-").tempdir().expect("a temporary directory");
        MountPoint { directory: Some(directory) }
    }

    pub fn path(&self) -> &Path {
        self.directory.as_ref().expect("there until dropped").path()
    }

    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path().join(name)
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        let directory = self.directory.take().expect("dropped once");
        while is_mounted(directory.path()) {
            let detach = rustix::mount::UnmountFlags::DETACH;
            if let Err(errno) = rustix::mount::unmount(directory.path(), detach) {
                // Removing the directory would remove what is mounted there.
                eprintln!("{} stays mounted: {errno}", directory.keep().display());
                return;
            }
        }
    }
}

pub fn is_mounted(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let table = std::fs::read_to_string("/proc/self/mountinfo").expect("proc is mounted");
    table.lines().any(|line| line.split(' ').nth(4) == path.to_str())
}

/// Runs a shell command and answers what it printed; fails the test if it fails.
pub fn shell(command: &str, arguments: &[&Path]) -> String {
    let output = Command::new("sh").arg("-ec").arg(command).arg("sh").args(arguments).output().expect("a shell");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command}: {text}{errors}");
    text
}
