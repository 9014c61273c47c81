//! Getting a `/dev/fuse` descriptor whose other end is mounted at a directory: by mount(2) where this process may, else
//! through the set-user-id helper fusermount3, which hands the descriptor over a socket.
//!
//! `fuser` could do both. It is done here because a mount of type `fuse.varve` needs the type said to mount(2), a helper
//! must also be tried where `/dev/fuse` is closed to the user, and because at the end of its session `fuser` unmounts
//! whatever is then at the path, which after an unmount by others may be somebody else's mount.

#![allow(clippy::disallowed_types, reason = "fusermount3 hands the device over by a socket; nobody else is talked to")]

use crate::error::{Error, Result};
use crate::mounts::{self, TYPE};
use crate::options::MountOptions;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::process::geteuid;
use std::ffi::CString;
use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use varve_env::identity::{as_process_user, file_user};

pub(crate) const DEVICE: &str = "/dev/fuse";

/// A mounted file system that nobody serves yet.
pub(crate) struct Attached {
    pub device: OwnedFd,
    /// With `auto_unmount`: fusermount3 waits at the other end and unmounts when this is closed, however it is.
    pub helper: Option<UnixStream>,
}

/// Does `work` with the file system identity of the user who started this process, and, where that may not, of the store's
/// owner. Root's mount of another user's store has the owner's (`varve_env::identity`), and a mount point may be in a
/// directory that either of the two alone may enter.
pub(crate) fn as_starter<T>(work: impl Fn() -> io::Result<T>) -> io::Result<T> {
    match as_process_user(&work) {
        Err(error) if error.raw_os_error() == Some(libc::EACCES) && file_user() != geteuid().as_raw() => work(),
        done => done,
    }
}

/// # Errors
/// If nothing can be mounted at `target`: it is no directory, or a mount of ours, whether its process lives or has died.
pub fn check_target(target: &Path) -> Result<()> {
    resolve(target).map(drop)
}

/// The directory to mount at, as the kernel will name it.
pub(crate) fn resolve(target: &Path) -> Result<PathBuf> {
    let wrap = |source: io::Error| match source.raw_os_error() {
        Some(libc::ENOTCONN) => Error::DeadMount(target.to_owned()),
        _ => Error::Target { target: target.to_owned(), source },
    };
    let resolved = as_starter(|| target.canonicalize()).map_err(wrap)?;
    // Of a mount whose process died, the kernel may still know that it is a directory, but not how full it is.
    match as_starter(|| rustix::fs::statfs(&resolved).map_err(io::Error::from)) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => return Err(wrap(error)),
        _ if mounts::at(&mounts::table().map_err(wrap)?, &resolved).is_some_and(|mount| mount.kind == TYPE) => {
            return Err(Error::Mounted(resolved));
        }
        answer => answer.map_err(wrap)?,
    };
    match as_starter(|| resolved.metadata()).map_err(wrap)?.is_dir() {
        true => Ok(resolved),
        false => Err(Error::NotADirectory(resolved)),
    }
}

pub(crate) fn attach(target: &Path, options: &MountOptions) -> Result<Attached> {
    if options.auto_unmount || !rustix::process::geteuid().is_root() {
        return by_helper(target, options);
    }
    match by_mount(target, options) {
        // Root of a container need not be allowed to mount; the helper may be.
        Err(Error::Mount { source, .. }) if source.raw_os_error() == Some(libc::EPERM) => by_helper(target, options),
        result => result,
    }
}

fn by_mount(target: &Path, options: &MountOptions) -> Result<Attached> {
    let device = as_starter(|| File::options().read(true).write(true).open(DEVICE)).map_err(Error::Device)?;
    let wrap = |source: io::Error| Error::Mount { target: target.to_owned(), source };
    let mode = as_starter(|| target.metadata()).map_err(wrap)?.mode();
    let data = format!(
        "fd={},rootmode={mode:o},user_id={},group_id={},{}",
        device.as_raw_fd(),
        rustix::process::getuid().as_raw(),
        rustix::process::getgid().as_raw(),
        options.kernel_data(),
    );
    let data = CString::new(data).expect("made of numbers and words");
    as_starter(|| {
        rustix::mount::mount(options.source.as_str(), target, TYPE, options.flags, data.as_c_str())
            .map_err(io::Error::from)
    })
    .map_err(wrap)?;
    Ok(Attached { device: device.into(), helper: None })
}

fn by_helper(target: &Path, options: &MountOptions) -> Result<Attached> {
    let (ours, theirs) = UnixStream::pair().map_err(Error::Device)?;
    let mut command = Command::new("fusermount3");
    command.arg("-o").arg(options.helper_list()).arg("--").arg(target);
    command.env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let inherited = theirs.as_raw_fd();
    // SAFETY: between fork and exec only fcntl(2) is called, which is async-signal-safe, on a descriptor that the
    // parent keeps open until the child is started.
    unsafe {
        command.pre_exec(move || match libc::fcntl(inherited, libc::F_SETFD, 0) {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    let mut child = command.spawn().map_err(Error::HelperMissing)?;
    drop(theirs);
    let Some(device) = receive_descriptor(&ours).map_err(Error::Device)? else {
        let mut text = String::new();
        child.stderr.take().expect("piped").read_to_string(&mut text).map_err(Error::HelperMissing)?;
        child.wait().map_err(Error::HelperMissing)?;
        return Err(Error::Helper(text.trim().trim_start_matches("fusermount3: ").to_owned()));
    };
    if options.auto_unmount {
        return Ok(Attached { device, helper: Some(ours) });
    }
    drop(ours);
    child.wait().map_err(Error::HelperMissing)?;
    Ok(Attached { device, helper: None })
}

/// The descriptor that the helper sends along with one byte; `None` if it ends without.
fn receive_descriptor(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    rustix::io::retry_on_intr(|| {
        let mut parts = [IoSliceMut::new(&mut byte)];
        rustix::net::recvmsg(socket.as_fd(), &mut parts, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let received = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(received)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn non_directory_target_is_refused_before_mounting() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, b"").unwrap();
        assert!(matches!(resolve(&file), Err(Error::NotADirectory(_))));
        assert!(matches!(resolve(&directory.path().join("absent")), Err(Error::Target { .. })));
        assert!(resolve(directory.path()).unwrap().is_absolute());
    }
}
