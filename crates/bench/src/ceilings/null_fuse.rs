//! A FUSE file system that answers everything from memory: the upper bound of the kernel's FUSE.
//!
//! This crate measures it as a plain directory and knows nothing of FUSE. The program passes in a [`NullMount`], which
//! should use the same kernel timeouts and the same number of threads as the mount that is compared with it.

use super::NULL_FUSE;
use crate::{Error, Result};
use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use varve_env::private_file::{check_directory, make_directory};

/// Prefix of mount points; the process number and a counter follow.
const NAME: &str = "varve-null-fuse.";

/// Mounts null file systems.
pub trait NullMount: Send + Sync {
    /// Mounts a null file system at `directory`, which is empty. When this returns, create, lookup, getattr, unlink,
    /// mkdir, rmdir and readdir must work in any directory of it.
    fn mount(&self, directory: &Path) -> io::Result<Box<dyn NullFuseMount>>;
}

/// A mounted null file system, served by a thread of this process or by another process. Dropping it unmounts too.
pub trait NullFuseMount: Send {
    fn unmount(self: Box<Self>) -> io::Result<()>;
}

/// A mounted null file system and its mount point. Both are removed together.
pub struct MountedNull {
    directory: PathBuf,
    mounted: Option<Box<dyn NullFuseMount>>,
}

impl MountedNull {
    /// Mounts at a new directory beneath the system's directory for temporary files.
    pub fn mount(null: &dyn NullMount) -> Result<MountedNull> {
        static MOUNTS: AtomicU64 = AtomicU64::new(0);
        let number = MOUNTS.fetch_add(1, Relaxed);
        let beneath = std::env::temp_dir();
        // Another user who owns the directory could redirect the mount.
        check_directory(&beneath).map_err(|error| Error::Ceiling { name: NULL_FUSE, reason: error.to_string() })?;
        remove_leftovers(&beneath);
        let directory = beneath.join(format!("{NAME}{}.{number}", std::process::id()));
        let fail = |error: io::Error| Error::Ceiling { name: NULL_FUSE, reason: error.to_string() };
        make_directory(&directory, 0o700).map_err(fail)?;
        let mut this = MountedNull { directory, mounted: None };
        this.mounted = Some(null.mount(&this.directory).map_err(fail)?);
        Ok(this)
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    pub fn unmount(mut self) -> Result<()> {
        let fail = |error: io::Error| Error::Ceiling { name: NULL_FUSE, reason: format!("cannot unmount: {error}") };
        self.mounted.take().map_or(Ok(()), NullFuseMount::unmount).map_err(fail)
    }
}

impl Drop for MountedNull {
    fn drop(&mut self) {
        drop(self.mounted.take());
        // The directory is empty. While it is still a mount point this fails, and the unmount has reported why.
        let _ = std::fs::remove_dir(&self.directory);
    }
}

/// Removes the mount points of benchmarks that were killed. These directories are empty. Removal fails for a directory
/// that is still mounted or belongs to another user, and the directory stays.
fn remove_leftovers(beneath: &Path) {
    for entry in std::fs::read_dir(beneath).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_str().and_then(process_of).is_some_and(is_dead) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// The process that made a mount point of this name.
fn process_of(name: &str) -> Option<Pid> {
    let (process, number) = name.strip_prefix(NAME)?.split_once('.')?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(process) && is_number(number)).then(|| process.parse().ok().and_then(Pid::from_raw)).flatten()
}

fn is_dead(process: Pid) -> bool {
    test_kill_process(process) == Err(Errno::SRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_mount_points_of_dead_processes_are_removed() {
        let beneath = tempfile::tempdir().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let dead = child.id();
        child.wait().unwrap();
        let make = |name: String| {
            let path = beneath.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let gone = [make(format!("{NAME}{dead}.0")), make(format!("{NAME}{dead}.12"))];
        let used = make(format!("{NAME}{dead}.1"));
        std::fs::create_dir(used.join("something")).unwrap();
        let others = [format!("{NAME}{}.0", std::process::id()), format!("{NAME}{dead}"), format!("x{NAME}{dead}.0")];
        let others = others.map(make);
        remove_leftovers(beneath.path());
        gone.iter().for_each(|path| assert!(!path.exists(), "{}", path.display()));
        others.iter().chain([&used]).for_each(|path| assert!(path.exists(), "{}", path.display()));
    }
}
