//! Unmounts a mount. The caller finds the mount in the kernel's mount table, which resolves its path once. From there
//! on, no symbolic link is followed, and only the mount with the given mount ID is unmounted. A user who can change
//! directories of the path therefore cannot redirect the unmount to another mount.

use crate::attach::as_starter;
use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::mount::UnmountFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A mount point, kept reachable by an open descriptor of its parent directory. A descriptor of the mount itself would
/// keep the mount busy for as long as its owner waits for a reply, even after the owner is killed.
pub(crate) struct MountPoint(PathBuf, #[allow(dead_code, reason = "the path leads through it")] OwnedFd);

impl MountPoint {
    /// The mount point of the mount `id` at `target`, a path of the kernel's mount table. Sends no request to the
    /// mount's process.
    ///
    /// # Errors
    /// If another mount, or none, is at `target` by now.
    pub fn open(target: &Path, id: u32) -> io::Result<MountPoint> {
        as_starter(|| {
            let (parent, name) = around(target)?;
            drop(open_within(&parent, name, target, id)?);
            Ok(MountPoint(through(&parent).join(name), parent))
        })
    }

    /// A path that leads to the mount point as long as `self` lives, even if directories above it are renamed.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

fn through(descriptor: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

/// The directory that holds the mount point, and the mount point's name in it.
fn around(target: &Path) -> io::Result<(OwnedFd, &OsStr)> {
    let parts = target.parent().zip(target.file_name());
    let (parent, name) =
        parts.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is the root directory"))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    Ok((rustix::fs::openat2(CWD, parent, flags, Mode::empty(), resolve)?, name))
}

/// Opens the root of the mount at `name`, if that is the mount `id`.
fn open_within(parent: &OwnedFd, name: &OsStr, target: &Path, id: u32) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let root = rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)?;
    // Unlike statx(2), fdinfo needs neither a reply from the mount's process nor permission on the mount.
    let reported = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", root.as_raw_fd()))?;
    let number = reported
        .lines()
        .find_map(|line| line.strip_prefix("mnt_id:"))
        .and_then(|number| number.trim().parse::<u32>().ok());
    match number {
        Some(number) if number == id => Ok(root),
        _ => Err(io::Error::other(format!(
            "another mount, or none, is at {} by now: see /proc/self/mountinfo, and unmount again if it is still there",
            target.display()
        ))),
    }
}

/// Unmounts the mount `id` at `target`, a path of the kernel's mount table. `lazily`: at once, even if files on it are
/// open (MNT_DETACH).
pub(crate) fn detach(target: &Path, id: Option<u32>, lazily: bool) -> io::Result<()> {
    let id =
        id.ok_or_else(|| io::Error::other("it is not known which mount is there: /proc/self/mountinfo has none"))?;
    let lazy = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    let detached = as_starter(|| {
        let (parent, name) = around(target)?;
        // Closed at once: the descriptor would keep the mount busy.
        drop(open_within(&parent, name, target, id)?);
        rustix::mount::unmount(through(&parent).join(name), UnmountFlags::NOFOLLOW | lazy).map_err(io::Error::from)
    });
    match detached {
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => by_helper(target, lazily),
        done => done,
    }
}

/// Unmounts the mount `id` of `device` without a reply from its process: requests that wait for one end with an error
/// (ENOTCONN, ECONNABORTED), and what is still open there is detached.
pub(crate) fn force(target: &Path, id: u32, device: (u32, u32)) -> io::Result<()> {
    let forced = as_starter(|| {
        let (parent, name) = around(target)?;
        drop(open_within(&parent, name, target, id)?);
        // The kernel aborts the connection before it looks whether the mount is busy.
        let flags = UnmountFlags::NOFOLLOW | UnmountFlags::FORCE;
        rustix::mount::unmount(through(&parent).join(name), flags).map_err(io::Error::from)
    });
    match forced {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => detach(target, Some(id), true),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            // fusectl gives the file to the user who mounted. Where it is not mounted, callers wait for their timeout.
            let abort = format!("/sys/fs/fuse/connections/{}/abort", device.1);
            let written = File::options().write(true).open(&abort).and_then(|mut file| file.write_all(b"1"));
            if let Err(error) = written {
                tracing::debug!(%error, "cannot abort the connection by {abort}");
            }
            by_helper(target, true)
        }
        done => done,
    }
}

/// The helper takes a path. It unmounts only mounts of the user who starts it.
fn by_helper(target: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new("fusermount3");
    command.arg("-u").args(lazily.then_some("-z")).arg("--").arg(target);
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr);
    // The helper prints text where umount(2) returns an errno.
    match text.contains("busy") {
        true => Err(io::Error::from_raw_os_error(libc::EBUSY)),
        false => Err(io::Error::other(text.trim().to_owned())),
    }
}

#[cfg(test)]
mod tests;
