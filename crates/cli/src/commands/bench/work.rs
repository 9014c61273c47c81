//! The directory that holds a benchmark's volumes. A benchmark that is killed leaves its directory with all contents,
//! so the next one removes the directories of dead benchmarks.
//!
//! A process number proves nothing if containers share a directory. Therefore the benchmark and each process
//! that it starts hold a lock on the directory. The lock ends with the last of them.

use crate::identity;
use crate::problem::{Problem, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, test_kill_process};
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use varve_env::flock::Locked;
use varve_env::private_file::{check_directory, make_directory};
use varve_fuse::unmount::{Unwritten, unmount};

const NAME: &str = "varve-profile.";
/// The mount point of volumes within it.
const MOUNT_POINT: &str = "mnt";
/// A mount of a dead process has no server, so a long wait is pointless.
const UNMOUNT_MAX: Duration = Duration::from_secs(1);

pub struct WorkDirectory {
    path: PathBuf,
    _lock: Option<File>,
}

impl WorkDirectory {
    /// Makes a directory in `beneath`, or in the system's directory for temporary files, with the rights of the owner of
    /// that.
    pub fn make_in(beneath: Option<&Path>) -> Result<WorkDirectory> {
        let named = beneath.is_some();
        let beneath = beneath.map_or_else(std::env::temp_dir, Path::to_owned);
        let failed = || Problem::new(format!("cannot make volumes in {}", beneath.display()));
        let beneath = beneath.canonicalize().map_err(|error| failed().caused_by(&error))?;
        identity::take(&beneath, identity::Work::Bench, failed)?;
        // Another user must not redirect root's volumes and mounts. Users who name a directory know with whom they share
        // it.
        if !named || rustix::process::geteuid().is_root() {
            check_directory(&beneath).map_err(|error| {
                failed().caused_by(&error).next("Name another directory, or set TMPDIR to one of this user's.")
            })?;
        }
        WorkDirectory::make(&beneath)
    }

    /// Makes a directory in `beneath`, and first removes those of dead benchmarks there.
    fn make(beneath: &Path) -> Result<WorkDirectory> {
        remove_leftovers(beneath);
        let path = beneath.join(format!("{NAME}{}", std::process::id()));
        make_directory(&path, 0o700)
            .map_err(|error| Problem::new(format!("cannot make {}", path.display())).caused_by(&error))?;
        let lock = lock(&path).inspect_err(|error| tracing::debug!("{} has no lock: {error}", path.display())).ok();
        Ok(WorkDirectory { path, _lock: lock })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn mount_point(&self) -> PathBuf {
        self.path.join(MOUNT_POINT)
    }

    pub fn remove(self) -> Result<()> {
        let removed = std::fs::remove_dir_all(&self.path);
        removed.map_err(|error| Problem::new(format!("cannot remove {}", self.path.display())).caused_by(&error))
    }
}

/// The lock belongs to the open file. Processes started from now on inherit it.
fn lock(directory: &Path) -> io::Result<File> {
    let file = File::open(directory)?;
    fcntl_setfd(&file, FdFlags::empty())?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

fn remove_leftovers(beneath: &Path) {
    let own = rustix::process::geteuid().as_raw();
    // If this directory cannot be read, there is nothing to remove, or the benchmark itself fails there and reports it.
    for entry in std::fs::read_dir(beneath).into_iter().flatten().flatten() {
        let path = entry.path();
        let dead = entry.file_name().to_str().and_then(number).is_some_and(is_dead);
        let ours = || path.symlink_metadata().is_ok_and(|found| found.is_dir() && found.uid() == own);
        if !dead || !ours() {
            continue;
        }
        match remove_leftover(&path) {
            Ok(()) => tracing::info!("removed {}, a leftover of a killed benchmark", path.display()),
            Err(error) => tracing::info!("cannot remove {}, a leftover of a killed benchmark: {error}", path.display()),
        }
    }
}

/// The number of the process that made a directory of this name.
fn number(name: &str) -> Option<i32> {
    let digits = name.strip_prefix(NAME)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok()).flatten()
}

/// A directory with this process's own number belongs to an earlier process with that number.
fn is_dead(number: i32) -> bool {
    let Some(process) = Pid::from_raw(number) else { return false };
    process == rustix::process::getpid() || test_kill_process(process) == Err(Errno::SRCH)
}

fn remove_leftover(directory: &Path) -> io::Result<()> {
    let _lock = Locked::take(File::open(directory)?, FlockOperation::NonBlockingLockExclusive)?;
    let mount_point = directory.join(MOUNT_POINT);
    if is_mounted(directory, &mount_point) {
        unmount(&mount_point, UNMOUNT_MAX, Unwritten::GiveUp, &|_| {}).map_err(io::Error::other)?;
    }
    if is_mounted(directory, &mount_point) {
        return Err(io::Error::other("something is mounted there"));
    }
    std::fs::remove_dir_all(directory)
}

/// A mount whose process is dead answers nothing, not even its type.
fn is_mounted(directory: &Path, mount_point: &Path) -> bool {
    match (directory.symlink_metadata(), mount_point.symlink_metadata()) {
        (Ok(around), Ok(within)) => around.dev() != within.dev(),
        (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    fn dead() -> u32 {
        let mut child = Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        child.id()
    }

    fn leave(beneath: &Path, name: &str) {
        std::fs::create_dir_all(beneath.join(name).join("store/shards")).unwrap();
        std::fs::write(beneath.join(name).join("store/varve.toml"), "").unwrap();
    }

    #[test]
    fn only_leftovers_of_killed_benchmarks_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        let beneath = directory.path();
        let (gone, own) = (format!("{NAME}{}", dead()), format!("{NAME}{}", std::process::id()));
        let alive = format!("{NAME}{}", std::os::unix::process::parent_id());
        let others = [alive, format!("{NAME}x"), format!("{gone}.old"), NAME.to_owned(), "varve".to_owned()];
        [&gone, &own].into_iter().chain(&others).for_each(|name| leave(beneath, name));
        let (linked, target) = (beneath.join(format!("{NAME}{}", dead())), beneath.join("varve"));
        std::os::unix::fs::symlink(&target, &linked).unwrap();
        let work = WorkDirectory::make(beneath).unwrap();
        assert_eq!(std::fs::read_dir(work.path()).unwrap().count(), 0, "it is a new one");
        assert!(!beneath.join(&gone).exists());
        assert!(linked.is_symlink() && target.join("store/varve.toml").exists());
        for name in &others {
            assert!(beneath.join(name).join("store/varve.toml").exists(), "{name}");
        }
        work.remove().unwrap();
        assert!(!beneath.join(&own).exists());
    }

    /// The mount's process briefly outlives a benchmark that is killed.
    #[test]
    fn directory_in_use_by_a_child_is_kept() {
        let directory = tempfile::tempdir().unwrap();
        let left = directory.path().join(format!("{NAME}{}", dead()));
        std::fs::create_dir(&left).unwrap();
        let lock = lock(&left).unwrap();
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        drop(lock);
        remove_leftovers(directory.path());
        assert!(left.exists());
        drop(child.stdin.take());
        child.wait().unwrap();
    }
}
